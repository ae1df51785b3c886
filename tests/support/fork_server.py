"""Starts `nmt` by forking a process that has loaded its modules: a tenth of the time of a new process.

What a test starts by `subprocess`, and what a shell of a test calls `nmt`, is a process of its own all the same: with
the arguments, environment, directory, standard streams and ignored signals that it was given. One that is started by
`subprocess` is also a child of its caller, who waits for it and sends signals to it. Only its modules are loaded before
it begins, and all have the same seed of Python's hashes. The server refuses to start what is given other variables than
it was itself that count while modules are loaded. Such a command is a new process, as is any where there is no server.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import json
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple, NoReturn

TREE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ENVIRONMENT = {**os.environ, "PYTHONPATH": TREE, "TORCH_CPP_LOG_LEVEL": "ERROR"}
"""What a server is started with: not what a test has changed; the log's level as `nmt train` sets it for ranks."""
ADDRESS = "NMT_FORK_SERVER"
"""The variable that tells a shell of the server's socket."""
LOADING = (
    "ATEN_ CUDA_ DNNL_ HF_ HOME KMP_ LANG LC_ LD_ MALLOC_ MKL_ OMP_ ONEDNN_ OPENBLAS_ PYTHON PYTORCH_ "
    "TORCHINDUCTOR_ TORCH_COMPILE TORCH_CPP TORCHDYNAMO_ XDG_"
)
"""How the names of variables begin that are read while modules are loaded."""
NOT_LOADING = ("PYTHONPATH", "PYTHONSAFEPATH", "TORCHINDUCTOR_CACHE_DIR", "KMP_INIT_AT_FORK", "TORCH_CPP_LOG_LEVEL")
"""Those among them that are read later, or need not be the server's. Importing torch._dynamo sets the second one, and
sacremoses the third."""
AVAILABLE = sys.platform == "linux" and hasattr(subprocess, "_fork_exec")
COSTLY = (  # to import; torch._dynamo is imported by optimizers
    *("torch._dynamo", "datasets.arrow_writer", "safetensors.torch", "sacrebleu", "sentencepiece"),
    *("nmt.cli", "nmt.data.prepare", "nmt.training.start"),
    *(f"nmt.commands.{name}" for name in ("score", "translate", "train")),
)
SIGNALS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP


class Server(NamedTuple):
    """A server that runs."""

    process: int
    address: str


class Request(NamedTuple):
    """A command to be started."""

    arguments: list[str]
    environment: dict[str, str]
    open_streams: list[int]  # which of the standard streams are open
    ignored: list[int]  # signals
    new_session: bool
    from_shell: bool  # whether the caller waits at the socket for the exit code, and is not the parent


def ignored_signals() -> list[int]:
    return [number for number in SIGNALS if signal.getsignal(number) is signal.SIG_IGN]


def ask(address: str, request: Request, directory: str, streams: Sequence[int]) -> socket.socket:
    """Has the server start a command. The socket tells its process id, or 0 if the server refused."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(f"\0{address}")
    folder = os.open(directory, os.O_RDONLY)
    socket.send_fds(connection, [b"\n"], [folder, *streams])
    os.close(folder)
    connection.sendall(json.dumps(request).encode() + b"\n")
    return connection


# --- callers: subprocess, and a shell -----------------------------------------------------------------------


def serve_subprocess(find: Callable[[], Server]) -> None:
    """Has the subprocesses of this process that are `python -m nmt`, or ranks, be started by a server."""
    if not AVAILABLE:
        return
    from nmt.system.processes import command

    original = subprocess._fork_exec  # type: ignore[attr-defined]
    starts = [sys.executable, "-m", "nmt"], command("nmt")

    def fork_exec(*given: Any) -> int:
        call = [os.fsdecode(part) for part in given[0]]
        directory, environment, stdin, stdout, stderr = (given[index] for index in (4, 5, 6, 9, 11))
        new_session, *others = given[15:22]
        start = next((start for start in starts if call[: len(start)] == start), None)
        if start is None or others != [-1, None, None, None, -1, None]:
            return int(original(*given))
        pairs = os.environb.items() if environment is None else (pair.split(b"=", 1) for pair in environment)
        variables = {os.fsdecode(name): os.fsdecode(value) for name, value in pairs}
        streams = [own if stream == -1 else stream for own, stream in enumerate((stdin, stdout, stderr))]
        arguments, ignored = call[len(start) :], ignored_signals()
        request = Request(arguments, variables, [0, 1, 2], ignored, bool(new_session), from_shell=False)
        with ask(find().address, request, os.fsdecode(directory or "."), streams) as connection:
            return int(connection.makefile().readline()) or int(original(*given))

    subprocess._fork_exec = fork_exec  # type: ignore[attr-defined]


def for_shells() -> tuple[str, dict[str, str]]:
    """A shell's function `nmt` that has the server of this process start the command, and the variable it needs."""
    if not AVAILABLE:
        return "", {}
    return f'nmt() (exec {shlex.join([sys.executable, "-IS", __file__, "call"])} "$@")\n', {ADDRESS: server().address}


def call_from_shell(arguments: list[str]) -> NoReturn:
    """Is `nmt ARGUMENTS` for the shell that started this process, as a new process if the server refuses."""
    if address := os.environ.get(ADDRESS):
        streams = [number for number in range(3) if os.path.exists(f"/dev/fd/{number}")]
        request = Request(arguments, dict(os.environ), streams, ignored_signals(), new_session=False, from_shell=True)
        answer = ask(address, request, ".", streams).makefile()
        if answer.readline() != "0\n":
            code = int(answer.readline())
            if code < 0:
                with suppress(OSError):  # there are signals that none may handle
                    signal.signal(-code, signal.SIG_DFL)
                os.kill(os.getpid(), -code)
            os._exit(code)
    os.execl(sys.executable, sys.executable, "-m", "nmt", *arguments)


# --- the server ---------------------------------------------------------------------------------------------


@cache
def server() -> Server:
    """The server of this process."""
    return start(ENVIRONMENT)


def start(environment: Mapping[str, str]) -> Server:
    """Starts a server for commands with these variables, as far as they count while modules are loaded.

    It ends with this process.
    """
    theirs, _ours = os.pipe()  # our end stays open as long as this process lives
    command = [sys.executable, __file__, "serve"]
    started = subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, text=True, env=environment)
    os.close(theirs)
    address = started.stdout.readline().strip() if started.stdout else ""
    assert address, "the server of forks has not begun"
    return Server(started.pid, address)


def main() -> None:
    """Is the server, and every command that it starts: each returns from here."""
    from nmt.system.device import let_waiting_threads_sleep

    environment = dict(os.environ)
    let_waiting_threads_sleep()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the Ctrl-C of those who run the tests
    for name in COSTLY:  # nothing may compute or start a thread, since forks have none of its threads
        importlib.import_module(name)
    let_workers_save()
    gc.collect()
    gc.freeze()  # else the first collection in each fork would copy the pages of all these objects
    listener, address = listen()
    print(address, flush=True)
    begun = serve(listener, os.dup(0), environment)
    if begun and begun.request.arguments[:1] == ["train"] and "--devices" in begun.request.arguments:
        begun = serve_workers(begun, environment)
    if begun is None:
        os._exit(0)
    run(begun)


class Begun(NamedTuple):
    """A forked process that is to become a command."""

    request: Request
    descriptors: list[int]  # its directory and its open standard streams


def listen() -> tuple[socket.socket, str]:
    """A socket, and its address, which the system chooses."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("")
    listener.listen()
    return listener, str(listener.getsockname()[1:].decode())


def serve(listener: socket.socket, until: int, environment: Mapping[str, str]) -> Begun | None:
    """Starts commands until the other end of the pipe `until` is closed.

    Returns in each that is started, and None in the server at its end.
    """
    while listener.fileno() in select.select([listener.fileno(), until], [], [])[0]:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            os.close(until)
            return begin(connection, environment)
        connection.close()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    return None


def begin(connection: socket.socket, environment: Mapping[str, str]) -> Begun:
    """Forks what is to become a command. This process, in between, ends, so that the caller becomes its parent."""
    _, descriptors, _, _ = socket.recv_fds(connection, 1, 4)
    begun = Begun(Request(*json.loads(connection.makefile().readline())), descriptors)
    if of_loading(begun.request.environment) != of_loading(environment):
        connection.sendall(b"0\n")
        os._exit(0)
    between = os.getpid()
    if (child := os.fork()) == 0:
        while not begun.request.from_shell and os.getppid() == between:
            time.sleep(0.0005)
        if begun.request.new_session:
            os.setsid()
        connection.sendall(b"%d\n" % os.getpid())
        connection.close()
        return begun
    if begun.request.from_shell:
        wait_for(child, connection)
    os._exit(0)


def of_loading(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that count while modules are loaded."""
    beginnings = tuple(LOADING.split())
    return {
        name: value for name, value in environment.items() if name.startswith(beginnings) and name not in NOT_LOADING
    }


def wait_for(child: int, connection: socket.socket) -> None:
    """Tells a shell the exit code of a command, which is killed when the shell's process is."""
    ended = os.pidfd_open(child)
    if ended not in select.select([ended, connection.fileno()], [], [])[0]:
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(OSError):
        connection.sendall(b"%d\n" % code)


def serve_workers(begun: Begun, environment: Mapping[str, str]) -> Begun | None:
    """Gives a command that launches workers a server of its own, so that they are children of the command.

    Returns in the command, in each worker, and None in that server at its end.
    """
    (listener, address), (theirs, ours) = listen(), os.pipe()
    if (process := os.fork()) == 0:
        for descriptor in (ours, *begun.descriptors):
            os.close(descriptor)
        return serve(listener, theirs, environment)
    os.close(theirs)
    become_subreaper()
    serve_subprocess(lambda: Server(process, address))
    listener.close()
    return begun


def become_subreaper() -> None:
    """Has processes whose parent has died become children of this process, if they descend from it."""
    import ctypes

    subreaper = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
    ctypes.CDLL(None).prctl(subreaper, 1)


def let_workers_save() -> None:
    """Has workers of a search end by themselves if coverage is measured; they are else killed before they can save."""
    if "COVERAGE_PROCESS_CONFIG" not in os.environ:
        return
    from nmt.decoding.workers import Workers

    kill = Workers.close

    def close(self: Workers) -> None:
        for worker in self._workers:
            worker.connection.close()  # as the end of this process would; the worker then calls os._exit
        for worker in self._workers:
            worker.process.join(20.0)  # seconds
        kill(self)

    Workers.close = close  # type: ignore[method-assign]


# --- a command ----------------------------------------------------------------------------------------------


def run(begun: Begun) -> None:
    """Is the command in this process, as `python -m nmt` is it in a new one."""
    import runpy

    request, (folder, *streams) = begun
    os.fchdir(folder)
    for number in range(3):
        os.close(number)
    for number, stream in zip(request.open_streams, streams, strict=True):
        os.dup2(stream, number)
    for descriptor in begun.descriptors:
        os.close(descriptor)
    sys.argv = ["nmt", *request.arguments]
    open_streams(request.open_streams)
    os.environ.clear()
    os.environ.update(request.environment)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN if number in request.ignored else signal.SIG_DFL)
    if signal.SIGINT not in request.ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    set_paths(request)
    try:
        runpy.run_module("nmt", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            end(ended.code or 0)
        raise


def end(code: int) -> NoReturn:
    """Ends this process as Python does, except that it takes no module apart: this would copy all their pages."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, ValueError):  # there is none, or it is closed
            pass
        except OSError:
            code = 120  # as Python ends then
    os._exit(code & 255)


def open_streams(open_ones: Sequence[int]) -> None:
    """Makes sys.stdin, sys.stdout and sys.stderr as Python does when it starts: None where one is closed."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        before, stream = getattr(sys, name), None
        if number in open_ones:
            unbuffered = number > 0 and before.write_through  # by PYTHONUNBUFFERED
            binary = open(number, "wb" if number else "rb", buffering=0 if unbuffered else -1, closefd=False)  # noqa: SIM115
            how = {"line_buffering": before.line_buffering, "write_through": before.write_through}
            newline = "\n" if number else None
            stream = io.TextIOWrapper(binary, before.encoding, before.errors, newline, **how)
            stream.mode = "w" if number else "r"  # type: ignore[misc]
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def set_paths(request: Request) -> None:
    """Sets where modules are looked for; and does what a folder of PYTHONPATH has Python do when it starts."""
    import site

    known = set(sys.path)
    sys.path[0] = os.path.dirname(sys.executable) if request.from_shell else os.getcwd()
    added = [path for path in request.environment.get("PYTHONPATH", "").split(os.pathsep) if path not in known]
    if added:
        sys.path[1:1] = added
        site.execsitecustomize()


if __name__ == "__main__":
    mode, *arguments = sys.argv[1:]
    if mode == "call":
        call_from_shell(arguments)
    main()
