"""Symbols beside the pieces of SentencePiece in folders of transformers: of languages, and tokens that somebody added.

transformers splits a text at added tokens first, which nmt does not; so it reads models with symbols of languages only.
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

CONFIG, VOCAB = "tokenizer_config.json", ("vocab.json", "target_vocab.json")
"""File names of a tokenizer's configuration, and of its ids for source and target, of which a joint vocabulary has only
the first"""
ADDED_TOKENS, FAST = "added_tokens.json", "tokenizer.json"
"""File names of tables of added tokens, beside the one in `CONFIG`"""
FAST_HEAD, LISTED = 1 << 20, 3  # characters of tokenizer.json to read; added tokens to name
CONTROLS = ("<s>", "<pad>", "</s>", "<unk>")
LANGUAGE = re.compile(r"[a-z]{3}_[A-Z][a-z]{3}|__[A-Za-z_]+__|<mask>")
"""Added tokens of NLLB-200 and M2M-100 that are symbols of languages, or NLLB-200's <mask>, which no text needs"""
M2M_CODES, M2M_CLASSES = "m2m100", ("M2M100", "Nllb", "Tokenizers", "PreTrained")
"""`language_codes` and beginnings of `tokenizer_class` in the configurations of tokenizers like M2M-100's"""

Id = Annotated[int, Field(ge=0, lt=10_000_000)]
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


def m2m_symbols(directory: Path, known: set[str], first: int) -> dict[int, str]:
    """Return by id the symbols that follow the `first` ids of M2M-100 or NLLB-200: those of languages, and <mask>.

    Raise UserError if the tokenizer is of another kind.
    """
    config = _read(TokenizerConfig, directory / CONFIG) if CONFIG in known else TokenizerConfig()
    differs = {
        "tokenizer_class": not (config.tokenizer_class or M2M_CLASSES[0]).startswith(M2M_CLASSES),
        "language_codes": config.language_codes not in (None, M2M_CODES),
        "legacy_behaviour": config.legacy_behaviour,
    }
    for key in filter(differs.get, differs):
        problem = f"{directory / CONFIG}: nmt has no tokenizer with {key} {getattr(config, key)}"
        raise UserError(problem, "use another model, or run this one by transformers")
    is_m2m = VOCAB[0] in known
    named = dict(_added_tokens(directory, known))
    has_its_symbols = any(token.startswith("__") for token in named.values())
    if not is_m2m and (has_its_symbols or (config.tokenizer_class or "").startswith(M2M_CLASSES[0])):
        problem = f"{directory}: has symbols of M2M-100, whose pieces have their ids in {VOCAB[0]}, which is missing"
        raise UserError(problem, f"copy {VOCAB[0]} from where the model comes from")
    codes = SYMBOLS["m2m_100" if is_m2m else "nllb"].split()
    usual = [f"__{code}__" for code in codes] if is_m2m else [*codes, "<mask>"]
    listed = {index: token for index, token in named.items() if index >= first and LANGUAGE.fullmatch(token)}
    return dict(enumerate(usual, first)) | listed


def with_all_rows(directory: Path, symbols: Mapping[int, str]) -> dict[int, str]:
    """Return `symbols` by id, and names for the other rows that a model has from the first of them on.

    Raise UserError if it lacks rows for them.
    """
    size, last = _read(_ModelSize, directory / "config.json").vocab_size, max(symbols)
    if size <= last:
        problem = f"{directory}: the model has {size:,} rows, but the symbol {symbols[last]} has the id {last:,}"
        raise UserError(problem, "rows of languages were cut off: use the model from before, or run it by transformers")
    return {index: symbols.get(index, f"<{index}>") for index in range(min(symbols), size)}


def _added_tokens(directory: Path, known: set[str]) -> set[tuple[int, str]]:
    """Return the ids and texts of the tokens at which transformers splits a text before SentencePiece does."""
    found = set[tuple[int, str]]()
    if CONFIG in known:
        tokens = _read(TokenizerConfig, directory / CONFIG).added_tokens_decoder
        found |= {(index, token.content) for index, token in tokens.items()}
    if ADDED_TOKENS in known:
        ids = _read(Ids, directory / ADDED_TOKENS).root
        found |= {(index, token) for token, index in ids.items()}
    if FAST in known and VOCAB[0] not in known:  # transformers reads it for NLLB-200 only
        found |= {(token.id, token.content) for token in _fast_tokens(directory / FAST)}
    return found


def _fast_tokens(path: Path) -> list[AddedToken]:
    """Return the added tokens of a tokenizer.json, which has 30 MB for NLLB-200, but lists them at its beginning."""
    with reading(path, remedy(path)), regular(path).open(encoding="utf-8", errors="replace") as file:
        _, key, rest = file.read(FAST_HEAD).partition('"added_tokens":')
    try:
        listed = json.JSONDecoder().raw_decode(rest.lstrip())[0] if key else []
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: damaged: its added_tokens are not valid JSON: {error}", remedy(path)) from None
    return checked(_AddedTokens, listed, path).root


def refuse_added_tokens(directory: Path, known: set[str], symbols: Iterable[tuple[int, str]]) -> None:
    """Raise UserError if transformers splits a text at other tokens than these `symbols`, which no text needs."""
    if others := [token for _, token in sorted(_added_tokens(directory, known).difference(symbols))]:
        names = ", ".join(others[:LISTED]) + (" and others" if len(others) > LISTED else "")
        problem = f"{directory}: its tokenizer has added tokens, at which nmt would not split a text: {names}"
        raise UserError(problem, "use the model from before they were added, or run this one by transformers")
