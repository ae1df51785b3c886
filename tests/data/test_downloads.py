"""Data sets named by an address: downloaded once, checked, kept, and never needed again once data is prepared."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from prepared import OUT, QUIET, recipe, report, table

from nmt.data.prepare import prepare
from nmt.recipe import Recipe
from nmt.system.console import Console
from nmt.system.errors import UserError

pytestmark = pytest.mark.usefixtures("workplace")


class Server(ThreadingHTTPServer):
    """A server of this machine with one table of training pairs."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[str] = []
        server = self

        class Handler(SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked.append(self.path)
                super().do_GET()

            def log_message(self, *given: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
        sides = (Path(name).read_text().splitlines() for name in ("a.en", "a.de"))
        self.content = "".join(f"{one}\t{other}\n" for one, other in zip(*sides, strict=True)).encode()
        (folder / "pairs.tsv").write_bytes(self.content)
        self.sha256 = sha256(self.content).hexdigest()

    def address(self, name: str = "pairs.tsv") -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"

    def recipe(self, **dataset: Any) -> Recipe:
        """A recipe that trains on the table."""
        return recipe(data={"train": [{"file": self.address(), **dataset}]})


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "served").mkdir()
    with Server(tmp_path / "served") as server:
        thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def kept() -> list[Path]:
    """What is in the folder of downloads, except the lock."""
    return [path for path in Path("data/_downloads").iterdir() if path.name != ".lock"]


def test_a_file_is_downloaded_once_and_is_the_same_data(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    prepare(recipe(), QUIET, 1)
    before = table("train")
    shutil.rmtree(OUT)
    assert prepare(server.recipe(sha256=server.sha256.upper()), Console(), 1).is_new
    assert table("train").equals(before)
    (path,) = kept()
    assert path.name.endswith("-pairs.tsv")
    assert path.read_bytes() == server.content
    assert report("train")["downloaded"] == {server.address(): str(path)}
    assert "downloaded" not in report("valid")
    said = capsys.readouterr().err
    assert f"downloading {server.address()}\n" in said
    assert f"downloaded {path}, sha256 {server.sha256}\n" in said
    assert f"  train downloaded from {server.address()}: {path}\n" in said
    prepare(recipe(tokenizer={"vocab_size": 301}, data={"train": [{"file": server.address()}]}), QUIET, 1)
    shutil.rmtree("data/_downloads")
    # The hash, which is given or not, and the file itself do not matter to what is prepared.
    prepared = [prepare(server.recipe(sha256=each), QUIET, 1).is_new for each in (None, server.sha256)]
    assert (prepared, server.asked) == ([False, False], ["/pairs.tsv"])


def test_another_address_of_the_same_name_is_other_data(server: Server, tmp_path: Path) -> None:
    prepare(server.recipe(), QUIET, 1)
    (tmp_path / "served/new").mkdir()
    (tmp_path / "served/new/pairs.tsv").write_bytes(
        server.content[: server.content.index(b"\n", len(server.content) // 2) + 1]
    )
    prepare(server.recipe(file=server.address("new/pairs.tsv?version=2")), QUIET, 1)
    assert server.asked == ["/pairs.tsv", "/new/pairs.tsv?version=2"]
    assert 0 < report("train")["read"] < 120


@pytest.mark.parametrize("is_here", [False, True])
def test_a_file_with_another_hash_is_refused(server: Server, is_here: bool) -> None:
    if is_here:
        prepare(server.recipe(), QUIET, 1)
    with pytest.raises(UserError) as caught:
        prepare(server.recipe(sha256="0" * 64), QUIET, 1)
    name = str(kept()[0]) if is_here else server.address()
    assert caught.value.message == f"{name}: has sha256 {server.sha256}, and the recipe says {'0' * 64}"
    assert str(caught.value.hint).endswith("what you remove from data/_downloads is downloaded again")
    assert len(kept()) == is_here  # what is refused is not kept


def test_a_file_of_this_machine_may_have_a_hash_as_well(server: Server) -> None:
    shutil.copy("served/pairs.tsv", "own.tsv")
    assert prepare(server.recipe(file="own.tsv", sha256=server.sha256), QUIET, 1).is_new
    with pytest.raises(UserError, match=r"own\.tsv: has sha256 .*, and the recipe says 1{64}"):
        prepare(server.recipe(file="own.tsv", sha256="1" * 64), QUIET, 1)


@pytest.mark.parametrize("fault", ["missing", "unreachable", "offline"])
def test_what_cannot_be_downloaded_is_one_error(server: Server, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between tries
    address, reason = server.address("other.tsv"), "the server answers 404"
    if fault == "unreachable":
        with socket.create_server(("127.0.0.1", 0)) as listening:
            address, reason = f"http://127.0.0.1:{listening.getsockname()[1]}/pairs.tsv", "refused"
    elif fault == "offline":
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        reason = "offline mode is enabled"
    with pytest.raises(UserError) as caught:
        prepare(server.recipe(file=address), QUIET, 1)
    assert caught.value.message.startswith(f"{address}: cannot be downloaded: ")
    assert reason in caught.value.message
    assert "name it by file: NAME" in str(caught.value.hint)
    assert kept() == []
    assert not OUT.exists()


def test_what_is_interrupted_leaves_nothing(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(address: str, file: Any, **given: object) -> None:
        file.write(b"half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr("huggingface_hub.file_download.http_get", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare(server.recipe(), QUIET, 1)
    assert kept() == []
