"""The `nmt` of pages, as a program: its trainings end within a second, and a server of forks starts it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

SMALL = {
    "training.updates": 10,
    "training.batch_tokens": 1200,
    "training.warmup": 5,
    "training.checkpoint_updates": 5,
    "training.log_updates": 5,
    "training.valid_beam": 1,
}
SMALL_MODEL = {"tokenizer.vocab_size": 400, "model.layers": 1, "model.d_model": 32, "model.d_ff": 64, "model.heads": 2}


def shrunk(arguments: Sequence[str]) -> list[str]:
    """The arguments of a command, with settings that make a training of it end within a second.

    A model that training starts from keeps its shape.
    """
    if not {"train", "preprocess"} & set(arguments[:1]) or "--plan" in arguments:
        return list(arguments)
    recipes = [Path(name) for name in arguments if name.endswith(".yaml")]
    said = " ".join([*arguments, *(path.read_text() for path in recipes if path.is_file())])
    settings = SMALL if "init_from" in said else SMALL | SMALL_MODEL
    return [*arguments, *(part for key, value in settings.items() for part in ("--set", f"{key}={value}"))]


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))  # where Python does not look by itself, since it is started by -I
    from fork_server import call_from_shell

    call_from_shell(shrunk(sys.argv[1:]))
