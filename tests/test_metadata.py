"""What the package index shows of nmt."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\]\(([^)]*)\)|\b(?:src|srcset|href)=\"([^\"]*)\"")


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The metadata of a package that is built with NMT_REPOSITORY."""
    if int(metadata.version("setuptools").split(".")[0]) < 77:
        pytest.skip("needs setuptools 77")

    def read(repository: str) -> metadata.PathDistribution:
        monkeypatch.setenv("NMT_REPOSITORY", repository)
        for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, tmp_path)
        (tmp_path / "nmt").mkdir()
        shutil.copy(ROOT / "nmt" / "__init__.py", tmp_path / "nmt")
        build = "from setuptools.build_meta import prepare_metadata_for_build_wheel as build; build('.')"
        done = subprocess.run([sys.executable, "-c", build], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return metadata.PathDistribution(next(tmp_path.glob("*.dist-info")))

    return read


def links(text: str) -> list[str]:
    return ["".join(found) for found in LINK.findall(text)]


def test_links_and_pictures_of_the_readme_lead_to_the_released_version_in_the_repository(read) -> None:
    package = read("https://host.example/owner/nmt")
    tag = f"v{package.version}"
    found, own = links(package.metadata["Description"]), links((ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(found) == len(own) > 20
    for link, relative in zip(found, own, strict=True):
        if relative.startswith("https:"):
            assert link == relative
            continue
        start, _, path = link.partition(f"/{tag}/")
        assert start == f"https://host.example/owner/nmt/{'raw' if relative.endswith(('.png', '.svg')) else 'blob'}"
        assert (ROOT / path.partition("#")[0]).exists()
    urls = [line.partition(", ")[2] for line in package.metadata.get_all("Project-URL")]
    assert len(urls) == 4
    assert all(url.startswith("https://host.example/owner/nmt") for url in urls)


def test_without_an_address_the_readme_has_no_links_into_the_repository(read) -> None:
    package = read("")
    found = links(package.metadata["Description"])
    assert found
    assert all(link.startswith("https:") for link in found)
    assert package.metadata.get_all("Project-URL") is None
    assert "understand each step | Quick start" in package.metadata["Description"]
