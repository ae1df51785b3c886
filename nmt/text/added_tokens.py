"""Symbols that a folder of transformers has beside its SentencePiece pieces: those of languages, and added tokens.

transformers splits a text at added tokens first. nmt does not, so it refuses models with others than symbols of
languages. `known` is always the set of the file names in the folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, Field, RootModel

from nmt.system.errors import UserError
from nmt.system.files import reading, regular, remedy
from nmt.system.integrity import checked, content
from nmt.text.language_codes import SYMBOLS

CONFIG = "tokenizer_config.json"
"""File name of a tokenizer's configuration, which may list added tokens"""
VOCAB = ("vocab.json", "target_vocab.json")
"""File names of its ids for source and target; a joint vocabulary has only the first"""
ADDED_TOKENS = "added_tokens.json"
FAST = "tokenizer.json"
"""File names of other tables of added tokens"""
FAST_HEAD = 1 << 20  # characters of tokenizer.json to read: added tokens stand before its many pieces
LISTED = 3  # added tokens to name in a message
CONTROLS = ("<s>", "<pad>", "</s>", "<unk>")
LANGUAGE = re.compile(r"[a-z]{3}_[A-Z][a-z]{3}|__[A-Za-z_]+__|<mask>")
"""Added tokens of NLLB-200 and M2M-100 that are symbols of languages, or NLLB-200's <mask>, which no text needs"""
M2M_CODES = "m2m100"
"""`language_codes` in the configuration of a tokenizer like M2M-100's"""
M2M_CLASSES = ("M2M100", "Nllb", "Tokenizers", "PreTrained")
"""Beginnings of the values of `tokenizer_class` that M2M-100 and NLLB-200 have in versions of transformers"""

Id = Annotated[int, Field(ge=0, lt=10_000_000)]  # the bound keeps damaged files from asking for huge tables
M = TypeVar("M", bound=BaseModel)


class AddedToken(BaseModel):
    """Schema of a token added to a vocabulary, with its id in tokenizer.json; other keys are ignored."""

    content: str
    id: Id = 0


class _AddedTokens(RootModel[list[AddedToken]]):
    """Schema of the list of added tokens in tokenizer.json."""


class TokenizerConfig(BaseModel):
    """Schema of tokenizer_config.json; other keys are ignored."""

    separate_vocabs: bool = False
    added_tokens_decoder: dict[Id, AddedToken] = {}
    tokenizer_class: str | None = None
    language_codes: str | None = None
    legacy_behaviour: bool | None = None


class _ModelSize(BaseModel):
    """Schema of the config.json of transformers; other keys are ignored."""

    vocab_size: int = Field(ge=0, le=10_000_000, strict=True)


class Ids(RootModel[dict[str, Annotated[int, Field(ge=0, strict=True)]]]):
    """Schema of vocab.json: an id for each piece."""


def _read(kind: type[M], path: Path) -> M:
    return checked(kind, content(path), path)


def read_config(directory: Path, known: set[str]) -> TokenizerConfig:
    """Return a tokenizer's configuration; the defaults if the file is not among the `known` ones of its folder."""
    if CONFIG not in known:
        return TokenizerConfig()
    return _read(TokenizerConfig, directory / CONFIG)


def m2m_symbols(directory: Path, known: set[str], first: int) -> dict[int, str]:
    """Return the symbols of M2M-100 or NLLB-200 by id, from `first` on, which follows the pieces: languages and <mask>.

    Raise UserError if the tokenizer is of another kind.
    """
    config = read_config(directory, known)
    is_supported = {
        "tokenizer_class": (config.tokenizer_class or M2M_CLASSES[0]).startswith(M2M_CLASSES),
        "language_codes": config.language_codes in (None, M2M_CODES),
        "legacy_behaviour": not config.legacy_behaviour,
    }
    for key, is_key_supported in is_supported.items():
        if not is_key_supported:
            problem = f"{directory / CONFIG}: nmt has no tokenizer with {key} {getattr(config, key)}"
            raise UserError(problem, "use another model, or run this one by transformers")
    added = dict(_added_tokens(directory, known))
    if VOCAB[0] in known:
        symbols = [f"__{code}__" for code in SYMBOLS["m2m_100"].split()]
    else:
        has_m2m_symbols = any(token.startswith("__") for token in added.values())
        if has_m2m_symbols or (config.tokenizer_class or "").startswith(M2M_CLASSES[0]):
            problem = (
                f"{directory}: has symbols of M2M-100, whose pieces have their ids in {VOCAB[0]}, which is missing"
            )
            raise UserError(problem, f"copy {VOCAB[0]} from where the model comes from")
        symbols = [*SYMBOLS["nllb"].split(), "<mask>"]
    by_id = dict(enumerate(symbols, first))
    for index, token in added.items():
        if index >= first and LANGUAGE.fullmatch(token):
            by_id[index] = token
    return by_id


def with_all_rows(directory: Path, symbols: Mapping[int, str]) -> dict[int, str]:
    """Return `symbols` by id and, for rows of the model's embeddings behind the first of them that have none, `<ID>`.

    Raise UserError if there are fewer rows than symbols need.
    """
    size = _read(_ModelSize, directory / "config.json").vocab_size
    last = max(symbols)
    if size <= last:
        problem = f"{directory}: the model has {size:,} rows, but the symbol {symbols[last]} has the id {last:,}"
        raise UserError(problem, "rows of languages were cut off: use the model from before, or run it by transformers")
    return {index: symbols.get(index, f"<{index}>") for index in range(min(symbols), size)}


def _added_tokens(directory: Path, known: set[str]) -> set[tuple[int, str]]:
    """Return the ids and texts of the tokens at which transformers splits a text before SentencePiece does."""
    found: set[tuple[int, str]] = set()
    for index, added in read_config(directory, known).added_tokens_decoder.items():
        found.add((index, added.content))
    if ADDED_TOKENS in known:
        for token, index in _read(Ids, directory / ADDED_TOKENS).root.items():
            found.add((index, token))
    if FAST in known and VOCAB[0] not in known:  # transformers reads it for NLLB-200 only
        for added in _fast_tokens(directory / FAST):
            found.add((added.id, added.content))
    return found


def _fast_tokens(path: Path) -> list[AddedToken]:
    """Return the added tokens of a tokenizer.json, which has 30 MB for NLLB-200, but lists them at its beginning."""
    with reading(path, remedy(path)), regular(path).open(encoding="utf-8", errors="replace") as file:
        _, key, rest = file.read(FAST_HEAD).partition('"added_tokens":')
    if not key:
        return []
    try:
        listed, _ = json.JSONDecoder().raw_decode(rest.lstrip())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: damaged: its added_tokens are not valid JSON: {error}", remedy(path)) from None
    return checked(_AddedTokens, listed, path).root


def refuse_added_tokens(directory: Path, known: set[str], symbols: Iterable[tuple[int, str]]) -> None:
    """Raise UserError if transformers splits a text at other tokens than these (id, text) `symbols`.

    No text has those, so they need no splitting.
    """
    others = sorted(_added_tokens(directory, known).difference(symbols))
    if not others:
        return
    names = ", ".join(token for _, token in others[:LISTED])
    if len(others) > LISTED:
        names += " and others"
    problem = f"{directory}: its tokenizer has added tokens, at which nmt would not split a text: {names}"
    raise UserError(problem, "use the model from before they were added, or run this one by transformers")
