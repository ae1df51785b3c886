"""The directions of data sets: what each says of its languages, and whether the model has these."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from nmt.recipe import Data, Dataset
from nmt.system.errors import UserError
from nmt.text.tokenizer import Direction, Tokenizer, unknown_language


def dataset_direction(data: Data, dataset: Dataset, tokenizer: Tokenizer) -> Direction:
    """Return a data set's languages.

    Both are None if the model has one direction, or if texts may begin with symbols that users type.
    """
    is_typed = tokenizer.typed and dataset.languages is None
    if not tokenizer.source.languages or is_typed:
        return None, None
    return data.of(dataset).languages


def check_directions(data: Data, tokenizer: Tokenizer | None, new: Collection[str], say: Callable[[str], None]) -> None:
    """Check the languages of all data sets against the model; say which of valid and test no training set has.

    `tokenizer` is that of the model that training starts from, which gets `new` languages; None for a new model. Raise
    UserError naming the first data set with a language that the model does not have.
    """
    known = [*tokenizer.source.languages, *new] if tokenizer else data.symbols
    if tokenizer and data.symbols and not known:
        problem = f"data.train: has the target languages {', '.join(data.symbols)}, but the model has one"
        raise UserError(problem, "train on one direction, or start from a model of several languages")
    if not known:
        _check_the_only_direction(data)
        return
    is_typed = tokenizer is not None and tokenizer.typed
    is_forced = tokenizer is not None and tokenizer.forced
    for where, dataset in _named(data):
        if dataset.languages is None and (is_typed or dataset.take is not None):
            continue  # its texts may begin with a language symbol; what is taken has all directions of its set
        direction = data.of(dataset).languages
        source, target = direction
        for language in (source, target) if is_forced else (target,):
            if language not in known:
                extensible = tokenizer is not None and not is_typed and dataset in data.train
                raise unknown_language(language, known, f"{where}: ", extensible)
        if direction not in data.directions:
            lacking = f"{where}: no training set has its direction, {'-'.join(direction)}"
            if dataset.take is not None:
                raise UserError(lacking, f"take from one of {', '.join(map('-'.join, data.directions))}")
            say(lacking)


def _named(data: Data) -> Iterator[tuple[str, Dataset]]:
    """Yield each data set with its key in the recipe, such as data.train.0."""
    for split in ("train", "valid", "test"):
        for index, dataset in enumerate(getattr(data, split)):
            yield f"data.{split}.{index}", dataset


def _check_the_only_direction(data: Data) -> None:
    """Raise UserError unless all data sets of a model without a choice of languages are of what it is trained on."""
    trained = data.directions
    those = " and ".join(map("-".join, trained))
    if data.languages not in trained:
        problem = f"data.source and data.target: are {'-'.join(data.languages)}, but data.train is {those}"
        source, target = trained[0]
        raise UserError(problem, f"--set data.source={source} --set data.target={target}")
    for where, dataset in _named(data):
        direction = data.of(dataset).languages
        if direction not in trained:
            problem = f"{where}: is {'-'.join(direction)}, but the model is trained on {those}"
            raise UserError(problem, "leave it out, or correct what it says of its languages")
