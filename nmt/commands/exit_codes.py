"""Run a command as a process: signals, exit codes and error messages."""

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

from nmt.commands.command_line import Command
from nmt.commands.streams import open_standard_streams, release
from nmt.system.console import shown
from nmt.system.errors import TRY_AGAIN, GroupError, Interrupted, UserError

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
        if instruction := os.environ.get(COMPLETE):
            raise click.exceptions.Exit(shell_complete(group, {}, "nmt", COMPLETE, instruction))
        with group.make_context("nmt", sys.argv[1:]) as context:  # group.main treats a closed pipe as an error
            group.invoke(context)
        sys.stdout.flush()
        code = 0
        _restore_signals()
    except BaseException as error:
        _restore_signals()
        ending = ending_of(error)
        lines = (f"error: {ending.message}", f"hint: {ending.hint}") if ending.hint else ending.message.splitlines()
        for line in lines:
            with suppress(OSError):  # stderr may be closed
                click.echo(shown(line, sys.stderr), err=True)
        if "--debug" in sys.argv and ending.traceback:
            raise
        code = ending.code
    for stream in (sys.stdout, sys.stderr):
        release(stream)
    sys.exit(code)


def _restore_signals() -> None:
    """Restore default signal handling, or ignore signals in a rank, which may get them while it reports an error."""
    action = signal.SIG_IGN if os.environ.get("RANK") else signal.SIG_DFL
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is stop:
            signal.signal(number, action)


class Ending(NamedTuple):
    """Exit code and message of a command that was stopped or failed; an error has a hint.

    `traceback` says whether --debug shows one.
    """

    code: int
    message: str = ""
    hint: str = ""
    traceback: bool = False


def ending_of(error: BaseException) -> Ending:
    """Return the exit code and message for an exception."""
    reports = os.environ.get("RANK") in (None, "", "0")  # only rank 0 reports
    match error:
        case UserError():
            return Ending(1, error.message, error.hint, traceback=True)
        case GroupError():  # without a message, another rank has reported the cause
            code, hint = TRY_AGAIN if error.retry else 1, error.message and error.hint
            return Ending(code, error.message, hint, traceback=error.retry)
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
            problem, hint = "stdout is closed, so the result has nowhere to go", "redirect stdout to a file or a pipe"
            return ending_of(UserError(problem, hint))
        case OSError():  # such as a full disk
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            other = "check the path and its permissions; --debug shows the traceback"
            problem = f"{error.filename or 'input or output'}: {error.strerror or error}"
            return ending_of(UserError(problem, "free some space" if full else other))
        case Exception():
            from nmt.system.device import device_error, memory_error

            hint = "this is a bug in nmt: run it with --debug and report the traceback"
            bug = UserError(f"{type(error).__name__}: {error}", hint)
            return ending_of(memory_error(error) or device_error(error) or bug)
    raise error  # such as SystemExit


def _usage(error: click.UsageError) -> tuple[str, str]:
    """Return message and hint for wrong usage: the nearest name, an option's help, an example, or where to read."""
    near = getattr(error, "possibilities", None)
    text = (error.message if near else error.format_message()).removesuffix(".")
    message = text[:1].lower() + text[1:]
    context = error.ctx
    if near or context is None:
        return message, f"did you mean {near[0]}?" if near else "nmt --help lists the commands"
    name = getattr(error, "option_name", None) or getattr(error, "param_hint", None)
    option = getattr(error, "param", None) or next((o for o in context.command.params if name in o.opts), None)
    if isinstance(option, click.Option) and (record := option.get_help_record(context)):
        return message, f"{record[0]}: {' '.join(record[1].split())}"
    hint = f"{context.command_path} --help shows examples and all options"
    if isinstance(error, click.BadParameter | click.BadArgumentUsage) and isinstance(context.command, Command):
        hint = f"for example {context.command.examples[0][0]}; {hint}"
    return message, hint


def stop(number: int, frame: FrameType | None) -> None:
    """Handle a signal by raising the exception that ends the command."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise Interrupted("hung up" if number == signal.SIGHUP else "terminated", number)
