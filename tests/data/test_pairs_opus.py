"""Corpora of OPUS are downloaded once and whole, whatever the network does, from a server that speaks as OPUS does."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from opus_server import OpusServer, moses_zip, opus_server
from prepared import QUIET, fingerprint, recipe, sentences, snapshot, table
from said import Lines

from nmt.data.pairs import Archive, read_pairs
from nmt.data.prepare import prepare
from nmt.system.errors import UserError
from nmt.system.files import sha256

PATH = "/OPUS-Demo/v1/moses/de-en.txt.zip"
TEXTS = {"de": "".join(f"{line}\n" for line in sentences(300, 1)), "en": "".join(f"{x}\n" for x in sentences(300, 2))}
NOISE = random.Random(3).randbytes(200_000).hex() + "\n"  # does not become small, so that downloads can be cut
LONG = moses_zip("Demo.de-en", {"de": NOISE, "en": NOISE})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache" / "nmt" / "opus"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpusServer]:
    with opus_server() as server:
        monkeypatch.setenv("NMT_OPUS_URL", server.url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        server.archives[PATH] = LONG
        yield server


def download(name: str = "Demo/v1", *languages: str) -> Path:
    archive = Archive(name, languages or ("en", "de"))
    archive.download(QUIET)
    return archive.path


def refusal(name: str = "Demo/v1", *languages: str) -> UserError:
    with pytest.raises(UserError) as caught:
        download(name, *languages)
    assert "\n" not in caught.value.message + caught.value.hint
    return caught.value


def downloaded(cache: Path) -> list[str]:
    """Names of files in the cache, without locks."""
    return sorted(path.name for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock")


# --- as data ------------------------------------------------------------------------------------------------

CORPUS = {"train": [{"opus": "Demo/v1"}], "valid": {"take": 10}, "test": []}


def test_a_corpus_is_downloaded_once_and_its_content_identifies_the_data(server: OpusServer, cache: Path) -> None:
    server.archives[PATH] = moses_zip("Demo.de-en", TEXTS)
    console = Lines()
    assert prepare(recipe(data=CORPUS), console, 1).is_new
    assert table("train").num_rows == 290
    path = cache / "Demo" / "v1" / "de-en.txt.zip"
    assert f"downloaded Demo/v1 from OPUS: {path}" in console.said
    assert sha256(path) in Path("data/x/fingerprint.json").read_text()
    before = snapshot()
    assert not prepare(recipe(data=CORPUS), QUIET, 1).is_new
    assert snapshot() == before
    assert server.asked == [f"HEAD {PATH}", f"GET {PATH}"]
    path.write_bytes(moses_zip("Demo.de-en", {**TEXTS, "en": TEXTS["en"].replace("dog", "god")}))
    assert prepare(recipe(data=CORPUS), QUIET, 1).is_new


def test_prepared_data_needs_no_corpus_on_another_machine(
    server: OpusServer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.archives[PATH] = moses_zip("Demo.de-en", TEXTS)
    prepare(recipe(data=CORPUS), QUIET, 1)
    before = fingerprint(recipe(data=CORPUS))
    server.archives.clear()
    monkeypatch.setenv("XDG_CACHE_HOME", "elsewhere")
    assert not prepare(recipe(data=CORPUS), QUIET, 1).is_new
    assert fingerprint(recipe(data=CORPUS)) == before


def test_the_order_of_languages_is_that_of_the_recipe_and_the_file_is_the_same(server: OpusServer) -> None:
    server.archives[PATH] = moses_zip("Demo.de-en", {"de": "Baum\n", "en": "tree\n"})
    there, back = ({"source": s, "target": t, **CORPUS, "valid": []} for s, t in (("en", "de"), ("de", "en")))
    for sides, expected in ((there, ["tree", "Baum"]), (back, ["Baum", "tree"])):
        data = recipe(data=sides).data
        archive = Archive("Demo/v1", data.languages)
        archive.download(QUIET)
        assert list(read_pairs(data.train[0], data)) == [tuple(expected)]
    assert len(server.asked) == 2


# --- interruptions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("knows_ranges", [True, False])
def test_a_download_that_is_cut_goes_on_where_it_was(server: OpusServer, cache: Path, knows_ranges: bool) -> None:
    server.cuts, server.knows_ranges = [100_000, 150_000], knows_ranges
    assert download().read_bytes() == LONG
    gets = [asked.removeprefix(f"GET {PATH}") for asked in server.asked if asked.startswith("GET")]
    assert gets == ["", " bytes=99999-", " bytes=249998-" if knows_ranges else " bytes=149999-"]
    assert downloaded(cache) == ["de-en.txt.zip"]


@pytest.mark.parametrize("left", ["a part", "all, but not read"])
def test_a_server_that_stays_away_is_an_error_and_the_next_run_goes_on(
    server: OpusServer, cache: Path, left: str
) -> None:
    server.cuts = [100_000, 0]
    error = refusal()
    assert error.message.startswith(f"Demo/v1: cannot be downloaded from {server.url}{PATH}, after 100,000 bytes: ")
    assert str(cache / "Demo" / "v1" / "de-en.txt.zip") in error.hint
    [part] = cache.rglob("*.part")
    if left != "a part":  # as when the command is stopped while it reads the texts
        part.write_bytes(LONG)
    begin = part.stat().st_size - 1
    server.asked.clear()
    assert download().read_bytes() == LONG
    assert server.asked == [f"HEAD {PATH}", f"GET {PATH} bytes={begin}-"]
    assert downloaded(cache) == ["de-en.txt.zip"]


def test_a_file_that_has_changed_on_the_server_is_downloaded_from_its_beginning(
    server: OpusServer, cache: Path
) -> None:
    server.cuts = [100_000, 0]
    refusal()
    server.archives[PATH] = changed = moses_zip("Memo.de-en", {"de": NOISE, "en": NOISE})
    assert len(changed) == len(LONG)
    server.asked.clear()
    assert download().read_bytes() == changed
    assert server.asked == [f"HEAD {PATH}", f"GET {PATH}"]
    assert downloaded(cache) == ["de-en.txt.zip"]


def test_two_at_once_download_it_once(server: OpusServer, cache: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        paths = [each.result() for each in [threads.submit(download) for _ in range(4)]]
    assert [path.read_bytes() == LONG for path in paths] == [True] * 4
    assert server.asked == [f"HEAD {PATH}", f"GET {PATH}"]
    assert downloaded(cache) == ["de-en.txt.zip"]


def test_without_a_network_the_error_names_the_place_of_the_file(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with opus_server() as gone:
        monkeypatch.setenv("NMT_OPUS_URL", gone.url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    error = refusal()
    assert "Connection refused" in error.message
    path = cache / "Demo" / "v1" / "de-en.txt.zip"
    assert str(path) in error.hint
    assert downloaded(cache) == []
    path.parent.mkdir(parents=True)
    path.write_bytes(LONG)
    assert download() == path
    shutil.rmtree(cache)
    monkeypatch.setenv("NMT_OPUS_URL", "localhost")
    assert "unknown url type: 'localhost/OPUS-Demo" in refusal().message


# --- damage -------------------------------------------------------------------------------------------------


def flipped(content: bytes) -> bytes:
    """With another byte inside the longest text, so that only its checksum is wrong."""
    middle = len(content) // 4
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"<html>Please log in to this network</html>", "is not a zip archive"),
        (LONG[: len(LONG) // 2], "is not a zip archive"),
        (flipped(LONG), "cannot be read to its end"),
        (moses_zip("Demo.de-en", {"de": NOISE}), "has 0 files whose names end in .en"),
    ],
    ids=["a page", "half a file", "another byte", "one side"],
)
def test_a_damaged_archive_is_an_error_and_not_kept(
    server: OpusServer, cache: Path, content: bytes, words: str
) -> None:
    server.archives[PATH] = content
    error = refusal()
    assert error.message.startswith(f"Demo/v1: {server.url}{PATH} is damaged, and was deleted here: ")
    assert words in error.message
    assert downloaded(cache) == []
    server.archives[PATH] = LONG
    assert download().read_bytes() == LONG


# --- names that OPUS does not have --------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "languages"), [("Demo/v2", ("en", "de")), ("Demo/v1", ("en", "ger"))])
def test_an_unknown_name_is_refused(server: OpusServer, cache: Path, name: str, languages: tuple[str, str]) -> None:
    error = refusal(name, *languages)
    url = f"{server.url}/OPUS-{name}/moses/{'-'.join(sorted(languages))}.txt.zip"
    assert error.message == f"{name}: OPUS has no such corpus, version or pair of languages: {url}"
    assert "look at https://opus.nlpl.eu" in error.hint
    assert [path for path in cache.rglob("*") if path.suffix != ".lock"] == []


def test_a_name_without_a_version_is_refused() -> None:
    assert refusal("Demo").message == "Demo: give the version of this corpus of OPUS, too"
