"""`python -m nmt` is the command `nmt`."""

import signal
from typing import NoReturn


def main() -> NoReturn:
    """The command, whose modules take a moment to load: Ctrl-C ends it without a traceback meanwhile."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # and not ignored, as under nohup
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from nmt.cli import main as command

    command()


if __name__ == "__main__":
    main()
