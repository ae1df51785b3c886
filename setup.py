"""What pyproject.toml cannot say: the optional C kernels, a wheel for every Python, the recipes in it, and its README.

Without a working compiler the package is complete all the same: nmt then computes with PyTorch's operations, and the
wheel is for any platform. Without one for WebAssembly, pages of `nmt average --format html` translate in JavaScript.
"""

import contextlib
import os
import platform
import re
import subprocess
import sys
import textwrap
from pathlib import Path

from setuptools import Extension, errors, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

# -fno-math-errno: a square root is an instruction, not a call of the C library. Results are the same.
COMMON = ["-O3", "-Wall", "-Wextra", "-fvisibility=hidden", "-fno-math-errno", "-ffp-contract=fast"]
OPTIONS = {"_base": []}  # name of the library: options that choose its instruction set
if platform.machine() in ("x86_64", "AMD64") and sys.maxsize > 2**32:
    OPTIONS["_avx2"] = ["-mavx2", "-mfma"]
    OPTIONS["_avx512"] = ["-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]

KERNELS = Path("nmt/compute/native")

PRODUCTS = Path("nmt/exchange/html/products.c")
WASM_COMPILERS = (["clang", "--target=wasm32"], ["python-zig", "cc", "--target=wasm32-freestanding"])  # of `ziglang`
WASM_OPTIONS = ["-msimd128", "-O3", "-Wall", "-Wextra", "-nostdlib", "-Wl,--no-entry", "-Wl,--strip-all"]
WASM_OPTIONS += ["-Wl,--import-memory", "-Wl,--export=__heap_base", "-Wl,-z,stack-size=65536"]

REPOSITORY = os.environ.get("NMT_REPOSITORY", "").rstrip("/")  # such as https://github.com/OWNER/NAME, for a release
VERSION = re.search(r'^__version__ = "(.+)"$', Path("nmt/__init__.py").read_text(encoding="utf-8"), re.M)[1]


class BuildKernels(build_ext):
    """Compiles libraries that ctypes opens. Prints one warning, however many of them could not be compiled."""

    def run(self):
        self.failed = {}  # name of the library: reason
        super().run()
        if self.failed:
            reason = textwrap.shorten(str([*self.failed.values()][-1]), 100)
            self.warn(f"nmt works without the C kernels {', '.join(self.failed)}, but may be slower: {reason}")
        folder = Path() if self.inplace or self.editable_mode else Path(self.build_lib)
        if not self.build_products(folder / PRODUCTS.with_suffix(".wasm")):
            self.warn("pages of nmt average --format html will be slower: neither clang with lld nor ziglang works")

    def build_products(self, out):
        """Compile the products of pages by the first compiler that can; tell whether one could."""
        self.mkpath(str(out.parent))
        for command in WASM_COMPILERS:
            compile_products = [*command, *WASM_OPTIONS, str(PRODUCTS), "-o", str(out)]
            with contextlib.suppress(OSError, subprocess.CalledProcessError):
                subprocess.run(compile_products, check=True, capture_output=True)
                return True
        return False

    def build_extension(self, ext):
        try:
            super().build_extension(ext)
        except (errors.CCompilerError, errors.BaseError) as error:
            self.failed[ext.name] = error

    def get_ext_filename(self, fullname):
        return os.path.join(*fullname.split(".")) + ".so"  # no Python's tag: they are not modules

    def get_export_symbols(self, ext):
        return []  # Windows would look for a module's PyInit function


class BuildWithRecipes(build_py):
    """Copies recipes/ to nmt/recipes/, but for those whose data a script beside them writes."""

    def run(self):
        super().run()
        if not self.editable_mode:
            for path in [*Path("recipes").rglob("*.yaml"), Path("recipes/schema.json")]:
                if not path.name.startswith("demo"):
                    copy = Path(self.build_lib, "nmt", path)
                    self.mkpath(str(copy.parent))
                    self.copy_file(str(path), str(copy))


class OneWheel(bdist_wheel):
    """A wheel for every Python 3: for this platform if it has libraries, else for any."""

    def run(self):
        self.run_command("build")
        built = Path(self.get_finalized_command("build").build_lib, KERNELS)
        if not any(built.glob("*.so")):
            self.root_is_pure, self.distribution.ext_modules = True, []
        super().run()

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


def readme():
    """README.md for readers outside the repository: its links and pictures lead to REPOSITORY, or else are left out."""
    text = Path("README.md").read_text(encoding="utf-8")
    relative = r"(?![a-z]+:)([^)\"\s]+)"
    if not REPOSITORY:
        text = re.sub(r"<picture>.*?</picture>", "", text)
        return re.sub(rf"!?\[([^\]]*)\]\({relative}\)", r"\1", text)

    def absolute(found):
        before, target = found.groups()
        view = "raw" if target.endswith((".png", ".svg")) else "blob"
        return f"{before}{REPOSITORY}/{view}/v{VERSION}/{'README.md' if target.startswith('#') else ''}{target}"

    return re.sub(rf"(\]\(|\bsrc=\"|\bsrcset=\"){relative}", absolute, text)


setup(
    long_description=readme(),
    long_description_content_type="text/markdown",
    project_urls={
        name: f"{REPOSITORY}{page}"
        for name, page in (
            ("Source", ""),
            ("Documentation", f"/blob/v{VERSION}/docs/index.md"),
            ("Changelog", f"/blob/v{VERSION}/CHANGELOG.md"),
            ("Issues", "/issues"),
        )
        if REPOSITORY
    },
    cmdclass={"build_ext": BuildKernels, "build_py": BuildWithRecipes, "bdist_wheel": OneWheel},
    ext_modules=[
        Extension(
            f"nmt.compute.native.{name}",
            sorted(map(str, KERNELS.glob("*.c"))),
            depends=["setup.py", *map(str, KERNELS.glob("*.h"))],
            extra_compile_args=[*COMMON, *options],
            optional=True,
        )
        for name, options in OPTIONS.items()
    ],
)
