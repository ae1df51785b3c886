"""SentencePiece's training, in a child: a signal ends it at once, and its death is an error like others.

As a program, this module is the child. It imports little, because training may take less than a second.
"""

from __future__ import annotations

import ctypes
import io
import os
import random
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import chain, islice
from multiprocessing.connection import Connection

import sentencepiece

from nmt.system.children import Child, ending
from nmt.system.errors import UserError


def train_model(texts: Iterator[str], threads: int | None, **options: object) -> bytes | str:
    """Train a model with SentencePiece's `options` on at most `threads` cores; return its file, or an error message.

    Raise UserError if the child dies.
    """
    with closing(Child("nmt.text.subwords")) as child:
        with suppress(ConnectionError):  # it has ended, and may have said why
            child.connection.send((options, threads))
            while batch := list(islice(texts, 1000)):
                child.connection.send(batch)
            child.connection.send([])
        try:
            answer: bytes | str = child.connection.recv()
            return answer
        except (EOFError, OSError):  # OSError: it died while answering
            hint = "if memory ran out, use a smaller tokenizer.sample; otherwise, try another tokenizer.vocab_size"
            raise UserError(f"tokenizer: SentencePiece {ending(child.wait())}", hint) from None


def main() -> None:
    """Train a model on the texts that the parent sends; answer as `train_model` returns it."""
    connection, model = Connection(0), io.BytesIO()
    options, threads = connection.recv()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: end with the parent, even while training
        # The model depends on SentencePiece's number of threads. Drawn, so that other processes rarely use the same.
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, random.sample(sorted(cores), min(threads or len(cores), len(cores))))
    texts = chain.from_iterable(iter(connection.recv, []))
    try:
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=texts, model_writer=model, **options)
        connection.send(model.getvalue())
    except Exception as error:
        connection.send(str(error))


if __name__ == "__main__":
    main()
