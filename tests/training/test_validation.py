"""Dev scores: of a parser F1 with failures missed; a whole run on a folder of a Treebank's sections."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from recipe_files import RECIPES
from reverse_task import metrics, sets
from tiny_treebank import write_treebank
from torch import Tensor

from nmt.checkpoint.reading import Bundle, checkpoints
from nmt.data.corpus import Corpus
from nmt.data.prepare import prepare
from nmt.exchange.resolve import resolve
from nmt.model.batch import Batch
from nmt.model.transformer import Transformer
from nmt.parsing.linearization import load_tokenizer
from nmt.recipe import Recipe
from nmt.search.beam import SearchEngine
from nmt.system.console import Console
from nmt.system.errors import UserError
from nmt.system.launchers import World
from nmt.training import validation
from nmt.training.dev_outputs import read_samples
from nmt.training.distributed import Group
from nmt.training.validation import DevScores, Validation

GOLD = """\
(ROOT (S (NP-SBJ (DT the) (NN dog)) (VP (VBZ sees) (NP (DT a) (NN tree))) (. .)))
(ROOT (S (NP-SBJ (DT the) (NN cat)) (VP (VBZ sleeps)) (. .)))
(ROOT (NP (-NONE- *)))
(ROOT (INTJ (UH oh)))
"""
ANSWERS = {
    "the dog sees a tree .": "(TOP (S (NP (XX the) (XX dog)) (VP (XX sees) (XX a) (NP (XX tree))) (. .)))",  # 3 of 4
    "the cat sleeps .": "(TOP (S (NP (XX the) (XX cat)) (VP (XX sleeps)) (. .)))",  # 3 of 3
    "oh": "",  # a failure: its one constituent counts as missed
}


class Parrot:
    """A parser that says what the tests wrote, whatever the model."""

    def __init__(self, model: object, tokenizer: object, decoding: object) -> None: ...

    def stream(self, lines: Sequence[str]) -> Iterator[SimpleNamespace]:
        """A result for each line, of which only the texts are known."""
        return (SimpleNamespace(texts=[ANSWERS[line] if line else ""], signs=()) for line in lines)


@pytest.fixture
def untrained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], tuple[Validation, Transformer]]:
    """Makes an untrained parser and the validation on GOLD."""
    monkeypatch.chdir(tmp_path)
    Path("valid.mrg").write_text(GOLD)

    def make() -> tuple[Validation, Transformer]:
        Path("train.mrg").write_text(GOLD * 30)
        recipe = Recipe.model_validate(
            {
                "name": "x",
                "data": {"name": "x", "source": "en", "target": "tree"}
                | {split: [{"trees": f"{split}.mrg"}] for split in ("train", "valid")},
                "tokenizer": {"vocab_size": 285},
                "model": {"layers": 1, "d_model": 8, "d_ff": 8, "heads": 1},
            }
        )
        prepare(recipe, Console(quiet=True), 1)
        tokenizer = load_tokenizer(Path("data/x"))
        model = Transformer(recipe.model, len(tokenizer.source), len(tokenizer.target))
        corpus = Corpus(Path("data/x/valid.arrow"))
        group = Group(World(), 1.0)
        return Validation(corpus, tokenizer, recipe, group, None), model

    return make


@pytest.fixture
def score(
    untrained: Callable[[], tuple[Validation, Transformer]], monkeypatch: pytest.MonkeyPatch
) -> Callable[[], DevScores]:
    """Scores what stands in the place of an untrained model."""
    monkeypatch.setattr(validation, "Parser", Parrot)

    def score() -> DevScores:
        scorer, model = untrained()
        return scorer(model)

    return score


def test_the_dev_score_of_a_parser_counts_failures_as_missed(score: Callable[[], DevScores]) -> None:
    found = score()
    precision, recall = 6 / 7, 6 / 8
    assert found.scores["f1"] == pytest.approx(100 * 2 * precision * recall / (precision + recall))
    assert found.signatures["f1"] == "EVALB|COLLINS.prm|failures:missed"
    assert found.scores["perplexity"] > 1


def test_one_engine_searches_with_the_weights_of_each_moment(untrained: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def counted(self: SearchEngine, *arguments: Any, **options: Any) -> None:
        engines.append(self)
        make(self, *arguments, **options)

    engines, make = list[SearchEngine](), SearchEngine.__init__
    monkeypatch.setattr(SearchEngine, "__init__", counted)
    torch.manual_seed(1)
    scorer, model = untrained()
    first = scorer(model).hypotheses
    with torch.no_grad():
        model.output_embedding.weight.normal_()
    second = scorer(model).hypotheses
    assert len(engines) == 1
    assert not engines[0].models  # its memory is free for training
    assert second != first
    assert second == untrained()[0](deepcopy(model)).hypotheses
    assert len(engines) == 2


def test_a_batch_that_memory_does_not_hold_is_scored_in_halves(
    score: Callable[[], DevScores], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    whole, log_probabilities, sizes = score(), validation.token_log_probabilities, []

    def holding(most: int) -> None:
        def scored(models: Sequence[Transformer], batch: Batch) -> Tensor:
            if len(batch.target_out) > most:
                raise torch.OutOfMemoryError("full")
            sizes.append(len(batch.target_out))
            return log_probabilities(models, batch)

        monkeypatch.setattr(validation, "token_log_probabilities", scored)

    holding(1)
    torch.manual_seed(1)
    assert score().scores["perplexity"] == pytest.approx(whole.scores["perplexity"], rel=1e-6)
    assert sizes == [1, 1, 1, 1]
    holding(0)
    with pytest.raises(UserError, match=r"cpu: out of memory with one sentence of data\.valid"):
        score()


SMALL = ("tokenizer.vocab_size=290", "model.layers=1", "model.d_model=16", "model.d_ff=32", "model.heads=2",
         "training.updates=6", "training.batch_tokens=600", "training.checkpoint_updates=3", "training.valid_beam=2",
         "training.warmup=10", "training.learning_rate_scale=1", "training.log_updates=3")  # fmt: skip


def test_the_papers_recipe_runs_on_any_folder_of_a_treebank(
    nmt: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_treebank(tmp_path / "wsj", ("00", "01", "02", "09", "14", "21", "22", "23"))
    arguments = (RECIPES / "wsj.yaml", *sets("data.root=wsj", *SMALL), "--device", "cpu")
    done = nmt("train", *arguments)
    assert done.code == 0, done.err
    assert "train: 40 of 40 trees" in done.err  # of sections 02 to 21
    assert "dev F1 " in done.err
    rows = {row["step"]: row for row in metrics(tmp_path / "ckpts") if "valid_f1" in row}
    assert sorted(rows) == [3, 6]
    _, references, kept = read_samples(tmp_path / "ckpts/dev.jsonl", sorted)
    assert [outputs.step for outputs in kept] == [3, 6]
    assert all(reference.startswith("(TOP ") for reference in references)
    assert all(0 <= score <= 100 for outputs in kept for score in outputs.scores)
    for bundle in checkpoints(tmp_path / "ckpts"):
        assert bundle.info.task == "parse"
        assert bundle.scores == {name: rows[bundle.step][f"valid_{name}"] for name in ("f1", "perplexity")}
        assert bundle.recipe.task.name == "parse"
    assert "(best dev F1, " in resolve(Path("ckpts"))[1]
    shutil.move("wsj", "away")  # what is prepared is enough to go on
    again = nmt("train", *arguments, *sets("training.updates=7"))
    assert again.code == 0, again.err
    assert "resuming at update 6" in again.err
    averaged = nmt("average", "ckpts")
    assert averaged.code == 0, averaged.err
    assert Bundle.read(Path("ckpts/averaged")).info.task == "parse"


# --- which lines count, and what a word is ---------------------------------------------------------------------

SOURCES = ["the cat sits on the mat", "--option %s", "two women sit in the park", "GNU"]
REFERENCES = ["die Katze sitzt auf der Matte", "--option %s", "zwei Frauen sitzen im Park", "GNU"]


@pytest.fixture
def validate(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[DevScores, Validation]]:
    """Scores outputs, whatever the model, for a development set of these lines."""

    def validate(sources, references, outputs, target="de", named=()):
        monkeypatch.setattr(validation, "perplexity", lambda *_: 2.0)
        monkeypatch.setattr(validation, "for_scoring", lambda model: model)
        monkeypatch.setattr(Validation, "_searching", lambda *_: nullcontext())
        monkeypatch.setattr(Validation, "_search", lambda *_: list(map(validation.Output, outputs)))
        data = {"name": "x", "source": "en", "target": target, "train": [{"file": "x.tsv"}]}
        data["valid"] = [{"file": "x.tsv", "languages": named or None}]
        corpus: Any = SimpleNamespace(longest=lambda: 9, texts=lambda: (list(sources), list(references)))
        model, tokenizer = cast("Any", torch.nn.Identity()), cast("Any", ONE_DIRECTION)
        made = Validation(corpus, tokenizer, Recipe.model_validate({"name": "x", "data": data}), GROUP, None)
        return made(model), made

    return validate


GROUP: Any = SimpleNamespace(rank=0, size=1)
ONE_DIRECTION = SimpleNamespace(
    source=SimpleNamespace(languages=()), typed=False, of=lambda _: SimpleNamespace(target=())
)


def test_lines_whose_reference_is_their_source_do_not_count(validate: Any) -> None:
    outputs = ["die Katze sitzt auf der Matratze", "--option %s", "zwei Frauen sitzen im Garten", "GNU"]
    found, made = validate(SOURCES, REFERENCES, outputs)
    others, _ = validate(SOURCES[::2], REFERENCES[::2], outputs[::2])
    assert found.scores == others.scores
    assert list(found.scores) == ["chrf", "bleu", "perplexity"]
    assert made.notes == ["dev lines whose reference equals their source do not count in dev chrF2 and BLEU: 2 of 4"]
    low, high = made.info(found)["interval"]
    assert low <= found.scores["chrf"] <= high < 100
    assert len(found.hypotheses) == 4  # all are shown
    corrected, made = validate(SOURCES, REFERENCES, outputs, target="en")
    assert corrected.scores["chrf"] > found.scores["chrf"]  # within a language, a line may be right as it is
    assert made.notes == []


def test_lines_count_if_all_are_their_sources(validate: Any) -> None:
    found, made = validate(SOURCES, SOURCES, [*SOURCES[:3], "x"])
    assert 0 < found.scores["chrf"] < 100
    assert made.notes == ["the reference of every dev line equals its source, so all count in dev chrF2 and BLEU"]


@pytest.mark.parametrize(
    ("target", "named", "tokenizer", "warnings"),
    [("zh", (), "zh", 0), ("zho_Hans", (), "zh", 0), ("tgt", (), "char", 1), ("de", ("en", "zh"), "zh", 0)],
)
def test_dev_scores_count_words_by_the_target_language(
    validate: Any, target: str, named: tuple[str, ...], tokenizer: str, warnings: int
) -> None:
    references = ["一只猫坐在垫子上，看着窗外。", "两个女人坐在公园的长椅上。"]
    found, made = validate(SOURCES[::2], references, references, target=target, named=named)
    assert found.scores["bleu"] == pytest.approx(100)
    assert f"|tok:{tokenizer}|" in found.signatures["bleu"]
    assert sum("name their language by data.target" in note for note in made.notes) == warnings
