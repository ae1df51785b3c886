"""`python -m nmt` is the command `nmt`."""

import signal
from typing import NoReturn


def main() -> NoReturn:
    """Run the command; Ctrl-C ends it without a traceback even while its modules load."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # under nohup it is ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from nmt.cli import main as command

    command()


if __name__ == "__main__":
    main()
