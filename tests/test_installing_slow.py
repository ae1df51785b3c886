"""Packages of nmt, with and without a C compiler, each built from a copy of the sources; what is in them, and works."""

from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
import tarfile
import venv
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest

import nmt

ROOT = Path(__file__).parents[1]
BUILD = (("pip", 23), ("setuptools", 77))  # what installs the package, and the versions it needs

pytestmark = pytest.mark.slow


@dataclass
class World:
    """A copy of the sources, and an environment to install it into."""

    sources: Path
    python: Path

    def run(self, *command: object, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "CC", "CFLAGS")}
        done = subprocess.run(
            [str(self.python), *map(str, command)],
            env={**kept, **environment},
            cwd=self.sources.parent,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def pip(self, *command: object, **environment: str) -> str:
        """Everything that pip prints."""
        offline = ["--no-build-isolation", "--no-deps", "--no-index", "--disable-pip-version-check"]
        done = self.run("-m", "pip", *command, "-v", *offline, **environment)
        return done.stdout + done.stderr

    def wheel(self, sources: Path, **environment: str) -> Path:
        """A wheel of the sources."""
        self.pip("wheel", sources, "-w", self.sources.parent / "wheels", **environment)
        (wheel,) = (self.sources.parent / "wheels").iterdir()
        return wheel

    def kernels(self, **environment: str) -> str:
        """The instruction set of the C kernels in use, or None."""
        program = "from nmt.compute.native import kernels; found = kernels(); print(found and found.instruction_set)"
        return self.run("-c", program, **environment).stdout.strip()


@pytest.fixture
def place(tmp_path: Path) -> World:
    for needed, least in BUILD:
        with suppress(metadata.PackageNotFoundError):
            if int(metadata.version(needed).split(".")[0]) >= least:
                continue
        pytest.skip(f"needs {needed} {least}")
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    for name in " ".join(copied).split():  # what the image is built from is enough
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / "nmt" / name, ignore=ignored)
        else:
            (tmp_path / "nmt").mkdir(exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / "nmt" / name)
    venv.create(tmp_path / "venv", with_pip=False)
    made = World(tmp_path / "nmt", tmp_path / "venv" / "bin" / "python")
    packages = made.run("-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip()
    # A .pth file, unlike PYTHONPATH, puts the packages of this environment behind what is installed there. It does not
    # run their .pth files, so that an editable nmt stays unseen.
    Path(packages, "shared.pth").write_text("\n".join(site.getsitepackages()))
    return made


@pytest.fixture
def compiler() -> None:
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("needs a C compiler")


@pytest.mark.parametrize("compiler", ["false", "/nowhere/cc"])
def test_an_installation_without_a_compiler_works_and_says_so_once(place: World, compiler: str) -> None:
    said = place.pip("install", place.sources, CC=compiler)
    assert said.count("nmt works without the C kernels") == 1
    assert "Successfully installed" in said
    assert place.kernels() == "None"


def test_a_wheel_without_libraries_is_for_any_platform(place: World) -> None:
    assert place.wheel(place.sources, CC="false").name.endswith("-py3-none-any.whl")


@pytest.mark.usefixtures("compiler")
def test_an_editable_installation_compiles_into_the_sources(place: World) -> None:
    place.pip("install", "--editable", place.sources)
    assert place.kernels(ATEN_CPU_CAPABILITY="default") == "generic"
    assert (place.sources / "nmt" / "compute" / "native" / "_base.so").exists()


def test_a_clone_called_nmt_in_the_working_directory_does_not_hide_its_editable_installation(place: World) -> None:
    place.pip("install", "--editable", place.sources, CC="false")
    torchrun = ("torch.distributed.run", "--nproc-per-node", "1", "-m")
    for launcher in ((), torchrun):
        assert place.run("-m", *launcher, "nmt", "--version").stdout == f"nmt {nmt.__version__}\n"
    assert place.run("-c", "import nmt; print(nmt.__file__)").stdout == f"{place.sources / 'nmt/__init__.py'}\n"


@pytest.mark.usefixtures("compiler")
def test_a_wheel_of_the_source_archive_works_wherever_it_is_unzipped(place: World, tmp_path: Path) -> None:
    (place.sources / "tests").mkdir()
    (place.sources / "tests" / "test_tests.py").touch()
    build = "import os, sys; from setuptools.build_meta import build_sdist; os.chdir('nmt'); build_sdist('..')"
    place.run("-c", build)
    (archive,) = tmp_path.glob("nmtkit-*.tar.gz")
    with tarfile.open(archive) as packed:
        assert [name for name in packed.getnames() if "tests" in name] == []
        packed.extractall(tmp_path / "unpacked", filter="data")
    shutil.rmtree(place.sources)
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    wheel = place.wheel(unpacked)
    assert re.search(r"-py3-none-(?!any)\w+\.whl$", wheel.name)  # one for every Python
    with zipfile.ZipFile(wheel) as packed_wheel:
        packed_wheel.extractall(tmp_path / "elsewhere")
    kinds = (".html", ".css", ".js", ".py", ".md", ".toml", ".typed")
    for folder in ("nmt", "nmt/report/templates", "nmt/compute/native", "nmt/exchange", "nmt/text"):
        names = {path.name for path in (ROOT / folder).iterdir() if path.suffix in kinds}
        assert names
        assert names <= {path.name for path in (tmp_path / "elsewhere" / folder).iterdir()}
    shutil.rmtree(unpacked)
    elsewhere = str(tmp_path / "elsewhere")
    assert place.kernels(PYTHONPATH=elsewhere, ATEN_CPU_CAPABILITY="default") == "generic"
    program = "from nmt.recipe.yaml_files import shipped_recipes; print(*shipped_recipes().values())"
    shipped = {Path(path) for path in place.run("-c", program, PYTHONPATH=elsewhere).stdout.split()}
    every = {path.relative_to(ROOT) for path in (ROOT / "recipes").rglob("*.yaml") if not path.stem.startswith("demo")}
    assert {path.relative_to(tmp_path / "elsewhere" / "nmt") for path in shipped} == every
