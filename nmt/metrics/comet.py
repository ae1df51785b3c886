"""COMET: regression on a multilingual encoder's sentence vectors (Rei et al., 2020, 2022), with and without references.

The encoder and its tokenizer come from transformers. Weights are read from safetensors only, never unpickled.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import yaml
from pydantic import BaseModel, Field
from torch import Tensor
from torch.nn import functional

from nmt import __version__
from nmt.metrics.metric import Counts, Metric
from nmt.metrics.words import Lines
from nmt.recipe.yaml_files import NOT_YAML, Loader
from nmt.system.console import Advance
from nmt.system.errors import UserError
from nmt.system.files import read_whole
from nmt.system.hub import download, is_hub_name, split_name
from nmt.system.integrity import checked, hash_file

PARAMETERS = "hparams.yaml"
WEIGHTS = ("*.safetensors", "checkpoints/*.safetensors")
PICKLED = ("*.ckpt", "checkpoints/*.ckpt")
ON_HUB = "checkpoints/model.ckpt"  # where COMET's models have their weights
TOKENS_AT_ONCE = {"cpu": 2048, "cuda": 65_536}  # padded
SENTENCES_AT_ONCE = 4096
KINDS = {"regression_metric": True, "referenceless_regression_metric": False}
"""By the name that COMET has for a kind of model, whether it needs references"""
ENCODERS = [f"{owner}xlm-roberta-{size}" for owner in ("", "FacebookAI/") for size in ("base", "large")]
"""Encoders on the hub whose shape and tokenizer may be downloaded because hparams.yaml names them"""
EXAMPLE = "hf:Unbabel/wmt22-comet-da"
CONVERT = (
    'python -c "import sys, torch; from safetensors.torch import save_file; path = sys.argv[1]; '
    "save_file(torch.load(path, 'cpu', weights_only=True)['state_dict'], path[:-4] + 'safetensors')\""
)
"""Command that, with the path of pickled weights, converts them in the environment of unbabel-comet"""
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "sigmoid": torch.sigmoid}


class Parameters(BaseModel):
    """The keys of hparams.yaml on which scores depend, with COMET's defaults."""

    class_identifier: str
    encoder_model: str = "XLM-RoBERTa"
    pretrained_model: str = "xlm-roberta-large"
    """Hub name of the model whose tokenizer and shape the encoder has"""
    pool: Literal["avg", "max", "cls", "default"] = "avg"
    layer: Literal["mix"] | Annotated[int, Field(ge=0)] = "mix"
    layer_transformation: str = "softmax"
    layer_norm: bool = True
    activations: str = "Tanh"
    final_activation: str | None = None


class CometModel:
    """An encoder and an estimator."""

    def __init__(
        self, name: str, digest: str, parameters: Parameters, tokenizer: Any, encoder: Any, weights: dict[str, Tensor]
    ) -> None:
        """Take an encoder on its device and in its precision, and the other weights, by name."""
        self.name = name
        self.needs_reference = KINDS[parameters.class_identifier]
        self.signature = f"model:{name}|hash:{digest}"
        self._parameters = parameters
        self._tokenizer = tokenizer
        self._encoder = encoder
        self._activation = ACTIVATIONS[parameters.activations.lower()]
        layers = sorted(int(key.split(".")[2]) for key in weights if key.endswith(".weight"))
        self._estimator = [(weights[f"estimator.ff.{at}.weight"], weights[f"estimator.ff.{at}.bias"]) for at in layers]
        if parameters.layer == "mix":
            depth = encoder.config.num_hidden_layers + 1
            scalars = torch.cat([weights[f"layerwise_attention.scalar_parameters.{at}"] for at in range(depth)])
            mix = sparsemax if parameters.layer_transformation == "sparsemax" else torch.softmax
            self._mix = (weights["layerwise_attention.gamma"] * mix(scalars, 0)).tolist()

    @property
    def precision(self) -> str:
        """Precision of the encoder"""
        return "bf16" if self._encoder.dtype == torch.bfloat16 else "fp32"

    @torch.inference_mode()
    def embed(self, texts: Sequence[str], advance: Advance) -> Tensor:
        """Return vectors of texts, (texts, width), which do not depend on what else is in a batch."""
        # Positions begin at 2, and COMET leaves two more free.
        longest = self._encoder.config.max_position_embeddings - 4
        found = torch.empty(len(texts), self._encoder.config.hidden_size)
        ids: list[list[int]] = self._tokenizer(list(texts), truncation=True, max_length=longest)["input_ids"]
        by_length = sorted(range(len(ids)), key=lambda row: -len(ids[row]))  # first what needs most memory
        most = TOKENS_AT_ONCE[self._encoder.device.type]
        start = 0
        while start < len(by_length):
            width = len(ids[by_length[start]])
            rows = by_length[start : start + max(1, most // width)]
            found[rows] = self._vectors([ids[row] for row in rows], width).cpu()
            start += len(rows)
            advance(len(rows))
        return found

    def _vectors(self, batch: Sequence[list[int]], width: int) -> Tensor:
        """Return a batch's vectors, (sentences, width of the model)."""
        padding = self._tokenizer.pad_token_id
        device = self._encoder.device
        ids = torch.tensor([row + [padding] * (width - len(row)) for row in batch], device=device)
        lengths = torch.tensor([len(row) for row in batch], device=device)
        mask = torch.arange(width, device=device) < lengths[:, None]  # (sentences, symbols)
        found = self._encoder(ids, attention_mask=mask.long(), output_hidden_states=True)
        layers: tuple[Tensor, ...] = found.hidden_states
        if self._parameters.pool == "default":
            return layers[-1][:, 0].float()
        if isinstance(self._parameters.layer, int):
            mixed = layers[self._parameters.layer].float()
        else:
            mixed = torch.zeros_like(layers[0], dtype=torch.float32)
            for share, layer in zip(self._mix, layers, strict=True):
                if share:
                    mixed += share * self._normalised(layer.float(), mask)
        if self._parameters.pool == "cls":
            return mixed[:, 0]
        is_padding = (ids == padding)[:, :, None]  # also a "<pad>" in the text, as COMET has it
        if self._parameters.pool == "max":
            return mixed.masked_fill(is_padding, -torch.inf).amax(1)
        return mixed.masked_fill(is_padding, 0.0).sum(1) / lengths[:, None]

    def _normalised(self, layer: Tensor, mask: Tensor) -> Tensor:
        """Normalise a layer, (sentences, symbols, width), by mean and variance over each sentence, if it is to be."""
        if not self._parameters.layer_norm:
            return layer
        counts = mask.sum(1)[:, None, None] * layer.shape[2]
        inside = mask[:, :, None]
        mean = (layer * inside).sum((1, 2), keepdim=True) / counts
        variance = (((layer - mean) * inside) ** 2).sum((1, 2), keepdim=True) / counts
        return (layer - mean) / torch.sqrt(variance + 1e-12)

    def estimate(self, source: Tensor, hypothesis: Tensor, reference: Tensor | None) -> Tensor:
        """Return scores, (sentences), from vectors, each (sentences, width)."""
        of_source = [hypothesis * source, (hypothesis - source).abs()]
        if reference is None:
            features = [hypothesis, source, *of_source]
        else:
            features = [hypothesis, reference, hypothesis * reference, (hypothesis - reference).abs(), *of_source]
        values = torch.cat(features, dim=1)
        *hidden, (weight, bias) = self._estimator
        for inner, inner_bias in hidden:
            values = self._activation(functional.linear(values, inner, inner_bias))
        values = functional.linear(values, weight, bias)[:, 0]
        if self._parameters.final_activation:
            values = ACTIVATIONS[self._parameters.final_activation.lower()](values)
        return values


def sparsemax(values: Tensor, dim: int) -> Tensor:
    """Project values, (n,), onto the probabilities nearest to them (Martins and Astudillo, 2016): many are 0."""
    ordered = values.sort(dim, descending=True).values
    ranks = torch.arange(1, len(values) + 1)
    sums = ordered.cumsum(dim) - 1
    size = int((ranks * ordered > sums).sum())
    return (values - sums[size - 1] / size).clamp(min=0)


class Comet(Metric):
    """COMET of lines with their source and, if the model needs it, a reference; of a corpus, the mean of its lines."""

    label = "COMET"
    decimals = 4
    points = 100

    def __init__(self, model: CometModel, source: Lines, reference: Lines | None, systems: Iterable[Lines]) -> None:
        """Collect the distinct lines; `read` them before scoring any of the systems."""
        self.studied_as = model.name.rpartition("/")[2]
        self._model = model
        self._source = source
        self._reference = reference
        self.texts = list(dict.fromkeys(chain(source, reference or (), *systems)))
        self._rows = {text: row for row, text in enumerate(self.texts)}
        self._vectors = torch.empty(0)

    @property
    def signature(self) -> str:
        """Model, hashes of its weights and parameters, references and precision"""
        import transformers

        references = int(self._reference is not None)
        versions = f"transformers:{transformers.__version__}|nmt:{__version__}"
        return f"{self._model.signature}|nrefs:{references}|precision:{self._model.precision}|{versions}"

    def read(self, advance: Advance) -> None:
        """Embed each of `texts`, once, whatever number of systems share it."""
        self._vectors = self._model.embed(self.texts, advance)

    def counts(self, hypotheses: Lines) -> Counts:
        """Return each line's score, and 1."""
        scores = []
        for start in range(0, len(hypotheses), SENTENCES_AT_ONCE):
            part = slice(start, start + SENTENCES_AT_ONCE)
            reference = None if self._reference is None else self._of(self._reference[part])
            found = self._model.estimate(self._of(self._source[part]), self._of(hypotheses[part]), reference)
            scores += found.tolist()
        return [(score, 1.0) for score in scores]

    def _of(self, lines: Lines) -> Tensor:
        return self._vectors[[self._rows[line] for line in lines]]

    def score(self, sums: Sequence[float]) -> float:
        """Return the mean."""
        total, count = sums
        return total / count


# --- loading ------------------------------------------------------------------------------------------------------


def load(path: Path, device: torch.device) -> CometModel:
    """Load a model, from a folder in COMET's layout or the hub, onto a device: in bf16 on a GPU, else in fp32.

    A file does not decide what is downloaded: only the encoders that COMET's models are made of.

    Raise UserError if it is no such model, has pickled weights only, cannot be downloaded, has another encoder without
    its config.json, or transformers is missing.
    """
    name = path.resolve().name
    folder = path
    if is_hub_name(path):
        name, revision = split_name(path, EXAMPLE)
        folder = download(name, revision, str(path), [PARAMETERS, *WEIGHTS, "config.json", "tokenizer*.json"])
    parameters = _parameters(path, folder)
    file = _weights(path, folder)
    try:
        import transformers
    except ImportError as error:
        problem = f"--metric comet: transformers is not installed: {error}"
        raise UserError(problem, "pip install transformers") from None
    is_whole = (folder / "config.json").exists()
    origin = str(folder) if is_whole else parameters.pretrained_model
    problem = f"{path}: its encoder has the tokenizer and shape of {origin}"
    named, place = shlex.quote(parameters.pretrained_model), shlex.quote(str(folder))
    fetching = f"hf download {named} config.json tokenizer.json tokenizer_config.json --local-dir {place}"
    if not is_whole and origin not in ENCODERS:
        problem += f", which nmt does not download because a file names it; it does {' and '.join(ENCODERS[:2])}"
        raise UserError(problem, f"if you trust it: {fetching}")
    try:
        # Never asks whether to run code of the model's.
        config = transformers.AutoConfig.from_pretrained(origin, trust_remote_code=False)
        tokenizer = transformers.AutoTokenizer.from_pretrained(origin, trust_remote_code=False)
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        hint = f"where there is a network: {fetching}; then copy the folder here"
        raise UserError(f"{problem}, which cannot be read: {reason}", hint) from None
    encoder, weights = _read_weights(file, config)
    encoder.to(device, torch.bfloat16 if device.type == "cuda" else torch.float32)
    try:
        digest = f"{hash_file(file)}-{hash_file(folder / PARAMETERS)}"
        return CometModel(name, digest, parameters, tokenizer, encoder, weights)
    except KeyError as error:
        raise _not_of_model(file, f"lacks {error}") from None


def _read_weights(file: Path, config: Any) -> tuple[Any, dict[str, Tensor]]:
    """Return an encoder, and the other weights by name; raise UserError if the file is of another model or damaged."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file
    from transformers import XLMRobertaModel
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    try:
        others = load_file(file)
        inner = {}
        for key in [key for key in others if key.startswith("encoder.")]:
            inner[key.removeprefix("encoder.model.")] = others.pop(key)
        encoder, found = XLMRobertaModel.from_pretrained(
            None, config=config, state_dict=inner, add_pooling_layer=False, output_loading_info=True
        )
    except (SafetensorError, RuntimeError, OSError) as error:
        raise _not_of_model(file, str(error).partition("\n")[0]) from None
    if found["missing_keys"]:
        raise _not_of_model(file, f"lacks {min(found['missing_keys'])}")
    return encoder.eval(), {key: value.float() for key, value in others.items()}


def _not_of_model(file: Path, problem: str) -> UserError:
    hint = f"take another copy of the model, such as --comet {EXAMPLE}"
    return UserError(f"{file}: is damaged, or not of the model that {PARAMETERS} describes: {problem}", hint)


def _parameters(path: Path, folder: Path) -> Parameters:
    """Read hparams.yaml; raise UserError if there is none, or if the model is of another kind."""
    if path.suffix == ".ckpt":
        raise _pickled(path, path)
    file = folder / PARAMETERS
    hint = f"name a folder with {PARAMETERS}, or a model of the hub, such as --comet {EXAMPLE}"
    if not file.exists():
        raise UserError(f"{path}: is no COMET model: it has no {PARAMETERS}", hint)
    try:
        given = yaml.load(read_whole(file).decode(), Loader)
    except NOT_YAML as error:
        raise UserError(f"{file}: not valid YAML: {' '.join(str(error).split())}", hint) from None
    parameters = checked(Parameters, given, file, hint)
    for key, value, known in (
        ("class_identifier", parameters.class_identifier, KINDS),
        ("encoder_model", parameters.encoder_model, ("XLM-RoBERTa",)),
        ("activations", parameters.activations.lower(), ACTIVATIONS),
        ("final_activation", (parameters.final_activation or "tanh").lower(), ACTIVATIONS),
    ):
        if value not in known:
            problem = (
                f"{path}: is a model of another kind: its {key} is {value}, and nmt computes {' and '.join(known)}"
            )
            raise UserError(problem, f"use another model, such as --comet {EXAMPLE}")
    return parameters


def _weights(path: Path, folder: Path) -> Path:
    """Return the file of weights; raise UserError if there are pickled ones only, with what converts them, or none."""
    found = _files(folder, WEIGHTS)
    if found:
        return found[0]
    pickled = _files(folder, PICKLED)
    if is_hub_name(path):
        pickled = [folder / ON_HUB]  # not downloaded
    if pickled:
        raise _pickled(path, pickled[0])
    raise UserError(f"{path}: has no weights, {WEIGHTS[0]}", f"use another model, such as --comet {EXAMPLE}")


def _files(folder: Path, patterns: Sequence[str]) -> list[Path]:
    return sorted(chain.from_iterable(map(folder.glob, patterns)))


def _pickled(path: Path, pickled: Path) -> UserError:
    """Return the error about pickled weights, whose hint converts them."""
    command = f"{CONVERT} {shlex.quote(str(pickled))}"
    if is_hub_name(path):
        model, _ = split_name(path, EXAMPLE)
        folder = model.rpartition("/")[2]
        command = f"hf download {model} --local-dir {folder} && {CONVERT} {folder}/{ON_HUB}, and give --comet {folder}"
    problem = (
        f"{path}: its weights are pickled, in {pickled.name}, and nmt unpickles nothing: that could run any program"
    )
    return UserError(problem, f"convert them once, in an environment with unbabel-comet: {command}")
