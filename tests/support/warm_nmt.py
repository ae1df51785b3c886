"""The command `nmt` without its start-up: a server that has imported everything forks a process for each command.

A command is a process of its own with its own standard streams, so that pipes work as in any shell. Run as a program,
this file is the server: `python warm_nmt.py SOCKET`.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import NoReturn

CLIENT = """\
#!{python} -IS
import json, os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
asked = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(server, [len(asked).to_bytes(4, "big")], [0, 1, 2])
server.sendall(asked)
answer = server.recv(1)
os._exit(answer[0] if answer else 1)
"""

IMPORTED = (
    *("datasets", "sacrebleu", "safetensors.torch", "torch._dynamo", "torch.distributed.run"),
    *("nmt.cli", "nmt.bundle.hub", "nmt.bundle.huggingface", "nmt.data.prepare", "nmt.metrics.bleu"),
    *("nmt.metrics.brackets", "nmt.search.engine", "nmt.search.phrases", "nmt.training.averaging"),
    *("nmt.training.run", "nmt.terminal.scoring", "nmt.terminal.searching", "nmt.terminal.training"),
)
"""What commands import when they run."""
SMALL = {
    "training.updates": 10,
    "training.batch_tokens": 1200,
    "training.warmup": 10,
    "training.checkpoint_updates": 5,
    "training.log_updates": 5,
    "training.valid_beam": 1,
}
SMALL_MODEL = {
    "tokenizer.vocab_size": 400,
    "model.layers": 1,
    "model.d_model": 32,
    "model.d_ff": 64,
    "model.heads": 2,
}


def shrunk(arguments: Sequence[str]) -> list[str]:
    """The arguments of a command, with settings that make a training of it end within a second.

    A model that training starts from keeps its shape.
    """
    if not {"train", "preprocess"} & set(arguments[:1]) or "--plan" in arguments:
        return list(arguments)
    recipes = [Path(name) for name in arguments if name.endswith(".yaml")]
    said = " ".join([*arguments, *(path.read_text() for path in recipes if path.is_file())])
    settings = SMALL if "init_from" in said else SMALL | SMALL_MODEL
    return [*arguments, *(part for key, value in settings.items() for part in ("--set", f"{key}={value}"))]


@contextmanager
def warm(folder: Path, **variables: str) -> Iterator[Path]:
    """Gives a folder for the front of PATH, whose `nmt` asks a server that runs until the block ends.

    The server has these environment variables in addition to ours, for packages that read them when they are imported.
    """
    folder.mkdir()
    address = str(folder / "socket")
    client = folder / "nmt"
    client.write_text(CLIENT.format(python=sys.executable, address=address))
    client.chmod(0o755)
    ready, said = os.pipe()
    server = subprocess.Popen(
        [sys.executable, __file__, address, str(said)],
        pass_fds=[said],
        stdin=subprocess.DEVNULL,
        env={**os.environ, **variables},
    )
    os.close(said)
    try:
        if not os.read(ready, 1):
            raise RuntimeError("the server of commands did not start")
        yield folder
    finally:
        os.close(ready)
        server.terminate()
        server.wait()


def serve(address: str, ready: int) -> NoReturn:
    """Imports what commands need, then runs commands for ever."""
    import torch

    import nmt.device

    nmt.device.cores = lambda: 1  # before others import it: threads and workers would gain nothing for tiny commands
    for name in IMPORTED:
        import_module(name)
    torch.set_num_threads(1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended commands vanish
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen(64)
        os.write(ready, b"+")
        while True:
            connection, _ = server.accept()
            if not os.fork():
                server.close()
                os._exit(answer(connection))
            connection.close()


def answer(connection: socket.socket) -> int:
    """Runs the command that a client asks for, in this process, which was forked for it; tells its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    header, streams, _, _ = socket.recv_fds(connection, 4, 3)
    asked = b""
    while len(asked) < int.from_bytes(header, "big") and (part := connection.recv(1 << 16)):
        asked += part
    arguments, folder, environment = json.loads(asked)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["nmt", *shrunk(arguments)]
    from nmt import cli

    code = 1
    try:
        cli.main()
    except SystemExit as ended:
        code = int(ended.code or 0)
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        connection.sendall(bytes([code & 255]))
    return code


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    serve(sys.argv[1], int(sys.argv[2]))
