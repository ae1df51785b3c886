"""Read-only bundles from models of Marian itself: an `.npz`, its vocabularies, and the decoder.yml that names these.

The archive has Marian's settings beside the weights. Both are given the names that transformers has for them, and read
as its models are; but positions and LayerNorm's ε are Marian's, whose outputs begin with an embedding of zeros. Files
are looked for in the folder of the model alone.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nmt.checkpoint.reading import FORMAT
from nmt.exchange.npz import read_npz
from nmt.exchange.opus_mt import HEAD, OUTPUT_BIAS, TIED, USUAL_LENGTH, MarianBundle, Tensors, modules, name_of
from nmt.recipe import Model
from nmt.recipe.yaml_files import read_text
from nmt.system.errors import UserError
from nmt.system.files import remedy
from nmt.system.integrity import content, hash_file
from nmt.text.added_tokens import CONFIG as TOKENIZER
from nmt.text.added_tokens import VOCAB
from nmt.text.tokenizer import SPM, Tokenizer
from nmt.text.vocabulary import BOS, numbered, read_processor

if TYPE_CHECKING:
    from torch import Tensor

SETTINGS = "special:model.yml"
DECODER = "decoder.yml"
MODEL = "model.npz"
CONTENT = (".npz", ".spm", ".yml")  # suffixes of the files that determine outputs
EPSILON = 1e-6  # of LayerNorm
KNOWN = tomllib.loads(Path(__file__).with_name("marian.toml").read_text(encoding="utf-8"))
SIZES = {
    "d_model": "dim-emb",
    "encoder_layers": "enc-depth",
    "decoder_layers": "dec-depth",
    "encoder_attention_heads": "transformer-heads",
    "decoder_attention_heads": "transformer-heads",
    "encoder_ffn_dim": "transformer-dim-ffn",
    "decoder_ffn_dim": "transformer-dim-ffn",
}
"""Marian's settings by the keys of config.json of transformers"""
EMBEDDINGS = {
    "Wemb": "model.shared.weight",
    "encoder_Wemb": "model.encoder.embed_tokens.weight",
    "decoder_Wemb": "model.decoder.embed_tokens.weight",
    "decoder_ff_logit_out_Wt": HEAD,
    "decoder_ff_logit_out_b": OUTPUT_BIAS,
}
"""Names in transformers of the weights that are laid out as there"""
TYPES = {("", "an", ""): "marian", ("n", "a", "n"): "pegasus"}
"""`model_type` by transformer-preprocess, -postprocess and -postprocess-top, without dropout: post-norm and pre-norm"""
NORMALISED = (1, 11)
"""Version of Marian from which on pre-norm models are trained as in nmt"""
UNUSED = {"word-penalty": 0.0, "max-length-factor": 3.0}
"""Settings of decoder.yml without a counterpart, with Marian's defaults"""
MOST = 1000.0  # of a setting of decoder.yml
ENTRY = re.compile(r"""('(?:[^']|'')+'|"(?:[^"\\]|\\.)+"|[^'"].*): +(\d{1,9})\s*""")
"""A line of a vocabulary in YAML"""
ELSEWHERE = "run it by marian-decoder, or use another model"


def find_npz(path: Path) -> Path | None:
    """Return the model that a path means, an `.npz` itself or in the folder at `path`; None if there is none.

    Raise UserError, listing them, if a folder has several, of which none is called model.npz or in its decoder.yml.
    """
    if path.suffix == ".npz" and path.is_file():
        return path
    found = [file for file in sorted(path.glob("*.npz")) if not file.name.endswith(".optimizer.npz")]
    if len(found) > 1:
        names = _names(_yaml_of(path / DECODER), "models") or [MODEL]
        chosen = [file for file in found if file.name in names]
        if len(chosen) != 1:
            problem = f"{path}: holds {len(found)} models: {', '.join(file.name for file in found)}"
            raise UserError(problem, f"name one, such as {found[0]}; or several by --model, as an ensemble")
        return chosen[0]
    return found[0] if found else None


@dataclass(frozen=True)
class NpzBundle(MarianBundle):
    """A model of Marian, read as a bundle."""

    npz: Path

    @classmethod
    def of(cls, path: Path, npz: Path) -> NpzBundle:
        """Return the model `npz` that was named as `path`; raise UserError if it is damaged or not supported."""
        written = {"format": FORMAT, "task": "translate", "run": name_of(npz.parent), "step": 0, "data": "unknown"}
        found = cls(path, written, npz)
        found.recipe  # noqa: B018  # checks it
        return found

    def described(self) -> str:
        """Return what the model is, and which settings of its decoder.yml are not taken over as they are."""
        said = f"model: {self.npz} (of Marian)"
        normalize = self._number("normalize")
        if normalize:
            alpha = self.recipe.decoding.alpha
            said += f"; its length penalty, normalize {normalize}, is approximated by decoding.alpha {alpha}"
        for key, default in UNUSED.items():
            value = self._number(key, default)
            if value != default:
                said += f"; its {key} {value} is not used"
        return said

    def content(self) -> dict[str, Any]:
        """Return the hashes of the files that determine outputs, by name."""
        files = sorted(self.npz.parent.iterdir())
        return {file.name: hash_file(file) for file in files if file.suffix in CONTENT}

    def weights(self) -> dict[str, Tensor]:
        """Read the weights and convert them to fp32 with our names and layout.

        Raise UserError if weights are missing, misshapen, invalid or unexpected.
        """
        found = super().weights()
        side = "source" if self.recipe.model.tie_embeddings == "all" else "target"
        found[f"{side}_embedding.weight"][BOS] = 0.0
        return found

    @cached_property
    def _settings(self) -> dict[str, Any]:
        """Marian's settings of the model; raise UserError if nmt has no model with one of them."""
        given = read_npz(self.npz, SETTINGS)
        if SETTINGS not in given:
            raise UserError(f"{self.npz}: is no model of Marian: it lacks {SETTINGS}", remedy(self.npz))
        text = given[SETTINGS].tobytes().rstrip(b"\0")
        settings = {"type": None, **_parsed(text, f"{self.npz}: {SETTINGS}", self.npz)}
        widths = [0, settings.get("transformer-dim-ffn")]
        for key, values in {**KNOWN["supported"], "transformer-decoder-dim-ffn": widths}.items():
            value = settings.get(key, values[0])
            if value not in values:
                cell = f" (dec-cell {settings.get('dec-cell')})" if value == "rnn" else ""
                raise self._unsupported(f"{key} {value}{cell}")
        return settings

    def _unsupported(self, what: str) -> UserError:
        return UserError(f"{self.npz}: nmt has no model with Marian's {what}", ELSEWHERE)

    @cached_property
    def _config(self) -> dict[str, Any]:
        """Marian's settings under the names of transformers."""
        given = self._settings
        is_one = bool(given.get("tied-embeddings-all"))
        sizes = given.get("dim-vocabs")
        if not isinstance(sizes, list) or len(sizes) != 2:
            raise self._unsupported(f"dim-vocabs {sizes}")
        config = {
            **{theirs: given.get(key) for theirs, key in SIZES.items()},
            "model_type": self._type(given),
            "activation_function": given.get("transformer-ffn-activation", "relu"),
            TIED: is_one or bool(given.get("tied-embeddings")),
            "share_encoder_decoder_embeddings": is_one or bool(given.get("tied-embeddings-src")),
            "vocab_size": sizes[0],
            "decoder_vocab_size": sizes[1],
            "decoder_start_token_id": 0,  # any symbol: `weights` makes it zeros
            # Our penalty grows as Marian's at USUAL_LENGTH.
            "length_penalty": round(self._number("normalize") * (USUAL_LENGTH + 5) / USUAL_LENGTH, 3),
        }
        if "beam-size" in self._decoder:
            config["num_beams"] = self._decoder["beam-size"]
        return config

    def _type(self, given: Mapping[str, Any]) -> str:
        """Return what `model_type` is like this model; raise UserError if none is."""
        operations = [str(given.get("transformer-preprocess", "")), str(given.get("transformer-postprocess", "dan"))]
        operations.append(str(given.get("transformer-postprocess-top", "")))
        first, second, third = (each.replace("d", "") for each in operations)
        kind = TYPES.get((first, second, third))
        if kind is None:
            raise self._unsupported(
                "transformer-preprocess {!r}, -postprocess {!r} and -postprocess-top {!r}".format(*operations)
            )
        version = re.match(r"v?(\d{1,6})\.(\d{1,6})", str(given.get("version")))
        if kind == "pegasus" and (version is None or (int(version[1]), int(version[2])) < NORMALISED):
            problem = f"is pre-norm and of version {given.get('version')} of Marian"
            hint = "before 1.11, Marian normalised no keys and values of self-attention, and nmt does: " + ELSEWHERE
            raise UserError(f"{self.npz}: {problem}", hint)
        return kind

    @property
    def _described_in(self) -> str:
        return f"{self.npz} or its {DECODER}"

    def _shape(self) -> dict[str, Any]:
        """Return the recipe's `model` section."""
        return {**super()._shape(), "positions": "marian", "norm_epsilon": EPSILON}

    def _biased(self) -> set[str]:
        """Return names of biases of attention and outputs, which Marian's models have."""
        return {OUTPUT_BIAS, "q_proj.bias"}

    def _tensors(self, model: Model) -> Tensors:
        """Return the weights under the names and in the layout of transformers."""
        import torch

        names = dict(EMBEDDINGS)
        for module in modules(model):
            for stem, theirs in zip(module.marian, module.transformers, strict=True):
                weight, bias = weight_names(stem, model)
                names[weight] = f"{theirs}.weight"
                names[bias] = f"{theirs}.bias"
        tensors = {}
        for name, array in read_npz(self.npz).items():
            if name == SETTINGS:
                continue
            if array.dtype.kind != "f" or not np.isfinite(array).all():
                problem = f"{self.npz}: {name} holds values that are infinite, not a number, or bytes"
                raise UserError(problem, remedy(self.npz))
            if name == "decoder_ff_logit_out_W":
                name = HEAD
                array = array.T
            elif name not in EMBEDDINGS:
                is_row = array.shape[:1] == (1,)
                array = array[0] if is_row else array.T
            tensors[names.get(name, name)] = torch.from_numpy(array.astype("float32"))
        return Tensors(self.npz, tensors, SETTINGS, {theirs: name for name, theirs in names.items()})

    # --- decoder.yml and vocabularies

    @cached_property
    def _decoder(self) -> Mapping[str, Any]:
        """Contents of the decoder.yml that belongs to the model; empty if there is none."""
        places = [self.npz.with_name(f"{self.npz.name}.{DECODER}"), self.npz.with_name(DECODER)]
        for place in (*places, *sorted(self.npz.parent.glob(f"*{DECODER}"))):
            if place.is_file():
                return _yaml_of(place)
        return {}

    def _number(self, key: str, default: float = 0.0) -> float:
        """Return a setting of decoder.yml, by `default` if it has none; raise UserError if it is not a usual number."""
        value = self._decoder.get(key, default)
        if not isinstance(value, int | float) or not abs(value) <= MOST:
            problem = f"{self.npz.parent}: its {DECODER} has {key} {str(value)[:40]}, which is not usable"
            raise UserError(problem, f"write a number, of at most {MOST:g}")
        return float(value)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        names = _names(self._decoder, "vocabs") or 2 * sorted(file.name for file in self.npz.parent.glob("*.spm"))
        if len(names) != 2:
            hint = f"copy it from where the model comes from, or write {DECODER} with vocabs: [a.spm, b.spm]"
            raise UserError(f"{self.npz}: lacks a {DECODER} that names two vocabularies, of source and target", hint)
        files: dict[str, bytes] = {}
        tables = []
        for name, spm in zip(names, SPM, strict=True):
            path = self.npz.with_name(name)
            files[spm] = self._sentencepiece(path, spm)
            tables.append(_ids(path, files[spm]))
        if tables[0] == tables[1]:
            tables.pop()
        else:
            files[TOKENIZER] = json.dumps({"separate_vocabs": True}).encode()
        files |= {name: json.dumps(table).encode() for name, table in zip(VOCAB, tables, strict=False)}
        tokenizer = Tokenizer.of_marian(files, self.npz.parent)
        self._check_size(tokenizer.source, self._config["vocab_size"])
        self._check_size(tokenizer.target, self._config["decoder_vocab_size"])
        return tokenizer

    def _sentencepiece(self, path: Path, usual: str) -> bytes:
        """Return the SentencePiece model of a side: its vocabulary, or the file beside it that splits its texts."""
        place = path if path.suffix == ".spm" else path.with_name(usual)
        if path.suffix not in (".spm", ".yml", ".yaml"):
            what = "factored" if path.suffix == ".fsv" else "of another kind"
            raise UserError(f"{path}: is a vocabulary that is {what}, and nmt reads .spm and .yml", ELSEWHERE)
        if not os.path.isfile(place):  # a name may be too long to be asked for by Path.is_file
            hint = f"copy {place.name} from where the model comes from; nmt splits texts by no BPE files"
            raise UserError(f"{path.parent}: lacks {place.name}", hint)
        return content(place)

    def _other_size(self, symbols: int, rows: object) -> UserError:
        """Return an error about a model whose matrix of embeddings is not of the size of its vocabulary."""
        problem = f"{self.npz}: its vocabulary has {symbols:,} symbols, but the model has dim-vocabs {rows}"
        return UserError(problem, "take the model and its vocabularies from one copy")


def weight_names(stem: str, model: Model) -> tuple[str, str]:
    """Return the names in Marian of the weight and the bias that `Module.marian` names."""
    if stem.endswith("_ln"):
        place = "_pre" if model.norm == "pre" and not stem.endswith("_top_ln") else ""
        return f"{stem}_scale{place}", f"{stem}_bias{place}"
    prefix, _, kind = stem.rpartition("_W")
    return stem, f"{prefix}_b{kind}"


def ids_of(spm: bytes, name: str) -> dict[str, int]:
    """Return the ids of the pieces of a SentencePiece model; raise UserError, citing `name`, if it is none."""
    processor = read_processor(spm, name)
    return numbered(processor.id_to_piece(list(range(processor.get_piece_size()))))


def _ids(path: Path, spm: bytes) -> dict[str, int]:
    """Return the ids of a side's pieces by its vocabulary at `path`, which may be its SentencePiece model `spm`."""
    table = ids_of(spm, str(path)) if path.suffix == ".spm" else dict(_entries(path))
    for symbol in ("</s>", "<unk>"):
        if symbol not in table:
            raise UserError(f"{path}: lacks the symbol {symbol}", remedy(path))
    return table


def _entries(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the pieces and ids of a vocabulary in YAML, line by line: `"▁the": 4`.

    As a whole, a vocabulary would take YAML's parser a minute.
    """
    for number, line in enumerate(_decoded(content(path), str(path), path).split("\n"), 1):
        entry = ENTRY.fullmatch(line)
        if entry:
            piece = entry[1]
            if piece.startswith('"'):
                piece = _unquoted(piece)
            elif piece.startswith("'"):
                piece = piece[1:-1].replace("''", "'")
            yield piece, int(entry[2])
        elif line.strip():
            raise UserError(f"{path}:{number}: damaged: is not a piece and its number", remedy(path))


def _unquoted(written: str) -> str:
    """Return a string in double quotes, or as it is with escapes that are YAML's alone."""
    try:
        return str(json.loads(written.replace("\\x", "\\u00")))
    except ValueError:
        return written


def _yaml_of(path: Path) -> Mapping[str, Any]:
    """Read a YAML mapping; return {} if there is no file."""
    return _parsed(content(path), str(path), path) if path.is_file() else {}


def _parsed(given: bytes, name: str, path: Path) -> dict[str, Any]:
    """Parse a YAML mapping in the file at `path`; raise UserError, citing `name`, if it is none."""
    try:
        found, _ = read_text(_decoded(given, name, path), name)
    except UserError as error:
        raise UserError(error.message, remedy(path)) from None
    if not isinstance(found, dict):
        raise UserError(f"{name}: damaged: is not a mapping", remedy(path))
    return {str(key): value for key, value in found.items() if value is not None}


def _decoded(given: bytes, name: str, path: Path) -> str:
    try:
        return given.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{name}: damaged: {error}", remedy(path)) from None


def _names(values: Mapping[str, Any], key: str) -> list[str]:
    """Return the file names that a list of paths ends in; empty if there is none."""
    listed = values.get(key, [])
    return [Path(str(each)).name for each in listed] if isinstance(listed, list) else []
