"""The model card of an exported translator: README.md with what its bundle knows of data, scores and cost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nmt import __version__
from nmt.bundle.folder import Bundle
from nmt.recipe import Dataset
from nmt.recipe.files import dump

SECTIONS = ("tokenizer", "model", "training", "decoding")  # of the recipe; data names local folders

DIFFERENCES = (  # `{epsilon}` is model.norm_epsilon
    "The length penalty of `generate` is a power of the length, n^p, and that of nmt is ((5 + n) / 6)^α; "
    "`length_penalty` is set so that both favour longer outputs equally at 25 subwords.",
    "An output of `generate` has at most `max_length` subwords, whatever the length of its input; with nmt it has at "
    "most `decoding.max_extra` more than the input.",
    "nmt splits long inputs into sentences and copies URLs and placeholders; `generate` does not.",
    "`MarianTokenizer` takes a U+2581 for a space, and `>>…<<` at the beginning of a line for a language; it removes "
    "space at the ends of an output.",
    "LayerNorm has an ε of 1e-05, and {epsilon:g} in nmt; where they are not equal, log-probabilities differ by about "
    "1e-5 of their value.",
)
"""What makes translations by `transformers` differ from those of `nmt translate`."""

CARD = """\
---
library_name: transformers
pipeline_tag: translation
{languages}tags:
- translation
---

# {name}

A Transformer of {parameters:,} parameters that translates from {source} to {target}, trained with nmt {version}.

```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{name}")
model = AutoModelForSeq2SeqLM.from_pretrained("{name}")
batch = tokenizer(["…"], padding=True, return_tensors="pt")
print(tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True))
```

## How it was made

| | |
|---|---|
{figures}

## How translations differ from those of `nmt translate`

{differences}

## Recipe

```yaml
{recipe}```
"""


BAR = "\\|"  # does not end the cell of a table


def model_card(bundle: Bundle, name: str, parameters: int) -> str:
    """Return the README.md of a translator of so many parameters that is called `name`."""
    recipe = bundle.recipe
    languages = [language for language in recipe.data.languages if language.isalpha() and len(language) in (2, 3)]
    return CARD.format(
        languages="".join(["language:\n", *(f"- {language}\n" for language in languages)]) if languages else "",
        name=name,
        parameters=parameters,
        source=recipe.data.source,
        target=recipe.data.target,
        version=__version__,
        figures="\n".join(f"| {name} | {value.replace('|', BAR)} |" for name, value in _figures(bundle)),
        differences="\n".join(f"- {difference}" for difference in DIFFERENCES).format(
            epsilon=recipe.model.norm_epsilon
        ),
        recipe=dump(recipe.model_dump(mode="json", include=set(SECTIONS))),
    )


def _figures(bundle: Bundle) -> Iterator[tuple[str, str]]:
    """Give what is known of data, scores and cost, each with its name."""
    for split, datasets in bundle.recipe.data.splits.items():
        if datasets:
            yield f"{split} data", "; ".join(map(_described, datasets))
    yield "updates", f"{bundle.step:,}"
    if steps := bundle.info.get("steps"):
        yield "average of the checkpoints after", f"{', '.join(f'{step:,}' for step in steps)} updates"
    signature = f" ({bundle.info['signature']})" if "signature" in bundle.info else ""
    for score, value in bundle.scores.items():
        yield f"dev {score}", f"{value:.2f}{signature if score == bundle.kind.metric else ''}"
    cost = bundle.cost
    if "seconds" in cost:
        yield "training time", f"{cost['seconds'] / 3600:.1f} hours on {', '.join(cost.get('devices', ())) or '?'}"
    if "tokens" in cost:
        yield "target tokens", f"{cost['tokens']:,}"
    if "flops" in cost:
        yield "FLOPs, counted", f"{cost['flops']:.1e}"


def _described(dataset: Dataset) -> str:
    """Name what a data set is read from, and how often an epoch has it if that is not once."""
    files = [Path(name).name for name in (dataset.source, dataset.target, dataset.file) if name]
    names = [*files, *filter(None, (dataset.sacrebleu, dataset.hub, dataset.config))]
    return ", ".join(f"`{name}`" for name in names) + (f" × {dataset.weight:g}" if dataset.weight != 1 else "")
