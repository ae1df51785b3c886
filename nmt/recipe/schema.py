"""A whole recipe: its sections, what they must agree on, and their JSON Schema."""

from __future__ import annotations

import json
from typing import Any, Self

from pydantic import Field, model_validator

from nmt.recipe.data import NAME, Data
from nmt.recipe.files import dump
from nmt.recipe.settings import Decoding, Model, Refusal, Settings, TokenizerSettings, Training
from nmt.recipe.tasks import KINDS, Kind, TaskName, task_of


class Recipe(Settings):
    """A whole run."""

    name: str = Field(pattern=NAME)
    """Name of the run."""
    data: Data
    tokenizer: TokenizerSettings = TokenizerSettings()
    model: Model = Model()
    training: Training = Training()
    decoding: Decoding = Decoding()

    @model_validator(mode="before")
    @classmethod
    def _with_defaults_of_the_task(cls, given: Any) -> Any:
        """Fill in the defaults that depend on the task."""
        if not isinstance(given, dict) or not isinstance(data := given.get("data"), dict):
            return given
        defaults = KINDS[task_of(data.get("source"), data.get("target"))].defaults
        sections = {name: given.get(name, {}) for name in defaults}
        return given | {name: {**defaults[name], **own} for name, own in sections.items() if isinstance(own, dict)}

    @property
    def task(self) -> TaskName:
        """What the model is for."""
        return task_of(self.data.source, self.data.target)

    @property
    def kind(self) -> Kind:
        """What is special about the task."""
        return KINDS[self.task]

    @model_validator(mode="after")
    def _fits_the_task(self) -> Self:
        for key, (value, reason) in self.kind.fixed.items():
            section, name = key.split(".")
            given = getattr(getattr(self, section), name)
            if given != value:
                raise Refusal(
                    f"{key}: must be {json.dumps(value)} {self.kind.condition}, since {reason} "
                    f"(got {json.dumps(given)})",
                    f"--set {key}={json.dumps(value)}",
                )
        return self

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        if self.model.tie_embeddings == "all" and not self.tokenizer.shared:
            raise Refusal(
                "model.tie_embeddings: all needs one vocabulary; with tokenizer.shared: false use target or none",
                "--set model.tie_embeddings=target",
            )
        longest = self.data.max_length + 1
        if self.training.batch_tokens < longest:
            raise Refusal(
                f"training.batch_tokens: must be at least {longest}, data.max_length and one end symbol "
                f"(got {self.training.batch_tokens})",
                f"--set training.batch_tokens={longest}, or lower data.max_length",
            )
        if self.training.patience is not None and not self.data.valid:
            raise Refusal("training.patience: needs data.valid", "add data.valid, or remove training.patience")
        limits = {"data.max_length": self.data.max_length}
        if self.kind.has_source:
            limits["decoding.max_source"] = self.decoding.max_source
        longest = max(limits.values()) + 1
        if self.model.positions == "learned" and longest > self.model.max_positions:
            raise Refusal(
                f"model.max_positions: must be at least {longest} for "
                f"{' and '.join(f'{key} {limit}' for key, limit in limits.items())} with one end symbol "
                f"(got {self.model.max_positions})",
                f"--set model.max_positions={longest}, or lower {' and '.join(limits)}",
            )
        return self

    def to_yaml(self) -> str:
        """Write the resolved recipe with every key; `load` reads an equal recipe from it."""
        return dump(self.model_dump(mode="json"))


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of recipe files; no key is required, since `extends` may supply it."""
    schema = Recipe.model_json_schema()
    for section in (schema, *schema["$defs"].values()):
        section.pop("required", None)
    base = {"type": "string", "description": "Recipe to inherit from, relative to this file."}
    schema["properties"] = {"extends": base, **schema["properties"]}
    return schema
