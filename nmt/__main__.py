"""The entry point of `nmt` and `python -m nmt`."""

import gc
import signal
from typing import NoReturn


def main() -> NoReturn:
    """Run the command. Ctrl-C ends it without a traceback, even during imports."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a script's background jobs ignore SIGINT
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from nmt.system import clock

    clock.begin()
    from nmt.cli import main as command

    try:
        command()
    finally:
        gc.freeze()  # Python would collect all that torch has made, which takes a second


if __name__ == "__main__":
    main()
