"""Recipes: the settings of a run. Other packages import from here."""

from nmt.recipe.data import Data, Dataset
from nmt.recipe.loading import Recipe, json_schema, load, load_with_base, override_decoding, validated, without_settings
from nmt.recipe.settings import CPU_BATCH_TOKENS, CPU_DEVICE_TOKENS, Decoding, Model, TokenizerSettings, Training
from nmt.recipe.tasks import TASKS, Task, TaskName
