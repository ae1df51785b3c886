"""A translator or parser for JavaScript: its weights in 8 bits, its tokenizer, and tables of its rules.

The scripts in html/ compute: `products` multiplies, by `products.c` where it was compiled, `transformer` is the model,
`search`, `tokenizer` and `loading` are what their names say, `sentences` splits lines, `joining`, `terms` and
`case` see to translations, and `worker` puts them together; a parser has `trees` and `parser` in place of these.
`nmt/report/translating.py` writes the page.

A matrix is stored as bytes and a scale for each row, in fp32; vectors, such as biases, are stored in fp32. All parts
stand in one block, which is compressed and in base64, and so has a checksum.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt.checkpoint.reading import Bundle
from nmt.formats.frames import Frames
from nmt.formats.letter_case import KEPT
from nmt.formats.names import SIGNS, amounts
from nmt.formats.numbers import ALONE, PLAIN
from nmt.formats.sentences import ABBREVIATIONS, CLAUSE_MARKS, FULL_STOPS, SentenceSplitter, listed
from nmt.formats.tags import TAGS
from nmt.formats.terms import COPIED
from nmt.parsing.linearization import TreeVocabulary
from nmt.recipe import TaskName
from nmt.system.errors import UserError
from nmt.text.language_codes import Language
from nmt.text.marian import MarianVocabulary
from nmt.text.tokenizer import M2M, SPM, Tokenizer
from nmt.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from torch import Tensor

COMMON = ("products", "transformer", "tokenizer", "search", "loading")
ROOM = Path(__file__).parent / "html"
SCRIPTS: dict[TaskName, tuple[str, ...]] = {
    "translate": (*COMMON, "sentences", "joining", "terms", "case", "worker"),
    "parse": (*COMMON, "trees", "parser"),
}
"""Stems of the scripts of a task, in the order in which a worker runs them"""
PRODUCTS = ROOM / "products.wasm"
"""`products.c`, if it was compiled"""
LARGEST = 200_000_000  # parameters; browsers hold no text of a gigabyte
LEVELS = 127  # weights are rounded to integers from -127 to 127
SMALLEST_SCALE = 1e-12  # of a row of zeros
ALIGNED = 16  # bytes
CHUNK = 3 << 20  # bytes of the block for each element of the page; a multiple of 3, so that base64 has no padding


@dataclass
class Block:
    """Bytes of many parts, one behind the other."""

    content: bytearray = field(default_factory=bytearray)

    def add(self, part: bytes) -> int:
        """Append a part; return where it begins."""
        self.content += bytes(-len(self.content) % ALIGNED)
        start = len(self.content)
        self.content += part
        return start

    def packed(self) -> list[str]:
        """Return the block, compressed, in pieces of base64."""
        compressed = zlib.compress(self.content, 9)
        return [in_base64(compressed[start : start + CHUNK]) for start in range(0, len(compressed), CHUNK)]


def in_base64(content: bytes) -> str:
    """Return bytes in base64."""
    return base64.b64encode(content).decode()


def check_expressible(bundle: Bundle) -> None:
    """Raise UserError if a page cannot have the model."""
    new = bundle.tokenizer().new_languages
    if new:
        problem = f"{bundle.path}: has languages that were added to its tokenizer, {', '.join(new)}; a page cannot"
        raise UserError(problem, "--format huggingface takes it; or use nmt itself")


def described(bundle: Bundle) -> tuple[dict[str, Any], Block]:
    """Return all that the scripts know of a model as plain values, and the block of its weights and tokenizer.

    Raise UserError if the bundle is damaged or has too many parameters.
    """
    recipe = bundle.recipe
    tokenizer = bundle.tokenizer()
    weights = named_weights(bundle)
    block = Block()
    model = recipe.model
    config = model.model_dump(include={"layers", "d_model", "heads", "norm", "norm_epsilon", "activation", "positions"})
    config |= {"decoder_layers": model.decoder_depth, "d_k": model.key_width, "d_v": model.value_width}
    if model.positions == "words":
        config["starts"] = {"source": tokenizer.source.starts(), "target": tokenizer.target.starts()}
    tensors = {name: _added(weight, block) for name, weight in weights.items()}
    decoding = recipe.decoding.model_dump(
        include={"beam", "alpha", "max_extra", "max_source", "split", "min_length", "no_repeat", "keep"}
    )
    values: dict[str, Any] = {
        "config": config,
        "tensors": tensors,
        "weights": len(block.content),
        "positions": model.max_positions if model.positions == "learned" else None,
        "decoding": decoding,
        "vocabularies": _vocabularies(tokenizer, block),
    }
    if isinstance(tokenizer.target, TreeVocabulary):
        values["trees"] = tokenizer.target.table()
    else:
        directions = _directions(bundle, tokenizer)
        lengths = bundle.lengths
        values["directions"] = directions
        values["titles"] = bundle.recipe.data.has_titles
        values["lengths"] = None
        if lengths:
            clauses = {mark: CLAUSE_MARKS[mark].pattern for mark in lengths.unseen}
            values["lengths"] = lengths.model_dump() | {"clauses": clauses}
        values["starters"] = {each["target"]: sorted(listed("starters", each["target"])) for each in directions}
        values["kept"] = [TAGS.pattern, *KEPT.table()]
        values["copied"] = [*COPIED.table(), amounts(tokenizer.source.lacking(SIGNS))]
        values["number"] = ALONE.pattern
        values["plain_number"] = PLAIN.pattern
        values["ends"] = {"fullStops": FULL_STOPS, "abbreviations": sorted(ABBREVIATIONS)}
        languages = [each["source"] for each in directions]
        values["sentences"] = {each: SentenceSplitter(each).table() for each in languages}
        values["frames"] = {each: Frames(each, quotes=lengths is not None).table() for each in languages}
    return values, block


def named_weights(bundle: Bundle) -> dict[str, Tensor]:
    """Return a model's parameters by name, without those that are another one's; raise UserError if there are too many.

    Their names are those of `nmt.model.transformer.Transformer`.
    """
    import torch

    weights = {name: weight.detach().float() for name, weight in bundle.model(torch.device("cpu")).named_parameters()}
    parameters = sum(weight.numel() for weight in weights.values())
    if parameters > LARGEST:
        problem = f"{bundle.path}: has {parameters:,} parameters, and a page holds up to {LARGEST:,}"
        raise UserError(problem, "--format ctranslate2 takes it; or train a smaller model on its translations")
    return weights


def rounded(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round a matrix (rows, width) to int8; return it, and the scale of each row (rows, 1): weight ≈ int8 · scale."""
    import torch

    scales = weight.abs().amax(1, keepdim=True).clamp_min(LEVELS * SMALLEST_SCALE) / LEVELS
    return (weight / scales).round().to(torch.int8), scales


def write_rounded(bundle: Bundle, path: Path) -> Bundle:
    """Write a bundle whose matrices are as a page has them, in fp32; an existing bundle at `path` is replaced."""
    from nmt.checkpoint.writing import save_copy

    weights = named_weights(bundle)
    for name, weight in weights.items():
        if weight.dim() == 2:
            integers, scales = rounded(weight)
            weights[name] = integers * scales
    return save_copy(bundle, path, weights)


def _added(weight: Tensor, block: Block) -> dict[str, Any]:
    """Add a weight to the block; return its shape and where it is."""
    if weight.dim() == 1:
        return {"shape": list(weight.shape), "at": block.add(weight.numpy().tobytes())}
    integers, scales = rounded(weight)
    at = block.add(integers.numpy().tobytes())
    return {"shape": list(weight.shape), "at": at, "scales": block.add(scales.numpy().tobytes())}


def _directions(bundle: Bundle, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Return the languages to choose from, with the symbols with which sources and targets begin."""
    named = bundle.recipe.data.directions
    known = tokenizer.source.languages
    if tokenizer.typed and known:
        source = named[0][0]
        named = tuple((source, target) for target in known)
    found = []
    for source, target in named:
        of_source, of_target = tokenizer.first((source, target))
        languages = [_base(source), _base(target)]
        own = {"source": source, "target": target, "languages": languages}
        found.append({**own, "ofSource": of_source, "ofTarget": of_target})
    return found


def _base(code: str) -> str:
    """Return a language as browsers know it, whose capitals they write; English for what is no code."""
    language = Language.of(code)
    return language.base if language.is_known else "en"


def _vocabularies(tokenizer: Tokenizer, block: Block) -> dict[str, Any]:
    """Add the files of SentencePiece to the block; return for each side where its file is, and its symbols by id.

    Of a parser, whose outputs are no text, there is the source alone.

    Symbols are those of OPUS-MT, M2M-100 and NLLB-200, whose ids are not SentencePiece's, and None for our own.
    """
    files = tokenizer.merged_files()
    both = [tokenizer.source, tokenizer.target]
    contents = [getattr(side, "serialized", b"") for side in both]
    if SPM[0] in files and isinstance(tokenizer.source, MarianVocabulary):
        contents = [files[name] for name in SPM]
    elif M2M in files:
        contents = [files[M2M]] * 2
    found = {}
    places: dict[bytes, int] = {}  # of files, of which both sides may have one
    for name, side, content in zip(("source", "target"), both, contents, strict=True):
        if not isinstance(side, Vocabulary):
            continue
        if content not in places:
            places[content] = block.add(content)
        own: dict[str, Any] = {"at": places[content], "size": len(content), "symbols": None}
        if isinstance(side, MarianVocabulary):
            own["symbols"] = side.listing()
            own["textless"] = [index for index, text in enumerate(side.spellings()) if not text]
        found[name] = own
    return found


def script(*names: str) -> str:
    """Return the text of some of the scripts."""
    return "\n".join((ROOM / f"{name}.js").read_text(encoding="utf-8") for name in names)


def compiled() -> str:
    """Return products.wasm in base64; empty if it was not compiled."""
    return in_base64(PRODUCTS.read_bytes()) if PRODUCTS.is_file() else ""
