"""The one exception that is meant for users; everything else that escapes is a bug of ours."""

import re

# Control characters, line separators and what turns the direction of text: a terminal obeys them.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
# Control characters but tabs and line ends; texts in Arabic and Hebrew need what turns their direction.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """The text as one line that a terminal shows as it is: control characters are written as escapes such as \\x1b."""
    return _escaped(_UNPRINTABLE, text)


def printable_lines(text: str) -> str:
    """Results, of one line or more, that no terminal obeys: control characters in them are written as escapes."""
    return _escaped(_CONTROL, text)


def _escaped(characters: re.Pattern[str], text: str) -> str:
    return characters.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class UserError(Exception):
    """A problem with the user's data, files or machine.

    `message` says in one line what is wrong and where (key, file, line), with the limit and the value; `hint` says in
    one line what to do about it. The command line prints both and exits with 1.
    """

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.add_note(f"hint: {hint}")  # which tracebacks of Python programs show


class Interrupted(BaseException):
    """The user or the machine asked us to stop (SIGINT, SIGTERM, SIGHUP), and everything worth keeping is saved.

    Like KeyboardInterrupt this is no Exception: a signal may come anywhere, and must not be taken for an error there.

    The command line prints the message and exits with 128 + the signal's number.
    """

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.message = message
        self.signal_number = signal_number


TRY_AGAIN = 75  # exit status of a process whose group broke: EX_TEMPFAIL of sysexits.h


class GroupError(Exception):
    """The other processes of a group are gone or silent, one of them has already said why it stopped, or a GPU failed.

    The command line prints message and hint, if there is a message, and exits with TRY_AGAIN, or with 1 where a retry
    would fail alike.
    """

    def __init__(self, message: str, retry: bool = True, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.retry = retry
        self.hint = hint or "run the same command again; it resumes from the last checkpoint"
