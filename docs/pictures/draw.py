"""Draw the pictures of the documents: `python docs/pictures/draw.py` writes the .svg files beside this one.

What the pictures of updates and of the cache show is computed by the code that they explain; the speeds are those of
benchmarks/speeds.json, and the learning curves, once measured, those of benchmarks/beside_eole.json. Each picture has
its own background in light and in dark, so that it can be read on any page, and is narrow enough for a phone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nmt.data.epochs import plan_epoch
from nmt.model.transformer import Transformer
from nmt.recipe import Model
from nmt.search.plain import Plain
from nmt.training.batches import split_update

FOLDER = Path(__file__).parent
BENCHMARKS = FOLDER.parents[1] / "benchmarks"
SPEEDS = BENCHMARKS / "speeds.json"
LEARNING = BENCHMARKS / "beside_eole.json"
WIDTH = 520

STYLE = """
text { font: 16px Helvetica, Arial, sans-serif; text-anchor: middle; fill: #1f2430 }
.left { text-anchor: start } .right { text-anchor: end } .bold { font-weight: bold }
.small { font-size: 14px } .faint { font-size: 12px }
.paper { fill: #ffffff; stroke: #c4cad4 } .line { fill: none; stroke: #6b7483; stroke-width: 1.5 }
.head { fill: #6b7483 } .group { fill: #f4f5f8; stroke: #c4cad4 } .none { fill: none; stroke: #9aa2b0 }
.blue { fill: #cfe2fa; stroke: #4f83c4 } .green { fill: #d3eed3; stroke: #4d9a57 }
.orange { fill: #fde3bd; stroke: #c98a2b } .grey { fill: #e3e6ec; stroke: #8a93a3 }
@media (prefers-color-scheme: dark) {
  text { fill: #e8ebf0 } .paper { fill: #14181f; stroke: #3a424f } .line { stroke: #9aa4b3 } .head { fill: #9aa4b3 }
  .group { fill: #1b2029; stroke: #3a424f } .none { stroke: #6d7786 }
  .blue { fill: #1d3d63; stroke: #6ea3e0 } .green { fill: #1f4a28; stroke: #6cba78 }
  .orange { fill: #573b11; stroke: #d79b40 } .grey { fill: #343b47; stroke: #7d8797 }
}
"""


class Picture:
    """A drawing, in pixels from its upper left corner."""

    def __init__(self, height: int, title: str, description: str) -> None:
        self._height, self._title, self._description = height, title, description
        self._parts: list[str] = []

    def text(self, x: float, y: float, text: str, kind: str = "") -> None:
        """Write a line of text; y is that of its foot."""
        self._parts.append(f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(text)}</text>')

    def box(self, x: float, y: float, width: float, height: float, kind: str, *lines: str) -> None:
        """Draw a rectangle with lines of text in its middle."""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{min(6, width / 6, height / 6):g}" '
            f'class="{kind}"/>'
        )
        for number, line in enumerate(lines):
            self.text(x + width / 2, y + height / 2 + 5 + 18 * (number - (len(lines) - 1) / 2), line)

    def line(self, *points: tuple[float, float], arrow: bool = True) -> None:
        """Draw a line from point to point, by default with the head of an arrow at its end."""
        self._parts.append(f'<polyline points="{" ".join(f"{x:g},{y:g}" for x, y in points)}" class="line"/>')
        if arrow:
            (x0, y0), (x, y) = points[-2:]
            angle = math.degrees(math.atan2(y - y0, x - x0))
            place = f"translate({x:g} {y:g}) rotate({angle:.4g})"
            self._parts.append(f'<path d="M0 0L-8 4L-8 -4Z" transform="{place}" class="head"/>')

    def dot(self, x: float, y: float, kind: str) -> None:
        """Draw a dot."""
        self._parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="5" class="{kind}"/>')

    def plus(self, x: float, y: float) -> None:
        """Draw a circle in which two arrows are added."""
        self._parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="10" class="orange"/>')
        self.text(x, y + 5, "+")

    def svg(self) -> str:
        """The drawing as a file."""
        size = f'viewBox="0 0 {WIDTH} {self._height}" width="{WIDTH}" height="{self._height}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title description">'
        words = f'<title id="title">{escape(self._title)}</title>\n<desc id="description">{escape(self._description)}'
        paper = f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{self._height - 1}" rx="8" class="paper"/>'
        return "\n".join([head, f"{words}</desc>", f"<style>{STYLE}</style>", paper, *self._parts, "</svg>\n"])


def model() -> Picture:
    """Encoder and decoder, as in figure 1 of the paper."""
    picture = Picture(
        590,
        "The Transformer",
        "The encoder has N layers of self-attention and feed-forward. The decoder has N layers of masked "
        "self-attention, attention to the encoder's states, and feed-forward, then a softmax. One matrix of embeddings "
        "serves both inputs and the softmax.",
    )
    encoder = _stack(picture, 30, 470, "encoder", ["self-attention", "feed-forward"])
    decoder = _stack(picture, 290, 470, "decoder", ["masked self-attention", "cross-attention", "feed-forward"])
    cross = 470 - 18 - 84 - 17  # the middle of the box of cross-attention
    picture.line((130, encoder), (130, encoder - 24), (256, encoder - 24), (256, cross), (305, cross))
    picture.text(130, encoder - 34, "keys and values", "small")
    for x, below in ((130, "source subwords"), (390, "target subwords so far")):
        picture.box(x - 90, 520, 180, 30, "grey", "embedding")
        picture.line((x, 520), (x, 504))
        picture.plus(x, 494)
        picture.line((x, 484), (x, 470))
        picture.text(x, 575, below)
    picture.line((215, 494), (140, 494))
    picture.line((305, 494), (380, 494))
    picture.text(260, 499, "positions")
    picture.box(300, decoder - 64, 180, 30, "grey", "embedding, transposed")
    picture.box(300, decoder - 114, 180, 30, "grey", "softmax")
    for begin, end in ((0, 34), (64, 84), (114, 132)):
        picture.line((390, decoder - begin), (390, decoder - end))
    picture.text(390, decoder - 138, "probabilities of the next subword")
    return picture


def _stack(picture: Picture, x: float, bottom: float, title: str, names: Sequence[str]) -> float:
    """Draw a layer of 200 pixels upwards from `bottom`; give where it ends."""
    height = 36 + 84 * len(names)
    picture.box(x, bottom - height, 200, height, "group")
    foot, middle = bottom, x + 100
    for name in names:
        y = foot - 18 if foot == bottom else foot - 20
        picture.line((middle, foot), (middle, y))
        picture.box(x + 15, y - 34, 170, 34, "green" if name == "feed-forward" else "blue", name)
        picture.line((middle, y - 34), (middle, y - 42), arrow=False)
        picture.box(x + 15, y - 64, 170, 22, "orange", "add, normalise")
        picture.line((middle, y + 9), (x + 7, y + 9), (x + 7, y - 53), (x + 15, y - 53))
        foot = y - 64
    picture.line((middle, foot), (middle, bottom - height), arrow=False)
    picture.text(x + 8, bottom - height + 18, title, "left bold small")
    picture.text(x + 144, bottom - height + 18, "N layers", "bold small")
    return bottom - height


def norm() -> Picture:
    """Where a layer normalises."""
    picture = Picture(
        268,
        "Post-norm and pre-norm",
        "Post-norm, as in the paper: the sub-layer's output is dropped out and added to its input, and the sum is "
        "normalised. Pre-norm: the input of the sub-layer is normalised, and the sum is left as it is.",
    )
    kinds = {"sub-layer": "blue", "dropout": "grey", "normalise": "orange"}
    for x, title, steps in (
        (130, "post-norm (the paper)", ["sub-layer", "dropout", "+", "normalise"]),
        (390, "pre-norm", ["normalise", "sub-layer", "dropout", "+"]),
    ):
        picture.text(x, 28, title, "bold")
        y = 232.0
        picture.text(x, 252, "x")
        for step in steps:
            picture.line((x, y), (x, y - 16))
            if step == "+":
                picture.line((x, 224), (x - 95, 224), (x - 95, y - 26), (x - 10, y - 26))
                picture.plus(x, y - 26)
                y -= 36
            else:
                picture.box(x - 70, y - 44, 140, 28, kinds[step], step)
                y -= 44
        picture.line((x, y), (x, y - 20))
    return picture


SOURCES = np.array([4, 11, 6, 9, 3, 7, 12, 5, 8, 6, 10, 4, 9, 7, 13, 5, 8, 3, 6, 10, 7, 5, 11, 8])
TARGETS = np.array([5, 10, 6, 9, 3, 8, 13, 5, 8, 7, 10, 4, 8, 7, 12, 6, 9, 2, 5, 11, 7, 4, 12, 8])
BATCH_TOKENS, DEVICE_TOKENS = 60, 24


def updates() -> Picture:
    """Pairs sorted by length, cut into updates, and one of these cut into micro-batches."""
    plan = plan_epoch(SOURCES, TARGETS, BATCH_TOKENS, seed=1, epoch=0)
    lengths = np.maximum(SOURCES, TARGETS) + 1
    bounds = sorted(plan.bounds.tolist())
    chosen = len(bounds) - 2
    picture = Picture(
        504,
        "Updates and micro-batches",
        f"{len(lengths)} pairs stand in the order of their lengths and are cut into {len(bounds)} updates of at most "
        f"{BATCH_TOKENS} tokens on either side. One update is cut into micro-batches of at most {DEVICE_TOKENS} cells, "
        "which hold hardly any padding.",
    )
    picture.text(24, 30, f"Pairs by length, in updates of at most {BATCH_TOKENS} tokens a side", "left bold")
    for place, row in enumerate(plan.order.tolist()):
        number = next(index for index, (begin, end) in enumerate(bounds) if begin <= place < end)
        height = 9 * int(lengths[row])
        picture.box(24 + 19.7 * place, 190 - height, 15, height, ("blue", "green")[number % 2])
    for number, (begin, end) in enumerate(bounds):
        left, right = 24 + 19.7 * begin, 24 + 19.7 * end - 4.7
        picture.line((left, 196), (left, 202), (right, 202), (right, 196), arrow=False)
        picture.text((left + right) / 2, 220, str(number + 1))
    picture.text(24, 246, "Training takes the updates in random order.", "left")

    rows = plan.rows(plan.bounds.tolist().index(bounds[chosen]))
    parts = split_update(SOURCES[rows], TARGETS[rows], DEVICE_TOKENS)
    picture.text(24, 290, f"Update {chosen + 1}, in micro-batches of at most {DEVICE_TOKENS} cells", "left bold")
    y = 306
    for part in parts:
        for side, name, x in ((SOURCES, "source", 24), (TARGETS, "target", 280)):
            width = int(side[rows[part]].max()) + 1
            for line, row in enumerate(rows[part]):
                for cell in range(width):
                    kind = ("blue", "green")[chosen % 2] if cell <= side[row] else "none"
                    picture.box(x + 15 * cell, y + 15 * line, 13, 13, kind)
            picture.text(x, y + 15 * len(part) + 13, f"{name}: {len(part)} × {width} cells", "left small")
        y += 15 * len(part) + 28
    picture.text(24, y + 12, "An empty cell is padding.", "left")
    return picture


WORDS = (("Ein", "Der", "Das"), ("Hund", "Tier", "Hund"), ("rennt", "läuft", "läuft"))
PARENTS = ((0, 0, 0), (0, 0, 1), (0, 0, 2))


def cache() -> Picture:
    """The keys and values of three hypotheses in their tree, in their places, and who sees which."""
    places, bias = _grown()
    extent = bias.size(1)
    kept = [{0, 1, 2}]  # words of each step from which a hypothesis of the last one descends
    for parents in reversed(PARENTS[1:]):
        kept.insert(0, {parents[index] for index in kept[0]})
    picture = Picture(
        470,
        "The cache of a search",
        "Three hypotheses share the places of their common words. The place of a word that no hypothesis continues is "
        "used again. A mask says which places each hypothesis sees.",
    )
    picture.text(24, 30, "Beam 3 after three steps: each word has a numbered place", "left bold")
    for step, (words, parents) in enumerate(zip(WORDS, PARENTS, strict=True)):
        for index, (word, parent) in enumerate(zip(words, parents, strict=True)):
            x, y = 60 + 165 * step, 52 + 52 * index
            picture.box(x, y, 110, 34, "blue" if index in kept[step] else "none", f"{places[step][index]}  {word}")
            picture.line((24, 121) if step == 0 else (x - 55, 69 + 52 * parent), (x, y + 17))
    picture.text(24, 236, "“Das” and “Tier” were not continued, so places 2 and 3 were free again.", "left small")

    picture.text(24, 280, "The mask: what each hypothesis sees", "left bold")
    written = dict(zip(np.ravel(places).tolist(), np.ravel(WORDS).tolist(), strict=True))
    size = 52
    for place in range(extent):
        picture.text(130 + size * (place + 0.5), 306, str(place), "small")
        picture.text(130 + size * (place + 0.5), 324, written[place], "small")
    for index, word in enumerate(WORDS[-1]):
        picture.text(24, 355 + 34 * index, f"… {word}  ({places[-1][index]})", "left")
        for place in range(extent):
            sees = bool(bias[index, place] == 0)
            picture.box(130 + size * place, 334 + 34 * index, size - 4, 30, "blue" if sees else "none")
    picture.text(
        24, 454, f"{extent} places; three separate copies would need 9, and copying at each step.", "left small"
    )
    return picture


def _grown() -> tuple[list[list[int]], torch.Tensor]:
    """The places of each step's words, and the mask (hypotheses, places) after the last step."""
    way = Plain([Transformer(Model(layers=1, d_model=8, d_ff=8, heads=2), 11, 11).eval()], 3)
    past = way.admit(way.begin(), torch.tensor([[5, 3]]), [2], 10)
    places, alive = [], torch.ones((1, 3), dtype=torch.bool)
    for parents in PARENTS:
        past = way.extend(past, torch.tensor([parents]), alive)
        places.append(past.rows.places[0].tolist())
    return places, past.rows.bias[0, :, : past.memory.extent]


def ranks() -> Picture:
    """An update that two ranks share."""
    picture = Picture(
        470,
        "An update shared by two ranks",
        "The micro-batches of an update are dealt to the ranks in turn. Each rank adds up the gradients of its own. "
        "The ranks add these up and divide by the target tokens of the whole update, so all take the same step.",
    )
    picture.text(260, 30, "an update in four micro-batches", "bold")
    for number in range(4):
        x = 65 + 100 * number
        picture.box(x, 44, 90, 32, ("blue", "green")[number % 2], f"batch {number}")
    for rank, x in enumerate((24, 276)):
        kind = ("blue", "green")[rank]
        picture.box(x, 130, 220, 250, "group")
        picture.text(x + 110, 152, f"rank {rank}", "bold small")
        picture.box(x + 15, 164, 190, 50, kind, "forward and backward", f"of batches {rank} and {rank + 2}")
        picture.box(x + 15, 232, 190, 30, kind, "sum of its gradients")
        for number in (rank, rank + 2):
            picture.line((110 + 100 * number, 76), (x + 80 + 30 * number, 130))
        for begin, end in ((214, 232), (262, 284), (320, 338), (380, 402)):
            picture.line((x + 110, begin), (x + 110, end))
        picture.box(x + 15, 338, 190, 30, "grey", "Adam's step")
    picture.box(39, 284, 442, 36, "orange", "add up over ranks, divide by target tokens")
    picture.box(39, 402, 442, 50, "grey", "equal weights on both ranks", "the same update as on one rank")
    return picture


FASTEST = 8.0  # right edge of the axis of ratios


def speeds() -> Picture:
    """Show the speed of nmt relative to its peers: for each contest the median ratio, and its range."""
    contests = json.loads(SPEEDS.read_text(encoding="utf-8"))
    processors = dict.fromkeys(contest["processor"] for contest in contests)
    row = "{processor}, {what}, {peer}: {ratio[0]} ({ratio[1]} to {ratio[2]})"
    bottom = 44 + 36 * len(processors) + 40 * len(contests)
    picture = Picture(
        bottom + 54,
        "Speed relative to other toolkits",
        ". ".join(row.format(**contest) for contest in contests),
    )

    def x(ratio: float) -> float:
        return 336 + 42 * math.log2(ratio)

    picture.text(24, 32, "Speed of nmt, as a multiple of its peer's", "left bold")
    picture.line((x(1.0), 46), (x(1.0), bottom), arrow=False)
    for ratio in (0.5, 1.0, 2.0, 4.0, FASTEST):
        picture.line((x(ratio), bottom - 6), (x(ratio), bottom), arrow=False)
        picture.text(x(ratio), bottom + 18, f"{ratio:g}", "small")
    y = 44
    for processor in processors:
        picture.text(24, y + 22, processor, "left bold small")
        y += 36
        for contest in (contest for contest in contests if contest["processor"] == processor):
            middle, low, high = contest["ratio"]
            picture.text(24, y + 14, contest["what"], "left small")
            picture.text(24, y + 29, f"beside {contest['peer']}", "left faint")
            picture.box(x(low), y + 13, x(min(high, FASTEST)) - x(low), 6, "grey")
            picture.dot(x(middle), y + 16, "green" if middle >= 1.0 else "orange")
            picture.text(506, y + 21, f"{middle:.2f}", "right small")
            y += 40
    picture.text(24, bottom + 42, "A dot is the median of alternating runs, a bar their range.", "left faint")
    return picture


PANEL = 150  # height of a panel of learning curves, from its axis to the highest BLEU


def learning() -> Picture:
    """Show BLEU on the test sets by the processor time of training, of nmt and of eole."""
    points = json.loads(LEARNING.read_text(encoding="utf-8"))
    names = dict.fromkeys(point["data"] for point in points)
    row = "{data}, {toolkit}: BLEU {bleu:.1f} after {seconds:.0f} seconds"
    picture = Picture(
        88 + (PANEL + 90) * len(names),
        "BLEU by training time, beside eole",
        ". ".join(row.format(**point) for point in points),
    )
    picture.text(24, 32, "BLEU by processor time of training, one core", "left bold")
    top = 44
    for name in names:
        picture.text(24, top + 26, name, "left bold small")
        _curves(picture, top + 56 + PANEL, [point for point in points if point["data"] == name])
        top += PANEL + 90
    picture.text(
        24, top + 28, "The same pairs and sizes of the model, each toolkit as its documents advise.", "left faint"
    )
    return picture


def _curves(picture: Picture, axis: float, points: Sequence[dict[str, Any]]) -> None:
    """Draw the learning curves of both toolkits above a time axis."""
    longest: float = max(point["budget"] for point in points)
    best: float = max(point["bleu"] for point in points)
    highest = 10 * max(1, math.ceil(best / 10))

    def x(seconds: float) -> float:
        return 56 + 374 * seconds / longest

    def y(bleu: float) -> float:
        return axis - PANEL * bleu / highest

    for bleu in range(0, highest + 1, 10):
        picture.line((56, y(bleu)), (50, y(bleu)), arrow=False)
        picture.text(44, y(bleu) + 5, str(bleu), "right small")
    picture.line((56, y(highest)), (56, axis), (x(longest), axis), arrow=False)
    for budget in dict.fromkeys(point["budget"] for point in points):
        picture.line((x(budget), axis), (x(budget), axis + 6), arrow=False)
        minutes = f"{budget / 60:.3g}"
        picture.text(x(budget), axis + 22, f"{minutes} min" if budget == longest else minutes, "small")
    for toolkit, kind in (("nmt", "blue"), ("eole", "orange")):
        curve = [point for point in points if point["toolkit"] == toolkit]
        places = [(x(point["seconds"]), y(point["bleu"])) for point in curve]
        if not curve:
            continue
        picture.line(*places, arrow=False)
        for point, (right, down) in zip(curve, places, strict=True):
            picture.dot(right, down, kind)
            is_below = toolkit == "eole" and down < axis - 30  # nearer to the axis there is no room
            picture.text(right, down + (24 if is_below else -12), f"{point['bleu']:.1f}", "small")
        picture.text(places[-1][0] + 18, places[-1][1] + 5, toolkit, "left")


DRAWN = (model, norm, updates, cache, ranks, speeds)
MEASURED = (learning,) if LEARNING.exists() else ()
PICTURES: dict[str, Callable[[], Picture]] = {draw.__name__: draw for draw in (*DRAWN, *MEASURED)}


def main() -> None:
    """Write the files."""
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
