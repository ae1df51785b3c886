"""Download corpora of OPUS, the collection at https://opus.nlpl.eu, as Moses archives of two languages.

An archive has its name in the cache only after its texts have been read to their ends. An interrupted download is
resumed, unless the server's file has changed meanwhile.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
from collections.abc import Sequence
from glob import escape
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

from nmt.system.compression import members
from nmt.system.console import Console
from nmt.system.errors import UserError
from nmt.system.files import LARGEST, exclusive
from nmt.text.lines import count_lines

FILES, PAGES = "https://object.pouta.csc.fi", "https://opus.nlpl.eu"
"""Hosts of the archives, and of the API that lists them; the environment variable NMT_OPUS_URL replaces both"""
PATIENCE = 60.0  # seconds to wait for the server
BLOCK = 1 << 16  # bytes read at a time: what an interruption loses
MOST = 12  # maximum names of corpora in a hint
UNREACHED = (OSError, HTTPException, ValueError)  # ValueError: NMT_OPUS_URL is not a URL


class Archive:
    """The Moses archive of a corpus with its version, such as Europarl/v8, for two languages.

    Its `path` in the cache is, for example, ~/.cache/nmt/opus/Europarl/v8/de-en.txt.zip.
    """

    def __init__(self, name: str, languages: Sequence[str]) -> None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "nmt" / "opus"
        self._name, self._languages = name, sorted(languages)
        self._pair = quote("-".join(self._languages), safe="")
        self.path = cache / name / f"{self._pair}.txt.zip"
        self._lock = cache / f".{name.replace('/', '@')}@{self._pair}.lock"
        self._url = _url(FILES, f"OPUS-{quote(name)}/moses/{self.path.name}")

    def download(self, console: Console) -> bool:
        """Download the archive unless it is in the cache; return whether it was not.

        If another process is downloading it, wait. Raise UserError if OPUS cannot be reached, the archive is damaged,
        or OPUS has no such corpus, version or pair of languages; the hint has those that exist.
        """
        if self.path.exists():
            return False
        if "/" not in self._name:
            raise UserError(f"{self._name}: give the version of this corpus of OPUS, too", self._offers())
        with exclusive(self._lock, str(self.path), console.say, wait=True):
            if not self.path.exists():  # otherwise another process has downloaded it
                part = self._receive(console)
                self._check(part)
                part.replace(self.path)
                console.say(f"downloaded {self._name} from OPUS: {self.path}")
        return True

    def _receive(self, console: Console) -> Path:
        """Download to a file beside `path` and return it; try again as long as each attempt receives something."""
        done = 0
        while True:
            try:
                return self._resume(console)
            except UNREACHED as error:
                if getattr(error, "code", None) == 404:
                    problem = f"{self._name}: OPUS has no such corpus, version or pair of languages: {self._url}"
                    raise UserError(problem, self._offers()) from None
                reason = " ".join(str(error).split()) or type(error).__name__
            before, done = done, sum(part.stat().st_size for part in self._parts())
            if done <= before:
                raise UserError(
                    f"{self._name}: cannot be downloaded from {self._url}, after {done:,} bytes: {reason}",
                    f"run the same command again, which continues there; or copy the file to {self.path}",
                )

    def _resume(self, console: Console) -> Path:
        """Make one attempt at downloading what is missing; return the complete file.

        Raise one of UNREACHED if it is interrupted. The file's name has a hash of what the server says of its version.
        """
        with urlopen(Request(self._url, method="HEAD"), timeout=PATIENCE) as response:
            version = [response.headers[key] for key in ("ETag", "Last-Modified", "Content-Length")]
        mark = hashlib.sha256(json.dumps(version).encode()).hexdigest()[:16]
        part, total = self.path.with_name(f"{self.path.name}.{mark}.part"), int(version[-1] or 0)
        for other in self._parts():
            if other != part:
                other.unlink()
        part.parent.mkdir(parents=True, exist_ok=True)
        # The last byte is requested again, since servers refuse the empty range at the end of a file.
        begin = max(part.stat().st_size - 1, 0) if part.exists() else 0
        request = Request(self._url, headers={"Range": f"bytes={begin}-"} if begin else {})
        with urlopen(request, timeout=PATIENCE) as response:
            begin = begin if response.status == 206 else 0
            task = console.progress(f"downloading {self._name}", total >> 10 or None, "KiB", begin >> 10)
            with part.open("r+b" if begin else "wb") as file, task as advance:
                file.seek(begin)
                while block := response.read(BLOCK):
                    file.write(block)
                    advance(len(block) >> 10)
        if part.stat().st_size < total:
            raise ConnectionError(f"the connection was closed before byte {total:,}")
        return part

    def _parts(self) -> list[Path]:
        """Return the unfinished downloads: that of the current version, or of another one."""
        return list(self.path.parent.glob(f"{escape(self.path.name)}.*.part"))

    def _check(self, part: Path) -> None:
        """Read the texts to their ends; if that fails, delete the file and raise UserError."""
        try:
            for member in members(part, self._languages):
                count_lines(member)
        except UserError as error:
            part.unlink()
            problem = f"{self._name}: {self._url} is damaged, and was deleted here: {error.message}"
            raise UserError(problem, "run this again; if it is damaged there, take another version or corpus") from None

    def _offers(self) -> str:
        """Return a hint with the versions of the corpus or, if there are none, corpora with similar names."""
        corpus, pair = self._name.partition("/")[0], dict(zip(("source", "target"), self._languages, strict=True))
        try:
            archives = _ask(corpus=corpus, preprocessing="moses", **pair)
            if found := {f"{each['corpus']}/{each['version']}" for each in archives}:
                return f"for {self._pair} OPUS has {', '.join(sorted(found))}"
            corpora = [str(each) for each in _ask(corpora="True", **pair)]
            if near := difflib.get_close_matches(corpus, corpora, MOST, 0.5) or corpora[:MOST]:
                return f"of the {len(corpora):,} corpora that OPUS has for {self._pair} take {' or '.join(near)}"
        except (*UNREACHED, LookupError, TypeError, RecursionError):  # the API is down at times
            pass
        return f"look at {PAGES} for corpora, versions and languages, and write {{opus: CORPUS/VERSION}}"


def _ask(**query: str) -> Any:
    """Return the list of corpora, or of their archives, with which the API of OPUS answers."""
    with urlopen(_url(PAGES, f"opusapi/?{urlencode(query)}"), timeout=PATIENCE) as response:
        return json.loads(response.read(LARGEST))["corpora"]


def _url(host: str, path: str) -> str:
    return f"{(os.environ.get('NMT_OPUS_URL') or host).rstrip('/')}/{path}"
