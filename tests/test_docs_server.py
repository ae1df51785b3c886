"""The server of docs/deploy.md: what it answers, and which requests are searched together."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from documents import ROOT, blocks

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

JSON, FORM = "application/json", "application/x-www-form-urlencoded"


class Shouting:
    """A model that translates to capitals once it may, and cannot translate `fail`; `searches` has its calls."""

    def __init__(self) -> None:
        self.searches: list[list[str]] = []
        self.may = threading.Event()

    def translate(self, lines: list[str], **languages: str) -> list[str]:
        self.searches.append([*languages.values(), *lines])
        assert self.may.wait(60)
        if "fail" in lines:
            raise RuntimeError
        return [line.upper() for line in lines]


class Server:
    """The page's server with such a model, and its clients."""

    def __init__(self) -> None:
        [code] = [block.text for block in blocks(ROOT / "docs" / "deploy.md") if block.marker("file") == "server.py"]
        self.names: dict[str, Any] = {"__name__": "server"}
        exec(code, self.names)
        self.model = Shouting()

    def run(self, clients: Callable[[Server], Coroutine[Any, Any, Any]]) -> Any:
        async def both() -> Any:
            searching = asyncio.create_task(self.names["search"](self.model))
            try:
                return await clients(self)
            finally:
                self.model.may.set()
                searching.cancel()

        with ThreadPoolExecutor(1) as thread:  # the tests in a browser leave an event loop running in the main thread
            return thread.submit(asyncio.run, both()).result()

    async def post(self, body: bytes, kind: str = FORM, stays: bool = True) -> tuple[int, Any]:
        """Send a request; return status and answer. If the client does not stay, it hangs up right after."""
        answer: list[Any] = []
        received = iter([{"type": "http.request", "body": body}])

        async def receive() -> dict[str, Any]:
            if message := next(received, None):
                return message
            if stays:
                await asyncio.Event().wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            answer.append(message)

        scope = {"type": "http", "method": "POST", "path": "/translate", "headers": [(b"content-type", kind.encode())]}
        with suppress(RuntimeError):  # goes on to uvicorn, which logs it
            await self.names["app"](scope, receive, send)
        return answer[0]["status"], json.loads(answer[1]["body"])

    async def ask(self, text: str, stays: bool = True) -> tuple[int, Any]:
        return await self.post(f"source=en&target=de&q={text}".encode(), stays=stays)

    async def until_searched(self) -> None:
        while not self.model.searches:
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    ("body", "kind", "translated"),
    [
        (b'{"q": "a\\n\\nb c\\n", "source": "en", "target": "de"}', JSON, "A\n\nB C\n"),
        (b'{"q": ["a", "", "b\\nc"], "source": "auto", "target": "de", "format": "text"}', JSON, ["A", "", "B\nC"]),
        (b'{"q": [], "source": "en", "target": "de"}', f"{JSON}; charset=utf-8", []),
        (b"q=a%0Ab+%C3%A9&source=en&target=de&api_key=&alternatives=3", FORM, "A\nB É"),
        (b"q=&source=en&target=de", FORM, ""),
    ],
)
def test_lines_of_texts_are_translated(body: bytes, kind: str, translated: object) -> None:
    server = Server()
    server.model.may.set()
    assert server.run(lambda server: server.post(body, kind)) == (200, {"translatedText": translated})


def test_a_model_of_several_languages_is_told_which() -> None:
    server = Server()
    server.names["TARGETS"] |= {"en": ["de", "fr"]}
    server.model.may.set()
    body = b"q=a&source=auto&target=fr"
    assert server.run(lambda server: server.post(body)) == (200, {"translatedText": "A"})
    assert server.model.searches == [["en", "fr", "a"]]


@pytest.mark.parametrize(
    ("body", "kind", "status", "error"),
    [
        (b'{"q": "caf\xe9", "source": "en", "target": "de"}', JSON, 400, "q must be"),
        (b"q=caf%E9&source=en&target=de", FORM, 400, "q must be"),
        (b'{"q": "\\ud83d", "source": "en", "target": "de"}', JSON, 400, "q must be"),
        (b"[" * 90_000, JSON, 400, "q must be"),
        (b'"q"', JSON, 400, "q must be"),
        (b'{"q": [1], "source": "en", "target": "de"}', JSON, 400, "q must be"),
        (b"source=en&target=de", FORM, 400, "q must be"),
        (b"q=a&source=en&target=fr", FORM, 400, "source must be auto or one of"),
        (b"q=a&source=en&target=de&format=html", FORM, 400, "format text"),
        (b"q=" + b"a" * 100_000, FORM, 413, "longer than 100000 bytes"),
        (
            b"--x\r\n\r\nq\r\n",
            "multipart/form-data; boundary=x",
            415,
            "is multipart/form-data: send application/json or",
        ),
    ],
    ids=range(11),
)
def test_bad_requests_get_an_error_and_are_not_searched(body: bytes, kind: str, status: int, error: str) -> None:
    server = Server()
    found, answer = server.run(lambda server: server.post(body, kind))
    assert (found, list(answer), server.model.searches) == (status, ["error"], [])
    assert error in answer["error"]
    assert "expected" not in answer["error"]  # no message of Python's


def test_requests_that_come_during_a_search_share_the_next_one_unless_they_hang_up() -> None:
    async def clients(server: Server) -> list[tuple[int, Any]]:
        first = asyncio.create_task(server.ask("a"))
        await server.until_searched()
        others = [asyncio.create_task(server.ask(text, stays=text != "gone")) for text in ("b", "gone", "c")]
        while server.names["waiting"].qsize() < len(others):
            await asyncio.sleep(0)
        server.model.may.set()
        answers = await asyncio.gather(first, *others)
        return [answers[0], answers[1], answers[3]]

    server = Server()
    assert server.run(clients) == [(200, {"translatedText": text}) for text in "ABC"]
    assert server.model.searches == [["a"], ["b", "c"]]


def test_a_search_is_limited_in_characters_and_the_queue_in_requests() -> None:
    async def clients(server: Server) -> list[int]:
        tasks = [asyncio.create_task(server.ask("a"))]
        await server.until_searched()
        long = "b" * server.names["TOGETHER"]
        tasks += [asyncio.create_task(server.ask(long)) for _ in range(server.names["waiting"].maxsize + 1)]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        server.model.may.set()
        return [task.result()[0] for task in done] + [status for status, _ in await asyncio.gather(*tasks)]

    server = Server()
    statuses = server.run(clients)
    assert statuses[0] == 503
    assert statuses[1:].count(503) == 1
    assert {len(lines) for lines in server.model.searches} == {1}


def test_after_a_search_that_fails_the_next_one_goes_on() -> None:
    async def clients(server: Server) -> tuple[int, int]:
        return (await server.ask("fail"))[0], (await server.ask("a"))[0]

    server = Server()
    server.model.may.set()
    assert server.run(clients) == (500, 200)
