"""Installing nmt with and without a C compiler, each time a copy of the sources into an environment of its own."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import venv
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
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

    def install(self, *what: object, **environment: str) -> str:
        """Everything that pip prints."""
        offline = ["--no-build-isolation", "--no-deps", "--no-index", "--disable-pip-version-check"]
        done = self.run("-m", "pip", "install", "-v", *offline, *what, **environment)
        return done.stdout + done.stderr

    def kernels(self, **environment: str) -> str:
        """The instruction set of the C kernels in use, or None."""
        program = "from nmt.native import library; found = library(); print(found and found.instruction_set)"
        return self.run("-c", program, **environment).stdout.strip()


@pytest.fixture
def place(tmp_path: Path) -> World:
    for needed, least in BUILD:
        with suppress(metadata.PackageNotFoundError):
            if int(metadata.version(needed).split(".")[0]) >= least:
                continue
        pytest.skip(f"needs {needed} {least}")
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "nmt", tmp_path / "sources" / "nmt", ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / "sources" / name)
    venv.create(tmp_path / "venv", with_pip=False)
    made = World(tmp_path / "sources", tmp_path / "venv" / "bin" / "python")
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
    said = place.install(place.sources, CC=compiler)
    assert said.count("nmt works without the C kernels") == 1
    assert "Successfully installed" in said
    assert place.kernels() == "None"


@pytest.mark.usefixtures("compiler")
def test_a_wheel_works_wherever_it_is_unzipped(place: World, tmp_path: Path) -> None:
    place.run("-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", tmp_path / "wheels", place.sources)
    (wheel,) = (tmp_path / "wheels").iterdir()
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path / "elsewhere")
    kinds = (".html", ".css", ".js", ".py", ".md", ".toml")
    for folder in ("nmt/report/templates", "nmt/native", "nmt/exchange", "nmt/text"):
        names = {path.name for path in (ROOT / folder).iterdir() if path.suffix in kinds}
        assert names
        assert names <= {path.name for path in (tmp_path / "elsewhere" / folder).iterdir()}
    shutil.rmtree(place.sources)
    assert place.kernels(PYTHONPATH=str(tmp_path / "elsewhere"), ATEN_CPU_CAPABILITY="default") == "generic"
