"""A stand-in for OPUS at 127.0.0.1: archives as its object store serves them, and the faults of networks."""

from __future__ import annotations

import hashlib
import io
import re
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def moses_zip(stem: str, texts: Mapping[str, str]) -> bytes:
    """An archive of texts by language, with the other members that those of OPUS have."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("README", "A corpus.\n")
        archive.writestr("LICENSE", "CC0\n")
        for language, text in texts.items():
            archive.writestr(f"{stem}.{language}", text)
        archive.writestr(f"{stem}.xml", "<cesAlign/>\n")
    return written.getvalue()


class OpusServer(ThreadingHTTPServer):
    """What it serves, and what it was asked for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.archives: dict[str, bytes] = {}
        """By path, such as /OPUS-Demo/v1/moses/de-en.txt.zip"""
        self.cuts: list[int] = []
        """After so many bytes of a body the connection is cut; one number for each of the next requests of archives"""
        self.knows_ranges = True
        self.asked: list[str] = []
        """Method, path and range of each request of an archive, such as `GET /OPUS-… bytes=5-`"""


class _Handler(BaseHTTPRequestHandler):
    server: OpusServer

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        wanted = self.headers.get("Range")
        self.server.asked.append(" ".join(filter(None, (self.command, self.path, wanted))))
        content = self.server.archives.get(self.path)
        if content is None:
            self._send(404, b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>NoSuchKey</Code></Error>', {})
            return
        about = {"ETag": f'"{hashlib.md5(content).hexdigest()}"', "Accept-Ranges": "bytes"}
        about["Last-Modified"] = "Tue, 06 Jul 2021 10:12:14 GMT"
        asked_range = re.fullmatch(r"bytes=(\d+)-", wanted or "")
        if asked_range is None or not self.server.knows_ranges:
            self._send(200, content, about)
        elif (begin := int(asked_range[1])) >= len(content):
            self._send(416, b"", {"Content-Range": f"bytes */{len(content)}"})
        else:
            about["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
            self._send(206, content[begin:], about)

    def _send(self, status: int, body: bytes, about: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {**about, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            cuts = self.server.cuts if "ETag" in about else []
            self.wfile.write(body[: cuts.pop(0)] if cuts else body)  # HTTP/1.0: the connection is closed now

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def opus_server() -> Iterator[OpusServer]:
    """Serve until the block ends."""
    with OpusServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
