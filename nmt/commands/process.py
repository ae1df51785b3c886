"""Run a command as a process: signals, exit codes, error messages, standard streams; lines in and out."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType
from typing import IO, NamedTuple, NoReturn

import click
from click.shell_completion import shell_complete

from nmt.commands.command_line import Command
from nmt.system.compression import compressed
from nmt.system.console import Console, shown
from nmt.system.errors import TRY_AGAIN, GroupError, Interrupted, UserError, printable_lines
from nmt.system.files import no_temporary_directory, unwritable_name, whole_file
from nmt.system.launchers import stated_rank
from nmt.text.lines import count_lines, count_rest, decoded, read_lines

COMPLETE = "_NMT_COMPLETE"
"""Environment variable by which a shell requests completion: `eval "$(_NMT_COMPLETE=bash_source nmt)"`"""


def run(group: click.Group) -> NoReturn:
    """Run the command that `sys.argv` names, and exit.

    The exit code is 0 for success, 1 for an error, 2 for wrong usage, and 128 + N after signal N.
    """
    from nmt.system.device import let_waiting_threads_sleep

    open_standard_streams()
    signal.signal(signal.SIGTERM, stop)
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # keep it ignored under nohup and in background jobs
            signal.signal(number, stop)
    let_waiting_threads_sleep()
    try:
        instruction = os.environ.get(COMPLETE)
        if instruction:
            raise click.exceptions.Exit(shell_complete(group, {}, "nmt", COMPLETE, instruction))
        with group.make_context("nmt", sys.argv[1:]) as context:  # group.main treats a closed pipe as an error
            group.invoke(context)
        sys.stdout.flush()
        code = 0
        _restore_signals()
    except BaseException as error:
        _restore_signals()
        ending = ending_of(error)
        for line in ending.lines:
            with suppress(OSError):  # stderr may be closed
                click.echo(shown(line, sys.stderr), err=True)
        if "--debug" in sys.argv and ending.code in (1, TRY_AGAIN):
            raise
        code = ending.code
    for stream in (sys.stdout, sys.stderr):
        release(stream)
    sys.exit(code)


def _restore_signals() -> None:
    """Restore default signal handling, or ignore signals in a rank, which may get them while it reports an error."""
    action = signal.SIG_IGN if stated_rank(os.environ) else signal.SIG_DFL
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is stop:
            signal.signal(number, action)


class Ending(NamedTuple):
    """Exit code and message of a command that was stopped or failed; an error has a hint."""

    code: int
    message: str = ""
    hint: str = ""

    @property
    def lines(self) -> list[str]:
        """Lines to print"""
        if self.hint:
            return [f"error: {self.message}", f"hint: {self.hint}"]
        return self.message.splitlines()


def ending_of(error: BaseException) -> Ending:
    """Return the exit code and message for an exception."""
    reports = stated_rank(os.environ) in ("", "0")  # only rank 0 reports
    match error:
        case UserError():
            return Ending(1, error.message, error.hint)
        case GroupError():  # without a message, another rank has reported the cause
            return Ending(TRY_AGAIN if error.retry else 1, error.message, error.message and error.hint)
        case Interrupted():
            return Ending(128 + error.signal_number, error.message if reports else "")
        case KeyboardInterrupt() | click.Abort():
            return Ending(128 + signal.SIGINT, "interrupted" if reports else "")
        case click.exceptions.Exit():
            return Ending(error.exit_code)
        case click.exceptions.NoArgsIsHelpError():  # its message is the help text
            return Ending(error.exit_code, error.message)
        case click.UsageError():
            return Ending(error.exit_code, *_usage(error))
        case BrokenPipeError():  # the reader closed the pipe, as `head` does
            return Ending(0)
        case io.UnsupportedOperation():  # open_standard_streams has opened stdout read-only
            hint = "redirect stdout to a file or a pipe"
            return Ending(1, "stdout is closed, so the result has nowhere to go", hint)
        # A file name that the locale cannot write
        case UnicodeEncodeError() if error.encoding == sys.getfilesystemencoding() != "utf-8":
            return ending_of(unwritable_name(error.object))
        case OSError():  # such as a full disk
            missing = no_temporary_directory(error)
            if missing:
                return ending_of(missing)
            hint = "check the path and its permissions; --debug shows the traceback"
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                hint = "free some space"
            return Ending(1, f"{error.filename or 'input or output'}: {error.strerror or error}", hint)
        case Exception():
            from nmt.system.device import device_error, memory_error

            known = memory_error(error) or device_error(error)
            if known:
                return ending_of(known)
            hint = "this is a bug in nmt: run it with --debug and report the traceback"
            return Ending(1, f"{type(error).__name__}: {error}", hint)
    raise error  # such as SystemExit


def _usage(error: click.UsageError) -> tuple[str, str]:
    """Return message and hint for wrong usage: the nearest name, an option's help, an example, or where to read."""
    near = getattr(error, "possibilities", None)
    if near:
        return _as_clause(error.message), f"did you mean {near[0]}?"
    message = _as_clause(error.format_message())
    context = error.ctx
    if context is None:
        return message, "nmt --help lists the commands"
    option = _option_of(error, context)
    record = option.get_help_record(context) if isinstance(option, click.Option) else None
    if record:
        usage, help = record
        return message, f"{usage}: {' '.join(help.split())}"
    hint = f"{context.command_path} --help shows examples and all options"
    if isinstance(error, click.BadParameter | click.BadArgumentUsage) and isinstance(context.command, Command):
        hint = f"for example {context.command.examples[0][0]}; {hint}"
    return message, hint


def _as_clause(sentence: str) -> str:
    """Return a sentence without capital and full stop, as it follows `error:`."""
    text = sentence.removesuffix(".")
    return text[:1].lower() + text[1:]


def _option_of(error: click.UsageError, context: click.Context) -> click.Parameter | None:
    """Return the option that was used wrongly, if the error names one."""
    parameter: click.Parameter | None = getattr(error, "param", None)
    if parameter:
        return parameter
    name = getattr(error, "option_name", None) or getattr(error, "param_hint", None)
    for parameter in context.command.params:
        if name in parameter.opts:
            return parameter
    return None


def stop(number: int, frame: FrameType | None) -> None:
    """Handle a signal by raising the exception that ends the command."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise Interrupted("hung up" if number == signal.SIGHUP else "terminated", number)


# --- streams -----------------------------------------------------------------------------------------------------


def open_standard_streams() -> None:
    """Reopen standard streams that were closed when the command was started, and set their encodings.

    Output to stderr is then discarded, and writing to stdout fails. Descriptors 0 to 2 are opened on /dev/null;
    otherwise the next opened file could become descriptor 2 and receive libraries' warnings.
    """
    descriptor = os.open(os.devnull, os.O_RDWR)
    while descriptor <= 2:
        os.set_inheritable(descriptor, True)  # worker processes inherit them
        descriptor = os.open(os.devnull, os.O_RDWR)
    os.close(descriptor)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(1, closefd=False)  # noqa: SIM115 - read-only: writing fails, so no result is lost
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # UTF-8, whatever the locale, except on a terminal of another encoding
            stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="replace")


def release(stream: IO[str]) -> None:
    """Flush a standard stream; on failure, redirect it to /dev/null so that Python does not fail again at exit."""
    try:
        stream.flush()
    except (OSError, ValueError):
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def is_typed(path: Path | None) -> bool:
    """Return whether the input is typed at a terminal; a `path` of None means stdin."""
    return path is None and sys.stdin is not None and sys.stdin.isatty()


def read_input(path: Path | None, console: Console, expected: str = "one sentence per line") -> Iterator[str]:
    """Return an iterator over the lines of a file or stdin; raise UserError immediately if it is unreadable.

    At a terminal, report that the command is waiting for input, and what is `expected`.
    """
    if path is not None:
        return read_lines(path)
    if sys.stdin is None:
        raise UserError("stdin is closed", "name an input file, or send the lines through a pipe")
    if is_typed(path):
        console.say(f"reading from the terminal: {expected}, Ctrl-D to end")
    # Not sys.stdin itself: Python closes it at exit, while a thread may still be waiting for input.
    return decoded(open(sys.stdin.fileno(), "rb", closefd=False), "<stdin>")


def count_input(path: Path | None) -> int | None:
    """Count a file's lines or stdin's remaining lines; return None if they cannot be counted in advance."""
    if path is None:
        return count_rest(sys.stdin.fileno())
    return count_lines(path) if path.is_file() else None


def open_output(path: Path | None, held: ExitStack) -> Callable[[str], None]:
    """Return a function that writes text and a newline to a file or stdout.

    A file is complete when `held` is closed. On a terminal, control characters of a model's output are escaped.
    """
    is_shown = path is None and sys.stdout.isatty()
    if path is None:
        stream: IO[bytes] = sys.stdout.buffer
    else:
        stream = held.enter_context(compressed(held.enter_context(whole_file(path)), path))

    flushes = path is None or (path.exists() and not path.is_file())  # a pipe's reader may wait for each line

    def write(lines: str) -> None:
        if is_shown:
            lines = printable_lines(lines)
        stream.write(lines.encode() + b"\n")
        if flushes:
            stream.flush()

    return write


def show(text: str) -> None:
    """Write text to stdout; a terminal breaks its lines between words, unless it is a JSON object."""
    if not text.startswith("{"):
        text = "\n".join(shown(line, sys.stdout) for line in text.split("\n"))
    click.echo(text)
