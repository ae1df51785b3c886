"""Exceptions with a message for users; any other that escapes is a bug of ours."""

import re

# Control characters, line separators and marks of direction, which a terminal obeys.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
# Control characters except tabs and line ends; texts in Arabic and Hebrew need marks of direction.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """Return the text as one line, with control characters as escapes such as \\x1b."""
    return _UNPRINTABLE.sub(_escaped, text)


def printable_lines(text: str) -> str:
    """Return results of one line or more with control characters as escapes, which no terminal obeys."""
    return _CONTROL.sub(_escaped, text)


def _escaped(character: re.Match[str]) -> str:
    return character[0].encode("unicode_escape").decode()


class UserError(Exception):
    """A problem with the user's data, files or machine.

    `message` says in one line what is wrong and where (key, file, line), with the limit and the value; `hint` says in
    one line what to do. The command line prints both and exits with 1.
    """

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.add_note(f"hint: {hint}")  # which tracebacks of Python programs show


class Interrupted(BaseException):
    """A signal to stop (SIGINT, SIGTERM, SIGHUP) after which everything worth keeping is saved.

    Like KeyboardInterrupt, this is no Exception: a signal may arrive anywhere, and no handler of errors may catch it.
    The command line prints the message and exits with 128 + the signal's number.
    """

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.message = message
        self.signal_number = signal_number


TRY_AGAIN = 75  # exit status of a rank whose group failed: EX_TEMPFAIL of sysexits.h


class GroupError(Exception):
    """A failure of the group: ranks are gone or silent, another rank has reported the cause, or a GPU failed.

    The command line prints message and hint, if there is a message, and exits with TRY_AGAIN, or with 1 if a retry
    would fail in the same way.
    """

    def __init__(self, message: str, retry: bool = True, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.retry = retry
        self.hint = hint or "run the same command again; it resumes from the last checkpoint"
