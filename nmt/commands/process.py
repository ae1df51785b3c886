"""A command as a process: its signals, its exit code, and what it says of errors."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import NamedTuple, NoReturn

import click
from click.shell_completion import shell_complete

from nmt.commands.streams import open_standard_streams, release
from nmt.system.errors import TRY_AGAIN, GroupError, Interrupted, UserError, printable

COMPLETE = "_NMT_COMPLETE"
"""The variable by which a shell asks for completion, as in `eval "$(_NMT_COMPLETE=bash_source nmt)"`."""


def run(group: click.Group) -> NoReturn:
    """Runs the command that argv names: exits with 0 if it is done, 1 for a problem of the user's, 2 for usage, and
    128 + signal when stopped."""
    from nmt.system.device import let_waiting_threads_sleep

    open_standard_streams()
    signal.signal(signal.SIGTERM, stop)
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as they are under nohup, or in the background of a script
            signal.signal(number, stop)
    let_waiting_threads_sleep()
    try:
        if instruction := os.environ.get(COMPLETE):  # a shell asks for what the command line may go on with
            raise click.exceptions.Exit(shell_complete(group, {}, "nmt", COMPLETE, instruction))
        with group.make_context("nmt", sys.argv[1:]) as context:  # not group.main: it makes a closed pipe an error
            group.invoke(context)
        sys.stdout.flush()
        code = 0
        _end_at_a_signal()
    except BaseException as error:
        _end_at_a_signal()
        ending = ending_of(error)
        for line in ending.lines:
            with suppress(OSError):  # nobody takes it
                click.echo(line, err=True)
        if "--debug" in sys.argv and ending.traceback:
            raise
        code = ending.code
    for stream in (sys.stdout, sys.stderr):
        release(stream)
    sys.exit(code)


def _end_at_a_signal() -> None:
    """Has a signal end this process at once, for there is nothing left to stop.

    A rank, which is ending and says why, ignores those of its launcher.
    """
    action = signal.SIG_IGN if "RANK" in os.environ else signal.SIG_DFL
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is stop:
            signal.signal(number, action)


class Ending(NamedTuple):
    """How a command ends that did not end well."""

    code: int
    """The exit code."""
    lines: tuple[str, ...] = ()
    """What stderr says."""
    traceback: bool = False
    """Whether --debug shows where it came from."""


def ending_of(error: BaseException) -> Ending:
    """What an error means to the user; click's usage errors are printed here, by click."""
    speaks = os.environ.get("RANK", "0") == "0"  # one process of a group says what all of them would
    match error:
        case UserError():
            return Ending(1, _complaint(error.message, error.hint), traceback=True)
        case GroupError():
            lines = _complaint(error.message, error.hint) if error.message else ()
            return Ending(TRY_AGAIN if error.retry else 1, lines, traceback=error.retry)
        case Interrupted():
            return Ending(128 + error.signal_number, (error.message,) if error.message and speaks else ())
        case KeyboardInterrupt() | click.Abort():
            return Ending(128 + signal.SIGINT, ("interrupted",) if speaks else ())
        case click.exceptions.Exit():
            return Ending(error.exit_code)
        case click.ClickException():
            with suppress(OSError):
                error.show()
            return Ending(error.exit_code)
        case BrokenPipeError():  # the reader, head for one, has enough
            return Ending(0)
        case io.UnsupportedOperation():  # see open_standard_streams
            problem, hint = "stdout is closed, so the result has nowhere to go", "redirect stdout to a file or a pipe"
            return ending_of(UserError(problem, hint))
        case OSError():  # a full disk under stdout, say
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            hint = (
                "free some space" if full else "see that it exists and that you may use it; --debug shows the traceback"
            )
            problem = f"{error.filename or 'input or output'}: {error.strerror or error}"
            return ending_of(UserError(problem, hint))
        case Exception():
            from nmt.system.device import device_error, memory_error

            hint = "run it with --debug and report the traceback: this is a bug of nmt"
            bug = UserError(f"{type(error).__name__}: {error}", hint)
            return ending_of(memory_error(error) or device_error(error) or bug)
    raise error  # SystemExit, say


def _complaint(message: str, hint: str) -> tuple[str, str]:
    """An error and its hint; control characters in what they quote are escaped."""
    return f"error: {printable(message)}", f"hint: {printable(hint)}"


def stop(number: int, frame: FrameType | None) -> None:
    """Handles a signal by raising what ends the command."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise Interrupted("hung up" if number == signal.SIGHUP else "terminated", number)
