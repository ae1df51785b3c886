"""The page of attention: its size, the time to make it, and in Chromium the time until something is painted.

    python benchmarks/attention.py [--sentences 50] [--sharpness 1 4] [--out FOLDER]

A base model with random weights reads and writes sentences with the lengths of WMT's. Its attention is almost uniform,
which compresses well; so queries are also multiplied by a `--sharpness`, after which weights differ as in a trained
model and compress worse. "Painted" is the first contentful paint, "drawn" the moment when the lines of the first
sentence are on the page, both counted from the navigation. Without Chromium or playwright they are left out.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from pathlib import Path

import torch

from nmt.model.layers import CrossAttention, SelfAttention
from nmt.model.transformer import Transformer
from nmt.recipe import TokenizerSettings
from nmt.report.attention import page
from nmt.search.attention import attend
from nmt.terminal.attending import LONGEST
from nmt.text.tokenizer import Tokenizer
from synthetic import MODELS, wmt_lengths

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def tokenizer_of_random_words(draw: random.Random) -> Tokenizer:
    """Subwords of words that are random letters."""
    words = ["".join(draw.choices("aeioubdgklmnprst", k=draw.randint(2, 10))) for _ in range(3000)]
    texts = [" ".join(draw.choices(words, k=20)) for _ in range(2000)]
    return Tokenizer.train([(text,) for text in texts], TokenizerSettings(vocab_size=4000, shared=True))


def sharpen(model: Transformer, sharpness: float) -> None:
    """Multiply all queries."""
    width = model.config.heads * model.config.key_width
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, SelfAttention):
                module.qkv.weight[:width] *= sharpness  # queries come first
            elif isinstance(module, CrossAttention):
                module.query.weight *= sharpness


def painted(path: Path) -> str:
    """The milliseconds to the first paint and to the first lines."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        found = None
    if found is None:
        return "no Chromium with playwright"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        shown = browser.new_page()
        shown.goto(path.resolve().as_uri())
        shown.wait_for_selector(".lines path")
        first = shown.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        drawn = shown.evaluate("performance.now()")
        browser.close()
    return f"painted {first:,.0f} ms, drawn {drawn:,.0f} ms"


def main() -> None:
    """Makes a page for each sharpness and prints a line about it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=50)
    parser.add_argument("--sharpness", type=float, nargs="+", default=[1, 4])
    parser.add_argument("--out", type=Path, help="folder that keeps the pages")
    options = parser.parse_args()
    draw = random.Random(1)
    tokenizer = tokenizer_of_random_words(draw)
    size = len(tokenizer.source)
    sides = [side[side < LONGEST][: options.sentences].tolist() for side in wmt_lengths(2 * options.sentences)]
    pairs = [[draw.choices(range(260, size), k=length) for length in both] for both in zip(*sides, strict=True)]
    folder = options.out or Path(tempfile.mkdtemp())
    folder.mkdir(exist_ok=True)
    for sharpness in options.sharpness:
        torch.manual_seed(1)
        model = Transformer(MODELS["base"], size, size).eval()
        sharpen(model, sharpness)
        path = folder / f"attention-{sharpness:g}.html"
        began = time.perf_counter()
        attended = [attend(model, tokenizer, source, target) for source, target in pairs]
        computed = time.perf_counter()
        path.write_text(page(attended, "Attention", "random"), encoding="utf-8")
        written = time.perf_counter()
        print(
            f"sharpness {sharpness:g}: {len(pairs)} sentences, {sum(sides[0]) / len(pairs):.1f} and "
            f"{sum(sides[1]) / len(pairs):.1f} subwords, {path.stat().st_size / 1e6:.2f} MB, weights "
            f"{computed - began:.1f} s, page {written - computed:.1f} s, {painted(path)}"
        )
    if options.out is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
