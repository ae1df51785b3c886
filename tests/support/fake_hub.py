"""A server on 127.0.0.1 that answers what huggingface_hub asks the hub for, from models in memory."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

Files = Mapping[str, bytes]
Models = Mapping[str, Mapping[str, Files]]
"""Files by name, by revision, by model; revisions such as refs/pr/1 are proposed by the hub's converter."""


def commit(files: Files) -> str:
    """The identifier of a revision with these files."""
    return hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()


@contextmanager
def serve(models: Models) -> Iterator[tuple[str, list[str]]]:
    """Gives the endpoint of a hub with these models, and the list of all requests to it."""
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            """Prints nothing."""

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path).strip("/")
            requests.append(f"{self.command} {path}")
            found = _answer(models, path)
            if found is None:
                code, headers, body = 404, {"X-Error-Code": _reason(models, path)}, b"{}"
            elif isinstance(found, tuple):
                revision, body = found
                code, headers = 200, {"X-Repo-Commit": revision, "ETag": f'"{hashlib.sha1(body).hexdigest()}"'}
            else:
                code, headers, body = 200, {"Content-Type": "application/json"}, json.dumps(found).encode()
            self.send_response(code)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _split(path: str) -> tuple[str, list[str]]:
    """The model that a request is for, and what it asks of it."""
    parts = path.removeprefix("api/models/").split("/")
    return "/".join(parts[:2]), parts[2:]


def _reason(models: Models, path: str) -> str:
    model, rest = _split(path)
    if model not in models:
        return "RepoNotFound"
    return "EntryNotFound" if "resolve" in rest else "RevisionNotFound"


def _answer(models: Models, path: str) -> Any:
    """What the hub knows: JSON, or the revision and the content of a file; None if it is not there."""
    model, asked = _split(path)
    if not asked:  # no question about a model
        return None
    what, *rest = asked
    revisions = models.get(model, {})
    if what == "discussions":
        proposed = [name for name in revisions if name.startswith("refs/pr/")]
        return {"count": len(proposed), "start": 0, "discussions": [_proposal(model, name) for name in proposed]}
    commits = {commit(each): each for each in revisions.values()}
    named = {**commits, **revisions}
    if what == "resolve":
        files = named.get(rest[0], {})
        name = "/".join(rest[1:])
        return (commit(files), files[name]) if name in files else None
    if "/".join(rest) not in named:
        return None
    files = named["/".join(rest)]
    if what == "revision":
        return {"id": model, "sha": commit(files), "siblings": [{"rfilename": name} for name in files]}
    entries = [
        {"type": "file", "path": n, "size": len(c), "oid": hashlib.sha1(c).hexdigest()} for n, c in files.items()
    ]
    return entries if what == "tree" else [entry for entry in entries if entry["path"] == "pytorch_model.bin"]


def _proposal(model: str, revision: str) -> dict[str, Any]:
    return {
        "title": "Adding `safetensors` variant of this model",
        "num": int(revision.removeprefix("refs/pr/")),
        "author": {"name": "SFconvertbot"},
        "createdAt": "2023-03-01T00:00:00.000Z",
        "status": "open",
        "repo": {"name": model, "type": "model"},
        "isPullRequest": True,
    }
