"""Who may import whom, which packages are declared, and what no module may call: from the syntax trees of nmt/."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from nmt.system.torch_internals import FALLBACKS

PACKAGE = Path(__file__).parents[1] / "nmt"
FILES = sorted(PACKAGE.rglob("*.py"))

MAY_IMPORT = {
    "system": set(),
    "compute": {"model", "recipe", "system"},
    "search": {"compute", "model", "parsing", "formats", "text", "recipe", "system"},
    "recipe": {"system"},
    "text": {"recipe", "system"},
    "formats": {"text", "system"},
    "parsing": {"text", "system"},
    "metrics": {"text", "recipe", "system"},
    "data": {"parsing", "formats", "text", "recipe", "system"},
    "model": {"recipe"},
    "checkpoint": {"model", "parsing", "formats", "text", "recipe", "system"},
    "exchange": {"checkpoint", "model", "parsing", "formats", "text", "recipe", "system"},
    "decoding": {
        *("checkpoint", "search", "compute", "model"),
        *("parsing", "formats", "text", "recipe", "system"),
    },
    "training": {
        *("decoding", "exchange", "checkpoint", "compute"),
        *("model", "data", "metrics", "parsing", "formats", "text", "recipe", "system"),
    },
    "report": {
        *("data", "metrics", "training", "decoding", "exchange", "checkpoint"),
        *("model", "parsing", "recipe", "system"),
    },
    "commands": {
        *("report", "training", "decoding", "exchange", "checkpoint"),
        *("data", "metrics", "parsing", "formats", "text", "recipe", "system"),
    },
    "cli": {"commands"},
    "__init__": {"decoding", "exchange", "checkpoint", "model", "parsing", "recipe", "system"},  # lazily, see below
    "__main__": {"cli", "system"},
}
"""What each package imports directly; a package below may be used through those above it."""

Import = tuple[str, bool]  # dotted name, and whether it runs when the module is imported


def name_of(path: Path) -> str:
    """nmt/data/pairs.py → nmt.data.pairs"""
    return ".".join(("nmt", *path.relative_to(PACKAGE).with_suffix("").parts))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports_of(path: Path) -> list[Import]:
    """Every module that a module imports anywhere, as absolute names down to the module or name imported."""
    module = name_of(path)

    def walk(node: ast.AST, at_import: bool) -> Iterator[Import]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            at_import = False
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            at_import = False
        if isinstance(node, ast.Import):
            yield from ((alias.name, at_import) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parent = module.split(".")[: -node.level] if node.level else []
            origin = ".".join((*parent, *([node.module] if node.module else [])))
            yield from ((f"{origin}.{alias.name}", at_import) for alias in node.names)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, at_import)

    return list(walk(parsed(path), True))


def layer(name: str) -> str:
    """Where in the table a module stands: the package below nmt, or the module right below it."""
    return name.split(".")[1]


def own(found: list[Import]) -> Iterator[str]:
    """What is imported of nmt itself, apart from its version."""
    yield from (name for name, _ in found if name.split(".")[0] == "nmt" and name != "nmt.__version__")


def importers(library: str, at_import: bool = False) -> set[str]:
    """Modules that import a library, or only those that do so as soon as they are imported themselves."""
    return {
        name_of(path)
        for path in FILES
        for name, runs in imports_of(path)
        if name.split(".")[0] == library and (runs or not at_import)
    }


def test_packages_import_what_the_table_says() -> None:
    found: dict[str, set[str]] = {name: set() for name in MAY_IMPORT}
    for path in FILES:
        here = layer(name_of(path))
        needs = {layer(name) for name in own(imports_of(path))} - {here}
        assert needs <= MAY_IMPORT[here], path
        found[here] |= needs
    assert found == MAY_IMPORT


def test_neither_packages_nor_files_import_in_circles() -> None:
    names = {name_of(path).removesuffix(".__init__") for path in FILES}
    needed = {
        name_of(path).removesuffix(".__init__"): {
            name if name in names else name.rpartition(".")[0] for name in own(imports_of(path))
        }
        for path in FILES
    }
    for graph in (MAY_IMPORT, needed):
        done: set[str] = set()
        while ready := [name for name, needs in graph.items() if name not in done and needs - {name} <= done]:
            done.update(ready)
        assert set(graph) - done == set()


def test_no_two_modules_or_types_share_a_name() -> None:
    classes = [node.name for path in FILES for node in ast.walk(parsed(path)) if isinstance(node, ast.ClassDef)]
    for names in ([path.stem for path in FILES if path.stem != "__init__"], classes):
        assert {name for name, count in Counter(names).items() if count > 1} == set()


TORCHLESS = ("engine", "workers", "pipeline", "translator", "parser")


def test_text_imports_no_torch() -> None:
    for library in ("torch", "safetensors"):
        assert [name for name in importers(library) if layer(name) in ("text", "formats", "parsing")] == []
    torchless = {"nmt.search.sources", *(f"nmt.decoding.{name}" for name in TORCHLESS)}
    assert not torchless & importers("torch")


def test_only_preparation_imports_datasets() -> None:
    assert importers("datasets") == {"nmt.data.prepare", "nmt.data.pairs"}
    assert importers("datasets", at_import=True) == set()  # it takes seconds


def test_only_two_modules_start_processes() -> None:
    """So that all children find this nmt, and no module of the working directory."""
    starting = {
        name_of(path)
        for path in FILES
        for name, _ in imports_of(path)
        if name.split(".")[0] in ("subprocess", "multiprocessing") and not name.endswith(".Connection")
    }
    assert starting == {"nmt.system.processes", "nmt.decoding.workers"}


BARE = "nmt nmt.cli nmt.system.device nmt.recipe nmt.checkpoint.reading nmt.exchange.ctranslate2 nmt.text.tokenizer"
BARE += " nmt.text.lines nmt.exchange.resolve nmt.decoding.workers nmt.data.prepare nmt.data.corpus"
BARE += " nmt.metrics.systems nmt.metrics.differences"
BARE += " nmt.parsing.brackets nmt.report.record nmt.decoding.translator nmt.decoding.parser"
HEAVY = {"torch", "datasets"}


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        (BARE, HEAVY),
        ("nmt.commands.translate", HEAVY | {"jinja2", "pyarrow"}),
        ("nmt.decoding.parser nmt.search.beam torch", {"torch._dynamo"}),  # the compiler's import takes a second
    ],
)
def test_what_takes_long_to_import_is_imported_when_it_is_used(modules: str, heavy: set[str]) -> None:
    program = f"import sys, {', '.join(modules.split())}; print(*sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], cwd=PACKAGE.parent, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


PROJECT = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
OPTIONAL = [needed for extra in EXTRAS if extra not in ("dev", "docs", "fuzz") for needed in EXTRAS[extra]]
INSTALLED = {"pyyaml": "yaml", "translate-toolkit": "translate"}  # the modules of packages, where they have other names
COMES_WITH = {"pydantic_core": "pydantic", "triton": "torch"}  # modules that a package installs besides its own


def modules(requirements: list[str]) -> set[str]:
    """The modules that requirements such as `pyyaml>=6` install."""
    names = [re.split(r"[^\w-]", requirement)[0] for requirement in requirements]
    return {INSTALLED.get(name, name) for name in names}


def third_party(at_import: bool = False) -> set[str]:
    """Modules of other packages that nmt imports, or only those that it imports as soon as it is imported itself."""
    found = {name.split(".")[0] for path in FILES for name, runs in imports_of(path) if runs or not at_import}
    return {COMES_WITH.get(name, name) for name in found - sys.stdlib_module_names - {"nmt"}}


def test_what_is_imported_is_declared_and_what_is_declared_is_imported() -> None:
    assert third_party() == modules([*PROJECT["dependencies"], *OPTIONAL])


PRIVATE = {
    *("_asdict", "_exit", "_replace"),  # public, whatever their names
    "_modules",
    "_buffers",  # of modules of PyTorch
    *("_cache_references", "_compute_score_from_stats", "_extract_corpus_statistics", "_ref_cache"),  # of sacrebleu
    "_children",  # of multiprocessing
    *(name.rpartition(".")[2] for name in FALLBACKS),
}
"""Names with an underscore that nmt uses of other packages"""


def test_private_names_of_other_packages_are_listed() -> None:
    nodes = [node for path in FILES for node in ast.walk(parsed(path))]
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    own = {node.attr for node in attributes if isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"}
    own |= {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    assert {node.attr for node in attributes if re.match("_[^_]", node.attr)} - own - PRIVATE == set()
    names = {ast.unparse(node) for node in attributes} | {name for path in FILES for name, _ in imports_of(path)}
    assert [name for name in names if re.match(r"torch(\.\w+)*\.(_|ops\.(?!aten))", name)] == []


# --- nothing of a run is executed or unpickled --------------------------------------------------------------

PICKLES = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}


def dangers(path: Path) -> list[str]:
    """Expressions that would execute or unpickle what they read."""
    found = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("eval", "exec"):
            found.append(ast.unparse(node.func))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("torch.load", "builtins.eval", "builtins.exec"):
            found.append(ast.unparse(node))
        if isinstance(node, ast.Attribute) and node.attr in ("unsafe_load", "UnsafeLoader", "FullLoader"):
            found.append(ast.unparse(node))
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            found.append("allow_pickle")
    names = [name for name, _ in imports_of(path)]
    return found + [name for name in names if name == "torch.load" or name.split(".")[0] in PICKLES]


def test_nothing_is_executed_or_unpickled() -> None:
    assert [path for path in FILES if dangers(path)] == []
