"""The entry point of `nmt` and `python -m nmt`."""

import signal
from typing import NoReturn


def main() -> NoReturn:
    """Run the command. Ctrl-C ends it without a traceback, even during imports."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a script's background jobs ignore SIGINT
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from nmt.cli import main as command

    command()


if __name__ == "__main__":
    main()
