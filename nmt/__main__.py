"""The entry point of `nmt` and `python -m nmt`."""

import gc
import signal
from typing import NoReturn


def main() -> NoReturn:
    """Run the command. Ctrl-C ends it without a traceback, even during imports."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not ignored, as in background jobs of scripts
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from nmt.system import clock

    clock.begin()  # before the slow imports, which count as time of the command
    from nmt.cli import main as command

    try:
        command()
    finally:
        gc.freeze()  # otherwise Python spends a second at exit on collecting the objects of torch


if __name__ == "__main__":
    main()
