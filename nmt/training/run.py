"""`nmt train`: puts recipe, data, model and loop together, and starts or resumes a run in a directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

from nmt import bundle as bundles
from nmt.bundle import Bundle
from nmt.console import Console
from nmt.data.corpus import Corpus
from nmt.data.prepare import directory, fingerprint, prepare
from nmt.errors import Interrupted, UserError
from nmt.files import clear_parts, exclusive, read_json
from nmt.model.transformer import Transformer
from nmt.recipe import Recipe
from nmt.text.tokenizer import Tokenizer
from nmt.training.embeddings import use_embeddings
from nmt.training.loop import Loop, Position
from nmt.training.loss import Objective
from nmt.training.optimizer import Optimizer
from nmt.training.progress import METRICS, Progress, clock, forget_after, show_progress
from nmt.training.validation import Validation


def train(recipe: Recipe, out: Path, console: Console, device: torch.device, threads: int) -> None:
    """Trains into `out`, or goes on with the run that `out` holds. Raises UserError, or Interrupted once saved."""
    if out.resolve().is_relative_to(directory(recipe).resolve()):
        raise UserError(
            f"--out {out}: lies in the prepared data, which is replaced as a whole", "name another directory"
        )
    _make_directory(out)
    with exclusive(out / ".lock", str(out)):
        _train(recipe, out, console, device, threads)


def _train(recipe: Recipe, out: Path, console: Console, device: torch.device, threads: int) -> None:
    resumed = newest(out)
    base: Bundle | None = None
    if recipe.training.init_from and resumed is None:
        base = bundles.resolve(Path(recipe.training.init_from))[0]
    # A resumed run needs its own checkpoint and nothing of the bundle that it once started from.
    origin = (resumed or base) if recipe.training.init_from else None
    tokenizer_from = origin.path if origin else None
    if resumed is not None:
        _check_same_run(resumed, recipe, fingerprint(recipe, tokenizer_from))
        for line in _changes(resumed.recipe, recipe):
            console.say(line)
    if prepare(recipe, console, threads, tokenizer_from):
        console.say(f"data: {directory(recipe)} was missing or stale, now prepared")
    Run(recipe, out, console, device, base, resumed).go_on()


# Keys of training that shape the first update and no later one.
ONLY_AT_START = ("init_from", "source_embeddings", "target_embeddings")


def newest(out: Path) -> Bundle | None:
    """The newest checkpoint of a run's directory, if there is any."""
    found = bundles.checkpoints(out)
    return found[-1] if found else None


class Run:
    """One run in its directory: a model, where it stands, and how it is saved."""

    def __init__(
        self,
        recipe: Recipe,
        out: Path,
        console: Console,
        device: torch.device,
        base: Bundle | None,
        resumed: Bundle | None,
    ) -> None:
        self.recipe, self.out, self.console = recipe, out, console
        prepared = directory(recipe)
        self.tokenizer = Tokenizer.load(prepared)
        torch.manual_seed(recipe.training.seed)
        self.model = Transformer(recipe.model, len(self.tokenizer.source), len(self.tokenizer.target)).to(device)
        self.objective = Objective(self.model, recipe.training.label_smoothing)
        self.optimizer = Optimizer(self.model, recipe.model.d_model, recipe.training)
        self.position = Position()
        self.id = uuid4().hex[:12]
        self.data = str(read_json(prepared / "fingerprint.json")["fingerprint"])
        if resumed is not None:
            self._restore(resumed)
        elif base is not None:
            bundles.load_weights(self.model, bundles.read_tensors(base.path / "model.safetensors"), base.path)
            console.say(f"weights: those of {base.path}")
        use_embeddings(self.model, self.tokenizer, recipe.training, console, fresh=resumed is None)
        self.validation = self._validation(prepared)
        self.loop = Loop(self.objective, self.optimizer, Corpus(prepared / "train.arrow"), recipe.training, device)

    def go_on(self) -> None:
        """Trains from where the run stands to its end."""
        settings, at = self.recipe.training, self.position
        if at.step >= settings.updates:
            self.console.say(
                f"finished: {at.step:,} of {settings.updates:,} updates; to go on: "
                f"--set training.updates={2 * settings.updates}"
            )
            return
        if self.loop.out_of_patience(at):
            self.console.say(
                f"finished: no better dev BLEU for {at.without_improvement} checkpoints; to go on: "
                f"--set training.patience={2 * at.without_improvement}"
            )
            return
        clear_parts(self.out, "step-*")
        forget_after(self.out / METRICS, at.step)
        (self.out / "recipe.yaml").write_text(self.recipe.to_yaml(), encoding="utf-8")
        self.console.say(self._opening())
        try:
            with show_progress(self.console, self.out / METRICS, at.step, settings.updates) as shown:
                self.loop.run(at, shown, self.save)
        except Interrupted as stop:
            raise Interrupted(
                f"{stop.message} in {self.out}; to go on, run the same command again", stop.signal_number
            ) from None
        self.console.say(f"finished: {at.step:,} updates in {clock(at.seconds)}; next: nmt average {self.out}")

    def save(self, position: Position, progress: Progress, *, validate: bool) -> None:
        """Writes the checkpoint of a position, with dev scores if told to, and prunes old ones; see `loop.Save`."""
        info: dict[str, Any] = {"run": self.id, "step": position.step, "data": self.data}
        figures: dict[str, Any] = {"step": position.step}
        is_best = False
        if validate and self.validation is not None:
            dev = self.validation(self.model)
            info["scores"] = {"bleu": dev.bleu, "perplexity": dev.perplexity}
            info["signature"] = dev.signature
            figures |= {"valid_bleu": dev.bleu, "valid_perplexity": dev.perplexity}
            is_best = position.best_bleu is None or dev.bleu > position.best_bleu
            position.best_bleu = dev.bleu if is_best else position.best_bleu
            position.without_improvement = 0 if is_best else position.without_improvement + 1
        path = bundles.checkpoint_path(self.out, position.step)
        bundles.save_bundle(
            path,
            dict(self.model.named_parameters()),
            self.recipe,
            self.tokenizer,
            info,
            (self.optimizer.state(), position.to_json()),
        )
        bundles.prune(self.out, self.recipe.training.keep_last)
        progress.checkpoint(figures, path, is_best)

    def _restore(self, checkpoint: Bundle) -> None:
        if not self.tokenizer.equals(checkpoint.tokenizer()):
            raise UserError(
                f"{directory(self.recipe)}: was prepared with another tokenizer than {checkpoint.path} has",
                "train into another directory: --out OTHER",
            )
        bundles.load_weights(self.model, bundles.read_tensors(checkpoint.path / "model.safetensors"), checkpoint.path)
        values = read_json(checkpoint.path / "training.json")
        try:
            self.position = Position(**values)
            whole = (self.position.step, self.position.epoch, self.position.offset, self.position.tokens)
            if not all(isinstance(n, int) and n >= 0 for n in whole) or self.position.step != checkpoint.step:
                raise TypeError("its position is not that of the checkpoint")
            if not isinstance(self.position.seconds, float) or not isinstance(self.position.without_improvement, int):
                raise TypeError("a number is of the wrong kind")
            self.optimizer.load(bundles.read_tensors(checkpoint.path / "training.safetensors"), self.position.step)
        except (TypeError, KeyError) as error:
            raise UserError(f"{checkpoint.path}: its training state is not complete: {error}") from None
        self.id = checkpoint.info["run"]
        before, now = checkpoint.recipe.training, self.recipe.training
        if (before.batch_tokens, before.seed) != (now.batch_tokens, now.seed):  # that epoch is now cut otherwise
            self.position.epoch, self.position.offset = self.position.epoch + 1, 0
            self.console.say(f"batches differ from before: going on with epoch {self.position.epoch}")

    def _validation(self, prepared: Path) -> Validation | None:
        corpus = Corpus(prepared / "valid.arrow")
        if not len(corpus):
            return None
        longest = int(max(corpus.source_lengths.max(), corpus.target_lengths.max())) + 1
        if self.recipe.model.positions == "learned" and longest > self.recipe.model.max_positions:
            raise UserError(
                f"data.valid: its longest sentence has {longest:,} subwords, more than model.max_positions "
                f"{self.recipe.model.max_positions:,}",
                "leave it out, or raise model.max_positions",
            )
        return Validation(corpus, self.tokenizer, self.recipe.training, self.recipe.decoding)

    def _opening(self) -> str:
        size = sum(parameter.numel() for parameter in self.model.parameters())
        begin = f"resuming at update {self.position.step:,}" if self.position.step else "starting"
        return (
            f"{begin}: {size / 1e6:.2f} M parameters, {len(self.loop.corpus):,} pairs, "
            f"{self.recipe.training.updates:,} updates of {self.recipe.training.batch_tokens:,} tokens, "
            f"on {self.loop.device}, into {self.out}"
        )


def _check_same_run(checkpoint: Bundle, recipe: Recipe, data: str) -> None:
    """Refuses to go on with another model, tokenizer or other data than the run began with."""
    for section in ("model", "tokenizer"):
        before, now = getattr(checkpoint.recipe, section), getattr(recipe, section)
        for key in type(now).model_fields:
            if getattr(before, key) != getattr(now, key):
                raise UserError(
                    f"{section}.{key}: is {getattr(now, key)!r}, but the run in {checkpoint.path.parent} was started "
                    f"with {getattr(before, key)!r}",
                    "train into another directory: --out OTHER",
                )
    if checkpoint.info["data"] != data:
        raise UserError(
            f"data: not what the run in {checkpoint.path.parent} was started with (files, limits or tokenizer)",
            "train into another directory: --out OTHER",
        )


def _changes(before: Recipe, now: Recipe) -> list[str]:
    """Lines that announce which settings differ from the run's last checkpoint and apply from now on."""
    lines = []
    for section in ("training", "decoding"):
        old, new = getattr(before, section), getattr(now, section)
        for key in type(new).model_fields:
            if getattr(old, key) != getattr(new, key) and key not in ONLY_AT_START:
                lines.append(f"changed: {section}.{key} from {getattr(old, key)} to {getattr(new, key)}")
    return lines


def _make_directory(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out}: cannot be made: {error.strerror}") from None
