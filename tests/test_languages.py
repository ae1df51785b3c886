"""One model for several languages: data sets with languages of their own, their symbols, scores and exports."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from marian_folders import write_model, write_tokenizer
from reverse_task import assert_equal_to_the_bit, metrics, shell, small

import nmt
from nmt.checkpoint.reading import Bundle, checkpoints
from nmt.data.corpus import Corpus
from nmt.data.epochs import mixture_of
from nmt.decoding.engine import Request
from nmt.exchange.opus_mt import MarianBundle
from nmt.recipe import TokenizerSettings, load
from nmt.system.errors import UserError
from nmt.text.tokenizer import Tokenizer
from nmt.text.vocabulary import EOS

RECIPE = """\
name: several
data:
  source: en
  target: de
  temperature: 2
  train:
  - {file: en-de.tsv}
  - {file: en-fr.tsv, languages: [en, fr]}
  - {file: en-fr.tsv, fields: [2, 1], source: fr, target: en}
  valid: {take: 8}
tokenizer: {vocab_size: 300}
"""
CODES = ["de", "fr", "en"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of a tiny model of the directions en-de, en-fr and fr-en."""
    folder = tmp_path_factory.mktemp("several")
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    lines = [f"{a} {b} {c}" for a in words for b in words for c in words[:5]]
    (folder / "en-de.tsv").write_text("".join(f"{line}\t{line.upper()}\n" for line in lines[:150]))
    (folder / "en-fr.tsv").write_text("".join(f"{line}\t{line[::-1]}\n" for line in lines))
    (folder / "recipe.yaml").write_text(RECIPE)
    settings = small("updates: 6, checkpoint_updates: 3, valid_beam: 1, report: false")
    done = run(folder, "nmt train recipe.yaml " + " ".join(f"'{each}'" for each in settings))
    assert done.returncode == 0, done.stderr
    return folder


def run(folder: Path, command: str) -> subprocess.CompletedProcess[bytes]:
    return shell(command, folder)


def test_every_source_begins_with_the_symbol_of_its_target(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder / "data/several")
    assert list(tokenizer.source.languages) == CODES
    corpus, data = Corpus(folder / "data/several/valid.arrow"), load(folder / "recipe.yaml").data
    assert data.directions == (("en", "de"), ("en", "fr"), ("fr", "en"))
    ids, lengths = corpus.sources(range(len(corpus)))  # type: ignore[arg-type]  # numpy takes it
    symbols = [tokenizer.source.languages[target] for _, target in data.directions for _ in range(8)]
    assert ids[:, 0].tolist() == symbols
    sources, targets = corpus.texts()
    assert [tokenizer.source.decode(row[:size]) for row, size in zip(ids.tolist(), lengths, strict=True)] == sources
    assert [tokenizer.source.encode(text) for text in sources] == [
        row[1:size] for row, size in zip(ids.tolist(), lengths, strict=True)
    ]
    assert targets[:8] == [source.upper() for source in sources[:8]]


def test_what_is_set_aside_of_one_direction_is_in_the_training_data_of_none(folder: Path) -> None:
    tokenizer, prepared = Tokenizer.load(folder / "data/several"), folder / "data/several"
    train = Corpus(prepared / "train.arrow")
    ids, lengths = train.sources(range(len(train)))  # type: ignore[arg-type]
    seen = {tokenizer.source.decode(row[:size]) for row, size in zip(ids.tolist(), lengths, strict=True)}
    for name in ("en-de.en", "en-fr.en", "fr-en.fr", "en-fr.fr", "fr-en.en"):
        lines = (prepared / f"valid.{name}").read_text().splitlines()
        assert len(lines) == 8
        assert seen.isdisjoint(lines)


def test_the_dev_score_is_the_mean_of_the_directions(folder: Path) -> None:
    scores = checkpoints(folder / "ckpts")[-1].scores
    for name in ("chrf", "bleu"):
        each = [scores[f"{name} {direction}"] for direction in ("en-de", "en-fr", "fr-en")]
        assert scores[name] == pytest.approx(sum(each) / 3)
    assert any({"valid_chrf", "valid_chrf fr-en"} <= line.keys() for line in metrics(folder / "ckpts"))


def test_text_cannot_name_a_language(folder: Path) -> None:
    vocabulary = Tokenizer.load(folder / "data/several").source
    for text in (">>fr<< one", "<2fr> one", "one >>de<<"):
        ids = vocabulary.encode(text)
        assert not set(ids) & set(vocabulary.languages.values())
        assert vocabulary.decode([EOS + 1, *ids, EOS + 2]) == text


def test_translate_writes_the_symbol_of_the_language(folder: Path) -> None:
    model = nmt.load(folder / "ckpts", device="cpu")
    symbols, given = model.tokenizer.source.languages, "one two"
    for to in CODES:
        done = run(folder, f"echo {given} | nmt translate --model ckpts --to {to} --json")
        found = json.loads(done.stdout)
        assert found["source"][0] == f">>{to}<<"
        assert found["hypotheses"][0]["text"] == model.translate([given], to=to)[0]
        pairs = [part.ids for part in model.split(Request(given, direction=(None, to)))]
        assert pairs == [[symbols[to], *model.tokenizer.source.encode(given)]]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("", ["error: this model translates to several languages: de, fr, en", "hint: name one: nmt translate --to"]),
        ("--to xx", ["error: xx: this model has no symbol for this language", "hint: its languages are de, fr"]),
    ],
)
def test_a_language_that_is_missing_or_unknown_is_an_error_that_lists_those_that_there_are(
    folder: Path, options: str, said: list[str]
) -> None:
    done = run(folder, f"echo one | nmt translate --model ckpts {options}")
    lines = done.stderr.decode().splitlines()[-2:]
    assert done.returncode == 1
    assert [line.startswith(begin) for line, begin in zip(lines, said, strict=True)] == [True, True], lines


def test_a_direction_that_no_set_has_works_and_is_named(folder: Path) -> None:
    done = run(folder, "echo one | nmt translate --model ckpts --from fr --to de")
    assert done.returncode == 0
    assert b"no training set has the direction fr-de" in done.stderr


def test_python_names_the_language_where_the_command_line_does(folder: Path) -> None:
    model, other = nmt.load(folder / "ckpts", device="cpu"), nmt.load(folder / "ckpts", device="cpu", to="fr")
    assert isinstance(model, nmt.Translator)
    assert isinstance(other, nmt.Translator)
    lines = ["one two", "three"]
    expected = model.translate(lines, to="fr")
    assert other.translate(lines) == expected
    assert [found.texts[0] for found in model.stream(lines, to="fr", source="en")] == expected
    own = Request(lines[0], direction=("en", "de"))
    for found in (other.stream([own]), model.stream([own], to="fr")):
        assert next(found).texts == model.translate(lines[:1], to="de")
    for attention in (model.attention("one", "eno", to="fr"), other.attention("one", "eno")):
        assert attention.source.tokens[0] == ">>fr<<"
    for ask in (lambda: model.stream(lines, to="xx"), lambda: model.attention("one", to="xx")):
        with pytest.raises(UserError, match="xx: this model has no symbol"):
            ask()
    with pytest.raises(UserError, match="xx: this model has no symbol"):
        nmt.load(folder / "ckpts", device="cpu", to="xx")


def test_a_direction_of_a_model_without_symbols_can_be_named() -> None:
    tokenizer = Tokenizer.train([("one two three four", "one")] * 9, TokenizerSettings(vocab_size=275))
    trained = [("en", "de"), ("fr", "de")]
    assert tokenizer.complete(("fr", None), trained) == ("fr", "de")
    assert tokenizer.complete((None, "de"), trained) == ("en", "de")
    assert tokenizer.complete(("fr", "de"), trained) == ("fr", "de")
    for given in (("de", None), ("fr", "en"), (None, "fr")):
        with pytest.raises(UserError, match="no choice of languages\nhint: it translates from en to de, or from fr to"):
            tokenizer.complete(given, trained)


def test_a_model_of_one_direction_has_no_choice(reverse_run: Path) -> None:
    done = run(reverse_run, "echo a b | nmt translate --model ckpts --to fr")
    assert done.returncode == 1
    assert b"error: fr: this model has no choice of languages" in done.stderr
    with pytest.raises(UserError, match="no choice of languages"):
        nmt.load(reverse_run / "ckpts", device="cpu").translate(["a"], to="fr")


def test_symbols_survive_averaging_and_the_export_to_transformers(folder: Path) -> None:
    done = run(folder, "nmt average ckpts --last 2 --format huggingface --out exported")
    assert done.returncode == 0, done.stderr
    back = MarianBundle.read(folder / "exported")
    assert list(back.tokenizer().source.languages) == CODES
    assert json.loads((folder / "exported/vocab.json").read_text())[">>fr<<"] == EOS + 2
    run(folder, "nmt average ckpts --last 2 --out whole")
    bundle, lines = Bundle.read(folder / "whole"), ["one two three", ">>fr<< ten"]
    assert bundle.tokenizer().equals(back.tokenizer())
    ours, theirs = (nmt.load(folder / name, device="cpu", beam=1) for name in ("whole", "exported"))
    assert ours.translate(lines, to="fr") == theirs.translate(lines, to="fr")


def test_an_export_that_cannot_keep_the_languages_says_so(folder: Path) -> None:
    pytest.importorskip("ctranslate2")
    done = run(folder, "nmt average ckpts --last 2 --format argos --out x.argosmodel")
    assert done.returncode == 1
    assert b"Argos Translate" in done.stderr
    assert b"de, fr, en" in done.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("data.train=[{source: a.en, target: a.de, languages: [en, d e]}]", "languages: must be codes"),
        ("data.valid=[{take: 4}, {take: 5, languages: [en, de]}]", "take stands more than once"),
        ("data.target=tree", "must be trees"),
    ],
)
def test_languages_that_do_not_fit_are_refused(folder: Path, change: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load(folder / "recipe.yaml", [change])


def test_temperature_draws_more_often_from_small_sets(folder: Path) -> None:
    data = load(folder / "recipe.yaml", ["data.temperature=2"]).data
    (small_set, often), (large, rarely), _ = mixture_of([100, 900, 900], data)
    assert small_set * often * 3 == pytest.approx(large * rarely)  # √100 to √900
    assert sum(size * passes for size, passes in mixture_of([100, 900, 900], data)) == pytest.approx(1900)
    assert mixture_of([100, 900, 900], load(folder / "recipe.yaml", ["data.temperature=1"]).data)[0] == (100, 1.0)


def test_a_run_of_several_languages_resumes(folder: Path, tmp_path: Path) -> None:
    settings = small("updates: 9, checkpoint_updates: 3, valid_beam: 1, report: false")
    again = "nmt train recipe.yaml " + " ".join(f"'{each}'" for each in settings)
    done = run(folder, f"{again} && {again} --out fresh")
    assert done.returncode == 0, done.stderr
    assert b"resuming at update 6" in done.stderr
    assert_equal_to_the_bit(folder / "ckpts", folder / "fresh")


def test_to_writes_what_users_of_opus_mt_type(tmp_path: Path) -> None:
    texts = ["one two three", "four five six. seven eight"]
    write_model(tmp_path / "opus", write_tokenizer(tmp_path / "opus", texts * 9, texts * 9, 60))
    model = nmt.load(tmp_path / "opus", device="cpu")
    for text in texts:
        parts = [
            [part.ids for part in model.split(request)]
            for request in (Request(f">>fra<< {text}"), Request(text, direction=(None, "fra")))
        ]
        assert parts[0] == parts[1]
    assert model.translate(texts, to="fra") == model.translate([f">>fra<< {text}" for text in texts])
    with pytest.raises(UserError, match="xx: this model has no symbol"):
        model.translate(texts, to="xx")


def test_whole_files_are_set_aside_of_each_direction(tmp_path: Path) -> None:
    for target in ("de", "fr"):
        (tmp_path / target).mkdir()
        for number in range(3):
            lines = [f"{number} {target} {word}\t{word} {target}\n" for word in ("one", "two", "three")]
            (tmp_path / f"{target}/{number}{target}.tsv").write_text("all alike\talle gleich\n" + "".join(lines * 3))
    sets = "[{file: de, target: de}, {file: fr, target: fr}]"
    data = f"{{source: en, target: de, train: {sets}, valid: {{take: 1 file}}}}"
    (tmp_path / "recipe.yaml").write_text(f"name: files\ndata: {data}\ntokenizer: {{vocab_size: 300}}\n")
    done = run(tmp_path, "nmt preprocess recipe.yaml")
    assert done.returncode == 0, done.stderr
    valid = Corpus(tmp_path / "data/files/valid.arrow").texts()
    assert [target[-2:] for target in valid[1]] == ["de"] * 3 + ["fr"] * 3
    assert len({source[0] for source in valid[0][:3]}) == len({source[0] for source in valid[0][3:]}) == 1
    assert json.loads((tmp_path / "data/files/report.json").read_text())["train"]["read"] == 4 * 10


def test_the_memory_is_that_of_the_direction(folder: Path) -> None:
    pytest.importorskip("translate", reason="needs the package translate-toolkit")
    header = 'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n'
    (folder / "app.po").write_text(f'{header}\nmsgid "one one one"\nmsgstr ""\n')
    for target, text in (("de", "ONE ONE ONE"), ("fr", "eno eno eno")):
        done = run(folder, f"nmt translate --to {target} --input app.po --output {target}.po")
        assert "1 from memory" in done.stderr.decode()
        assert f'msgstr "{text}"' in (folder / f"{target}.po").read_text()


def test_files_of_other_languages_are_neither_filled_nor_recalled(folder: Path) -> None:
    pytest.importorskip("translate", reason="needs the package translate-toolkit")
    (folder / "po").mkdir()
    (folder / "memory").mkdir()
    for code in ("de", "fr_FR", "pt_BR"):
        header = f'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n"Language: {code}\\n"\n'
        (folder / f"po/{code}.po").write_text(f'{header}\nmsgid "one one two"\nmsgstr ""\n')
        (folder / f"memory/{code}.po").write_text(f'{header}\nmsgid "one one two"\nmsgstr "from {code}"\n')
    done = run(folder, "nmt translate --to fr --input po --output fr --memory memory")
    said = done.stderr.decode()
    assert "left out, for they are in other languages (2): po/de.po (de), po/pt_BR.po (pt_BR)\n" in said
    assert "--memory: left out, for they are in other languages (2)" in said
    assert "1 string in files (1), 1 from memory" in said
    assert [path.name for path in (folder / "fr").glob("*.po")] == ["fr_FR.po"]
    assert 'msgstr "from fr_FR"' in (folder / "fr/fr_FR.po").read_text()
    for option, path in (("--input", "po/de.po"), ("--input po/fr_FR.po --memory", "memory/de.po")):
        done = run(folder, f"nmt translate --to fr {option} {path} --output x.po")
        assert f"{path}: says that its translations are in de, not in fr\nhint: " in done.stderr.decode()


def test_a_symbol_that_a_search_chooses_is_no_text(tmp_path: Path) -> None:
    texts = ["one two three", "four five six. seven eight"]
    write_model(tmp_path / "opus", write_tokenizer(tmp_path / "opus", texts * 9, texts * 9, 60))
    vocabulary = nmt.load(tmp_path / "opus", device="cpu").tokenizer.target
    ids = [vocabulary.languages["fra"], *vocabulary.encode(texts[0]), vocabulary.languages["deu"]]  # type: ignore[attr-defined]
    assert vocabulary.decode(ids) == texts[0]
