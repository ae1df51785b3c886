"""`--attention`: the first sentences of a search, in a page or a figure of what the model attends to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from nmt.bundle import Bundle
from nmt.errors import UserError
from nmt.files import whole_file
from nmt.recipe import Model

if TYPE_CHECKING:
    from nmt.model.transformer import Transformer
    from nmt.search.attention import Kind
    from nmt.tasks.pipeline import LineResult
    from nmt.terminal.options import SearchOptions

MOST_SENTENCES = 50  # of a page
LONGEST = 200  # symbols of either side of a sentence that is shown; the weights grow with their square


class AttentionView:
    """Keeps the first sentences of a search, and at its end writes what the model attends to in them."""

    def __init__(self, stream: IO[bytes], path: Path, bundle: Bundle, figure: Figure | None) -> None:
        self._stream, self._path, self._bundle, self._figure = stream, path, bundle, figure
        self._most = MOST_SENTENCES if figure is None else 1
        self._kept: list[tuple[list[int], list[int]]] = []
        self._sentences = self._long = 0

    def add(self, results: Iterable[LineResult]) -> None:
        """Keep the sentences of the next results, each with its best output or first sample, while there is room."""
        for pair in (pair for result in results for pair in result.pairs):
            self._sentences += 1
            fits = max(map(len, pair)) <= LONGEST
            self._long += not fits
            if fits and len(self._kept) < self._most:
                self._kept.append(pair)

    def write(self, load: Callable[[], Transformer]) -> None:
        """Write the page or the figure, with the model that `load` gives.

        Raises UserError if there is no sentence to show; the output of the search is whole then.
        """
        if not self._kept:
            raise UserError(
                f"--attention {self._path}: there is no sentence of 1 to {LONGEST} subwords to show",
                "the output is whole; leave out --attention, or give it other lines",
            )
        from nmt.report.attention_views import figure, page
        from nmt.search.attention import attend

        model, tokenizer = load(), self._bundle.tokenizer()
        attended = (attend(model, tokenizer, *pair) for pair in self._kept)
        if self._figure is None:
            made = page(attended, "What the model attends to", f"{self._bundle.path}: {self.shown}")
        else:
            made = figure(next(attended), *self._figure)
        self._stream.write(made.encode())

    @property
    def shown(self) -> str:
        """What is shown of the input, in words."""
        count = len(self._kept)
        named = "the first sentence" if count == 1 else f"the first {count} sentences"
        of = f" of {self._sentences:,}" if count < self._sentences else ""
        return named + of + (f", without {self._long:,} of more than {LONGEST} subwords" if self._long else "")


Figure = tuple["Kind", int, list[int]]
"""Kind, layer and heads of a figure, counted from 0."""


@contextmanager
def attention_view(options: SearchOptions, bundle: Bundle) -> Iterator[AttentionView | None]:
    """Give what writes the file of --attention, which is opened now and whole at the end; None without the option.

    Raises UserError if the model has no such layer or heads, or if the file cannot be written.
    """
    path = options.attention
    if path is None:
        yield None
        return
    for option, other in (("--input", options.source), ("--output", options.output)):
        if other and other.resolve() == path.resolve():
            raise UserError(f"--attention {path}: is also the file of {option}", "give --attention another file")
    figure = _chosen(options, bundle.recipe.model) if path.suffix == ".svg" else None
    with whole_file(path) as stream:
        view = AttentionView(stream, path, bundle, figure)
        yield view
    options.console.say(f"attention: {path} shows {view.shown}")


def _chosen(options: SearchOptions, model: Model) -> Figure:
    """What a figure shows: by default all heads of the encoder's last layer but one, as in the paper."""
    kind, layer = options.layer or ("encoder", max(1, model.layers - 1))
    layers = model.layers if kind == "encoder" else model.decoder_depth
    if layer > layers:
        side = "encoder" if kind == "encoder" else "decoder"
        raise UserError(
            f"--layer {layer}: the {side} of this model has {layers} layers", f"give a layer from 1 to {layers}"
        )
    heads = options.heads or range(1, model.heads + 1)
    if heads[-1] > model.heads:
        raise UserError(
            f"--heads {heads[-1]}: a layer of this model has {model.heads} heads", f"give heads from 1 to {model.heads}"
        )
    return kind, layer - 1, [head - 1 for head in heads]
