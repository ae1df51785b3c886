"""Names of the hub: what is downloaded, from which revision, and what is said of one that cannot be had."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fake_hub import commit, serve

PROGRAM = """
import json, sys
from pathlib import Path
from nmt.bundle.hub import fetch
from nmt.errors import UserError
for name in sys.stdin:
    try:
        print(json.dumps(str(fetch(Path(name.strip())))), flush=True)
    except UserError as error:
        print(json.dumps([error.message, error.hint]), flush=True)
"""
SAFE = {"config.json": b"{}", "source.spm": b"s", "vocab.json": b"{}", "model.safetensors": b"w", "tf_model.h5": b"t"}
PICKLED = {"config.json": b"{}", "source.spm": b"s", "pytorch_model.bin": b"w"}
CONVERTED = {**PICKLED, "model.safetensors": b"converted"}
MODELS = {
    "org/safe": {"main": SAFE, "old": {**SAFE, "model.safetensors": b"old"}},
    "org/pickled": {"main": PICKLED},
    "org/proposed": {"main": PICKLED, "refs/pr/7": CONVERTED},
    "org/changed": {"main": {**PICKLED, "pytorch_model.bin": b"new"}, "refs/pr/2": CONVERTED},
}


PICKLE = "has no model.safetensors, and nmt does not unpickle pytorch_model.bin"
REFUSED = {
    "hf:org/pickled": PICKLE,
    "hf:org/changed": PICKLE,
    "hf:org/proposed@main": PICKLE,
    "hf:org/safe@none": "the model has no revision none",
    "hf:org/none": "the hub has no such model, or none that you may read",
    "hf:safe": "is no name of a model on the Hugging Face hub",
}
Fetch = Callable[[str], str | list[str]]


@contextmanager
def fetching(cache: Path, endpoint: str, **environment: str) -> Iterator[Fetch]:
    """Gives `fetch` in a process of its own, as it returns a folder, or an error's message and hint.

    That process must show no progress of downloads, as its stderr is no terminal.
    """
    variables = {"HF_ENDPOINT": endpoint, "HF_HOME": str(cache), "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0"}
    variables |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", **environment}
    command = [sys.executable, "-c", PROGRAM]
    pipe = subprocess.PIPE
    streams = {"stdin": pipe, "stdout": pipe, "stderr": pipe}
    with subprocess.Popen(command, env={**os.environ, **variables}, text=True, **streams) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr

        def fetch(name: str) -> str | list[str]:
            print(name, file=process.stdin, flush=True)
            found: str | list[str] = json.loads(process.stdout.readline())
            return found

        yield fetch
        process.stdin.close()
        assert "%|" not in process.stderr.read()


def test_names_of_the_hub(tmp_path: Path) -> None:
    with serve(MODELS) as (endpoint, requests), fetching(tmp_path, endpoint) as fetch:
        for name, weights in (("safe", b"w"), ("safe@old", b"old"), ("proposed", b"converted")):
            assert (Path(str(fetch(f"hf:org/{name}"))) / "model.safetensors").read_bytes() == weights
        folder = Path(str(fetch("hf:org/safe")))
        assert folder.name == commit(SAFE)
        assert {path.name for path in folder.iterdir()} == SAFE.keys() - {"tf_model.h5"}
        for name, message in REFUSED.items():
            assert fetch(name)[0] == f"{name}: {message}"
        assert "from_pretrained('org/pickled').save_pretrained('pickled')" in fetch("hf:org/pickled")[1]
        assert not [request for request in requests if request.endswith((".bin", ".h5"))]


def test_without_the_hub_the_cache_serves(tmp_path: Path) -> None:
    with serve(MODELS) as (endpoint, _), fetching(tmp_path, endpoint) as fetch:
        found = [fetch(f"hf:org/{name}") for name in ("safe", "proposed")]
    with fetching(tmp_path, endpoint, HF_HUB_OFFLINE="1") as fetch:
        assert [fetch(f"hf:org/{name}") for name in ("safe", "proposed")] == found
        message, hint = fetch("hf:org/other")
        assert message == f"hf:org/other: is not in {tmp_path}/hub, and cannot be downloaded: HF_HUB_OFFLINE is set"
        assert "hf download org/other" in hint
        assert "models--org--other" in hint
