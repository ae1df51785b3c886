"""Exceptions with messages for users, and what messages are made of. Other uncaught exceptions are bugs."""

import re

# Control characters, line separators and bidirectional marks, which terminals interpret.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
# Control characters except tabs and newlines; Arabic and Hebrew need the bidirectional marks.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """Return `text` as one line, with control characters escaped, such as \\x1b."""
    return _UNPRINTABLE.sub(_escaped, text)


def printable_lines(text: str) -> str:
    """Return `text` with control characters escaped, except tabs and newlines."""
    return _CONTROL.sub(_escaped, text)


def _escaped(character: re.Match[str]) -> str:
    return character[0].encode("unicode_escape").decode()


def counted(count: int, noun: str) -> str:
    """Return a number and what it counts: 1 pair, 2,000 pairs."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


class UserError(Exception):
    """A problem with the user's data, files or machine.

    `message` says in one line what is wrong and where (key, file, line), with the limit and the value; `hint` says in
    one line what to do. The command line prints both and exits with code 1.
    """

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.add_note(f"hint: {hint}")  # for tracebacks of programs that use the API


class Interrupted(BaseException):
    """Termination by SIGTERM or SIGHUP or, once training has saved its state, also by SIGINT.

    Like KeyboardInterrupt, it does not derive from Exception: a signal may arrive anywhere, and error handlers must not
    catch it. The command line prints the message and exits with 128 + the signal's number.
    """

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.message = message
        self.signal_number = signal_number


TRY_AGAIN = 75  # exit code of a rank whose group failed: EX_TEMPFAIL in sysexits.h


class GroupError(Exception):
    """Failure of a process group: a rank died or went silent, a GPU failed, or another rank has reported the cause.

    The command line prints message and hint unless the message is empty, and exits with TRY_AGAIN, or with 1 if a retry
    would fail in the same way.
    """

    def __init__(self, message: str, retry: bool = True, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.retry = retry
        self.hint = hint or "run the same command again; it resumes from the last checkpoint"
