"""The command line as users meet it: results, streams, exit codes, error lines."""

from __future__ import annotations

import gzip
import io
import json
import math
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from reverse_task import BARE, assert_equal_to_the_bit, reseal, sets, shell, write_reverse_task

from nmt import bundle as bundles
from nmt import files
from nmt.recipe import TokenizerSettings
from nmt.text.tokenizer import Tokenizer

RECIPES = Path(__file__).parent.parent / "recipes"


def test_a_small_model_learns_to_reverse_through_the_command_line(reverse_run: Path) -> None:
    done = shell("nmt translate < test.a | nmt score test.b --json", reverse_run)
    assert done.returncode == 0, done.stderr.decode()
    result = json.loads(done.stdout)
    assert result["bleu"]["score"] > 90
    assert "tok:13a" in result["bleu"]["signature"]
    assert "averaged (average of 2 checkpoints)" in done.stderr.decode()


def test_training_reports_dev_scores_and_records_metrics(reverse_run: Path) -> None:
    log = (reverse_run / "train.log").read_text()
    assert "prepared data/reverse: 280 pieces" in log
    assert re.search(r"update 800/800  saved ckpts/step-00000800  dev BLEU [\d.]+  dev ppl [\d.]+", log)
    rows = [json.loads(line) for line in (reverse_run / "ckpts/metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if "loss" in row]
    assert losses[-1] < 0.2 * losses[0]
    assert {"step", "epoch", "perplexity", "learning_rate", "tokens_per_second", "padding"} <= rows[0].keys()
    assert max(row.get("valid_bleu", 0) for row in rows) > 90


def test_workers_of_a_host_share_its_threads(nmt, monkeypatch) -> None:
    before, seen = torch.get_num_threads(), []
    monkeypatch.setattr("nmt.training.run.train", lambda *_: seen.append(torch.get_num_threads()))
    monkeypatch.setattr("nmt.terminal.training.cores", lambda: 6)
    for name, value in (("RANK", 1), ("WORLD_SIZE", 4), ("LOCAL_RANK", 1), ("LOCAL_WORLD_SIZE", 2)):
        monkeypatch.setenv(name, str(value))
    try:
        for given in (["--threads", "4"], ["--threads", "1"], []):
            assert nmt("train", str(RECIPES / "demo.yaml"), "--device", "cpu", *given).code == 0
    finally:
        torch.set_num_threads(before)
    assert seen == [2, 1, 3]


@pytest.mark.usefixtures("new_processes")
def test_the_users_lines_work_verbatim_in_an_empty_directory(tmp_path: Path) -> None:
    """In new processes: a forked one would not miss a module that nobody imported."""
    write_reverse_task(tmp_path)
    shutil.copytree(RECIPES, tmp_path / "recipes")
    for side, name in (("a", "en"), ("b", "de")):
        for split in ("train", "valid", "test"):
            (tmp_path / f"{split}.{side}").rename(tmp_path / f"{split}.{name}")
    shutil.copy(tmp_path / "test.en", tmp_path / "input.txt")
    redirected = " ".join(
        f"--set '{setting}'"
        for setting in (
            f"data.root={tmp_path}",
            "data.train=[{source: train.en, target: train.de}]",
            "data.valid=[{source: valid.en, target: valid.de}]",
            "data.test=[{source: test.en, target: test.de}]",
            "tokenizer.vocab_size=280",
            "model={layers: 1, d_model: 16, d_ff: 16, heads: 2}",
            "training={updates: 6, batch_tokens: 1000, checkpoint_updates: 2}",
        )
    )
    for line in (
        f"nmt train recipes/wmt14_en_de.yaml {redirected}",
        "nmt average ckpts/ --last 5",
        "cat input.txt | nmt translate --beam 4 > output.txt",
        "nmt translate < test.en | nmt score test.de",
    ):
        done = shell(line, tmp_path)
        assert done.returncode == 0, (line, done.stderr.decode())
    assert b"BLEU" in done.stdout
    assert (tmp_path / "output.txt").read_bytes().count(b"\n") == 100
    assert json.loads((tmp_path / "ckpts/averaged/bundle.json").read_text())["steps"] == [2, 4, 6]


HOSTILE = [
    *[""] * 5,
    "   ",
    "x" * 10_000,
    "a b\u2028c d",
    "a\rb",
    "\x0b\x85\x1c",
    "a b c 🦊👩‍👩‍👧",
    "\x00\x01\x7f\x1b[31m",
    "<s> </s> <pad> <unk>",
    "\u2581\u2581",
    "\ufeffa b",
]


@pytest.mark.parametrize("split", ["auto", "sentences", "length"])
def test_as_many_lines_come_out_as_went_in(nmt, reverse_run: Path, split: str) -> None:
    text = "".join(line + "\n" for line in HOSTILE).encode() + b"a b \xff\xfe c\r\nlast without end"
    settings = ("--set", "max_source=32", "--set", "max_extra=3", "--set", f"split={split}")
    arguments = ("--model", reverse_run / "ckpts", *settings)
    done = nmt("translate", *arguments, stdin=text)
    assert done.code == 0, done.err
    lines = done.out.decode().split("\n")
    assert len(lines) == len(HOSTILE) + 2 + 1
    assert lines[:6] == [""] * 6
    assert lines[-1] == ""
    assert b"\r" not in done.out
    alone = [nmt("translate", *arguments, stdin=line.encode() + b"\n").out.decode() for line in HOSTILE]
    assert [line + "\n" for line in lines[: len(HOSTILE)]] == alone
    summary = r"^17 sentences, [\d,]+ tokens/s; caps hit \d+, inputs split (\d+), unknown .*\n\Z"
    assert (found := re.search(summary, done.err, re.M))
    assert int(found[1]) == 1 if split == "length" else int(found[1]) > 1


def test_n_best_lines_are_ranked_and_scored(nmt, reverse_run: Path) -> None:
    done = nmt("translate", "--model", reverse_run / "ckpts", "--n-best", 3, "--quiet", stdin=b"a b c d\nj i h\n")
    rows = [line.split("\t") for line in done.out.decode().splitlines()]
    assert [row[:2] for row in rows] == [[line, rank] for line in "12" for rank in "123"]
    assert rows[0][3] == "d c b a"
    assert rows[3][3] == "h i j"
    for group in (rows[:3], rows[3:]):
        scores = [float(row[2]) for row in group]
        assert scores == sorted(scores, reverse=True)
        assert len({row[3] for row in group}) == 3
    assert done.err == ""


def test_json_lines_tell_scores_subwords_and_what_they_look_at(nmt, reverse_run: Path) -> None:
    arguments = ("--model", reverse_run / "ckpts", "--json", "--n-best", 2, "--quiet", "--set", "max_source=4")
    done = nmt("translate", *arguments, stdin=b"a b c d\n\nd b e b f j c g\n")
    lines = [json.loads(line) for line in done.out.decode().splitlines()]
    assert [line["line"] for line in lines] == [1, 2, 3]
    assert [line["parts"] for line in lines] == [1, 0, 2]
    assert lines[0]["source"] == ["▁a", "▁b", "▁c", "▁d"]
    assert [len(line["hypotheses"]) for line in lines] == [2, 1, 2]
    for line in lines:
        for found in line["hypotheses"]:
            assert set(found) == {"text", "score", "tokens", "alignment", "log_probabilities"}
            assert len(found["alignment"]) == len(found["log_probabilities"]) == len(found["tokens"])
            assert max(found["log_probabilities"], default=0) <= 0
    best = [line["hypotheses"][0] for line in lines]
    assert [found["text"] for found in best] == ["d c b a", "", "b e b d g c j f"]  # of the last, part by part
    seen = [line["source"][index] for line, found in zip(lines, best, strict=True) for index in found["alignment"]]
    repeats = [token for found in best for token in found["tokens"]]
    # A subword looks at the one that it repeats; nobody has taught the model to, so a few may not.
    assert sum(one == other for one, other in zip(seen, repeats, strict=True)) >= len(repeats) - 2


@pytest.mark.parametrize("devices", [1, 3])
def test_translations_begin_with_the_lines_of_a_prefix_file(
    devices: int, nmt, reverse_run: Path, tmp_path: Path
) -> None:
    (tmp_path / "prefixes").write_text("j \n\nd c\n")
    arguments = ("--model", reverse_run / "ckpts", "--quiet", "--devices", devices, "--prefix", tmp_path / "prefixes")
    done = nmt("translate", *arguments, stdin=b"a b c d\na b c d\na b c d\n")
    first, free, forced = done.out.decode().splitlines()
    assert first.startswith("j ")
    assert free == forced == "d c b a"
    assert (done.code, done.err) == (0, "")


@pytest.mark.parametrize("more", [("--devices", 1), ("--devices", 3, "--batch-tokens", 7)])
def test_samples_come_on_lines_of_their_own_the_same_from_any_workers(more, nmt, reverse_run: Path) -> None:
    text = b"".join(b"%c b c d\n" % letter for letter in b"abcdefghij") + b"\na b c d\n"
    arguments = ("--model", reverse_run / "ckpts", "--quiet", "--set", "temperature=3")
    expected = nmt("translate", *arguments, "--sample", 3, "--json", stdin=text).out.splitlines()
    samples = [[found["text"] for found in json.loads(line)["hypotheses"]] for line in expected]
    assert [len(texts) for texts in samples] == [3] * 12
    assert samples[10] == [""] * 3
    assert samples[11] == samples[0]  # equal lines
    assert len({text for texts in samples for text in texts}) > 20  # of 30
    done = nmt("translate", *arguments, "--sample", 3, *more, stdin=text)
    assert done.out.decode() == "".join(f"{text}\n" for texts in samples for text in texts)
    assert (done.code, done.err) == (0, "")


@pytest.mark.parametrize(
    ("other", "error"),
    [
        ("--n-best=2", "--sample does not go with --terms, --keep or --n-best"),
        ("--terms=terms", "--sample does not go with --terms, --keep or --n-best"),
        ("--keep=a", "--sample does not go with --terms, --keep or --n-best"),
        ("--engine=ctranslate2", "--sample goes with --engine nmt"),
    ],
)
def test_options_that_do_not_go_with_samples_are_a_usage_error(other: str, error: str, nmt, reverse_run: Path) -> None:
    done = nmt("translate", "--model", reverse_run / "ckpts", "--sample", 2, other, stdin=b"a b\n")
    assert (done.code, done.out) == (2, b"")
    assert f"Error: {error}\n" in done.err


def test_a_prefix_file_with_more_or_fewer_lines_than_the_input_is_an_error(
    nmt, reverse_run: Path, tmp_path: Path
) -> None:
    (prefixes := tmp_path / "prefixes").write_text("d\n")
    arguments = ("--model", reverse_run / "ckpts", "--quiet", "--prefix", prefixes)
    for lines, what in ((b"a b c d\na b c d\n", "ends after 1 lines"), (b"", "goes on after 0 lines")):
        done = nmt("translate", *arguments, stdin=lines)
        assert done.code == 1
        assert f"error: --prefix {prefixes}: {what}, unlike the input\nhint: " in done.err
    assert nmt("translate", *arguments, "--engine", "ctranslate2", stdin=b"a\n").code == 2


@pytest.mark.parametrize("devices", [1, 3])
def test_terms_of_a_table_stand_in_translations(devices: int, nmt, reverse_run: Path, tmp_path: Path) -> None:
    (tmp_path / "terms").write_text("a\tj\nb c\tno such words\nb c\tf\n")
    arguments = (
        "--model",
        reverse_run / "ckpts",
        "--devices",
        devices,
        "--terms",
        tmp_path / "terms",
        "--keep",
        "[gh] h",
    )
    done = nmt("translate", *arguments, stdin=b"a b d\na b c d\nd g h e\nd e f\n")
    first, second, third, free = done.out.decode().splitlines()
    assert "j" in first.split()
    assert {"j", "f"} <= set(second.split())
    assert "g h" in third
    assert free == "f e d"
    assert done.code == 0
    assert done.err.endswith("missing terms 0\n")


def test_a_wrong_table_or_pattern_is_an_error(nmt, reverse_run: Path, tmp_path: Path) -> None:
    (tmp_path / "terms").write_text("a\n")
    arguments = ("translate", "--model", reverse_run / "ckpts", "--quiet")
    done = nmt(*arguments, "--terms", tmp_path / "terms", stdin=b"a\n")
    assert (done.code, done.out) == (1, b"")
    assert done.err.startswith(f"error: {tmp_path / 'terms'}:1: is no source term, tab, target term")
    done = nmt(*arguments, "--keep", "(", stdin=b"a\n")
    assert (done.code, done.err.splitlines()[0]) == (
        1,
        "error: --keep: '(' is no regular expression: missing ), unterminated subpattern at position 0",
    )
    for option in ("--terms", "--keep"):
        assert nmt(*arguments, option, tmp_path / "terms", "--engine", "ctranslate2", stdin=b"a\n").code == 2


def test_a_run_knows_how_long_its_training_lines_were(nmt, reverse_run: Path) -> None:
    (known,) = {
        json.dumps(bundles.Bundle.read(path).info["lengths"])
        for path in bundles.checkpoint_folders(reverse_run / "ckpts")
    }
    averaged = bundles.Bundle.read(reverse_run / "ckpts/averaged")
    assert json.loads(known) == averaged.info["lengths"]
    lengths = averaged.lengths
    assert lengths is not None
    assert (lengths.language, lengths.sentences, lengths.usual_sentences) == ("a", 1, 1)
    assert 1 < lengths.source <= lengths.longest_source < 20
    assert (lengths.least_ratio, lengths.greatest_ratio) == (1.0, 1.0)  # reversed, a line is as long as before
    long = " ".join("abcdefghij" * 4).encode()
    done = nmt("translate", "--model", reverse_run / "ckpts", "--json", stdin=long + b"\na b c d\n")
    split, whole = (json.loads(line) for line in done.out.decode().splitlines())
    assert (split["parts"] > 1, whole["parts"], whole["unusual_length"]) == (True, 1, False)
    assert "inputs split 1" in done.err


def test_a_model_of_several_sentences_a_line_is_given_as_many(nmt, tmp_path: Path) -> None:
    write_reverse_task(tmp_path)
    for split in ("train", "valid"):
        for side in "ab":
            path = tmp_path / f"{split}.{side}"
            lines = [f"{line.capitalize()}." for line in path.read_text().splitlines()]
            path.write_text("".join(f"{' '.join(three)}\n" for three in zip(*[iter(lines)] * 3, strict=False)))
    updates = "training.updates=2", "training.checkpoint_updates=2"
    settings = sets(f"data.root={tmp_path}", "tokenizer.vocab_size=300", *updates)
    ckpts = tmp_path / "ckpts"
    done = nmt("train", tmp_path / "recipe.yaml", *settings, "--out", ckpts, "--quiet")
    assert done.code == 0, done.err
    three, twelve = ("A b c d. D e f g. G h i j. " * times for times in (1, 4))
    done = nmt("translate", "--model", ckpts, "--json", stdin=f"{three}\n{twelve}\n".encode())
    assert [json.loads(line)["parts"] for line in done.out.decode().splitlines()] == [1, 4]
    assert "inputs split 1" in done.err


def test_an_ensemble_of_a_model_with_itself_finds_what_it_finds(nmt, reverse_run: Path) -> None:
    model, text = ("--model", reverse_run / "ckpts/averaged"), (reverse_run / "test.a").read_bytes()[:500]
    once, twice = (nmt("translate", *models, "--quiet", stdin=text).out for models in (model, model + model))
    assert once == twice


def test_strict_makes_an_error_of_what_went_less_than_well(nmt, reverse_run: Path) -> None:
    arguments = ("translate", "--model", reverse_run / "ckpts", "--strict", "--quiet")
    done = nmt(*arguments, stdin=b"a b c\n\nj i h\n")
    assert (done.code, done.out, done.err) == (0, b"c b a\n\nh i j\n", "")
    done = nmt(*arguments, "--set", "max_source=3", stdin="a b c\né\na b c d\n".encode())
    assert done.code == 1
    assert done.out.count(b"\n") == 3
    message, hint, end = done.err.split("\n")
    assert message.startswith("error: --strict: ")
    assert "inputs split 1 (first in line 3), unknown characters 1 (first in line 2)" in message
    assert (hint[:6], end) == ("hint: ", "")


def test_several_workers_write_what_one_writes(nmt, reverse_run: Path, monkeypatch) -> None:
    monkeypatch.chdir(reverse_run)
    one = nmt("translate", "--input", "test.a")
    for options in ("--threads 2", "--devices 3 --threads 3"):  # of threads on a CPU workers are made
        done = shell(f"nmt translate --input test.a {options}", reverse_run)
        assert (done.returncode, done.stdout) == (0, one.out), done.stderr.decode()
        assert b"100 sentences" in done.stderr


def test_the_ctranslate2_engine_writes_the_same_and_loads_no_torch(nmt, reverse_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    shutil.copytree(reverse_run / "ckpts/averaged", tmp_path / "model")
    program = "import sys\nfrom nmt.cli import main\ntry:\n  main()\nfinally:\n  assert 'torch' not in sys.modules\n"
    # A wider beam may end elsewhere, since CTranslate2 stops by another rule.
    arguments = ["translate", "--model", tmp_path / "model", "--input", reverse_run / "test.a", "--beam", "1"]
    command = [sys.executable, "-c", program, *arguments, "--engine", "ctranslate2"]
    found = subprocess.run(command, capture_output=True, check=True).stdout
    assert found == nmt(*arguments).out
    both = nmt(*arguments, "--engine", "ctranslate2", "--model", tmp_path / "model")
    assert (both.code, "--engine ctranslate2: searches with one model" in both.err) == (1, True)


def test_a_terminal_shows_how_far_translating_is(nmt, reverse_run: Path, tmp_path: Path, monkeypatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    (tmp_path / "in").write_text("a b c\n\nc d e\n")
    monkeypatch.delenv("CI", raising=False)  # where nobody watches
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    done = nmt("translate", "--model", reverse_run / "ckpts", "--input", tmp_path / "in")
    assert done.out == b"c b a\n\ne d c\n"
    shown = terminal.getvalue()
    assert re.search(r"3/3.* lines.* tokens/s", shown)
    assert "3 sentences, " in shown[shown.rindex("3/3") :]


def test_files_may_be_compressed_on_both_ways(nmt, reverse_run: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "in.gz", tmp_path / "out.gz"
    source.write_bytes(gzip.compress(b"a b c d\n"))
    done = nmt("translate", "--model", reverse_run / "ckpts", "--input", source, "--output", output, "--beam", 1)
    assert done.code == 0
    assert gzip.decompress(output.read_bytes()) == b"d c b a\n"
    reference = tmp_path / "ref.gz"
    reference.write_bytes(gzip.compress(b"d c b a\n"))
    assert "BLEU 100.00  nrefs:1" in nmt("score", reference, output).out.decode()


def test_an_output_is_only_opened_when_the_input_is_there_and_another_file(
    nmt, reverse_run: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    kept.write_text("a b c\n")
    arguments = ("translate", "--model", reverse_run / "ckpts", "--output", kept)
    same = nmt(*arguments, "--input", kept)
    assert (same.code, "is also the input" in same.err) == (1, True)
    missing = nmt(*arguments, "--input", tmp_path / "missing")
    assert (missing.code, "missing: cannot be read" in missing.err) == (1, True)
    assert kept.read_text() == "a b c\n"


def test_an_output_takes_its_name_when_it_is_whole(nmt, reverse_run: Path, tmp_path: Path) -> None:
    kept, broken = tmp_path / "kept", tmp_path / "broken.gz"
    kept.write_text("old\n")
    broken.write_bytes(gzip.compress(b"a b c\n" * 100)[:-4])
    done = nmt("translate", "--model", reverse_run / "ckpts", "--input", broken, "--output", kept)
    assert (done.code, "broken.gz: cannot be read to its end" in done.err) == (1, True)
    assert kept.read_text() == "old\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken.gz", "kept"]
    assert nmt("translate", "--model", reverse_run / "ckpts", "--output", kept, stdin=b"a b c\n").code == 0
    assert kept.read_text() == "c b a\n"


def test_one_directory_has_one_training_at_a_time(nmt, tmp_path: Path, monkeypatch) -> None:
    write_reverse_task(tmp_path)
    monkeypatch.chdir(tmp_path)
    with files.exclusive(tmp_path / "ckpts/.lock", "ckpts", print):
        done = nmt("train", "recipe.yaml", "--set", "training.updates=1")
    assert done.code == 1
    assert "error: ckpts: another nmt is writing there" in done.err
    assert nmt("train", "recipe.yaml", "--set", "training.updates=1").code == 0


def test_a_run_needs_the_tokenizer_it_began_with(nmt, tmp_path: Path, monkeypatch) -> None:
    write_reverse_task(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert nmt("train", "recipe.yaml", "--set", "training.updates=1").code == 0
    other = Tokenizer.train([("zz yy xx", "zz yy xx ww")] * 50, TokenizerSettings(vocab_size=266))
    for name, content in other.files().items():
        (tmp_path / "data/reverse" / name).write_bytes(content)
    reseal(tmp_path / "data/reverse")
    done = nmt("train", "recipe.yaml", "--set", "training.updates=2")
    assert done.code == 1
    assert "has another tokenizer than the run's checkpoint ckpts/step-00000001" in done.err


def test_the_model_is_found_by_flag_environment_and_default(nmt, reverse_run: Path, monkeypatch) -> None:
    assert "hint: name a bundle" in nmt("translate", "--model", "nowhere").err
    monkeypatch.setenv("NMT_MODEL", str(reverse_run / "ckpts" / "step-00000800"))
    assert "step-00000800" in nmt("translate").err
    monkeypatch.delenv("NMT_MODEL")
    monkeypatch.chdir(reverse_run)
    assert "model: ckpts/averaged" in nmt("translate").err


def test_a_closed_pipe_ends_quietly(reverse_run: Path) -> None:
    line = "yes 'a b c' | head -3000 | nmt translate --quiet --beam 1 | head -1; echo ${PIPESTATUS[2]}"
    done = shell(line, reverse_run)
    assert done.stdout == b"c b a\n0\n"
    assert done.stderr == b""


def test_running_a_finished_run_again_says_how_to_go_on(nmt, reverse_run: Path, monkeypatch) -> None:
    monkeypatch.chdir(reverse_run)
    done = nmt("train", "recipe.yaml")
    assert done.code == 0
    assert "to continue: --set training.updates=1600" in done.err
    lowered = nmt("train", "recipe.yaml", "--set", "training.updates=300")
    assert "to continue: --set training.updates=1600" in lowered.err


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.d_ff=64", "error: model.d_ff: is 64, but the run in ckpts was started with 128"),
        (
            "tokenizer.algorithm=unigram",
            "error: tokenizer.algorithm: is 'unigram', but the run in ckpts was started with",
        ),
        ("data.max_length=40", "error: data: the run in ckpts was started with other files"),
    ],
)
def test_a_run_refuses_another_model_tokenizer_or_data(nmt, reverse_run: Path, monkeypatch, override, message) -> None:
    monkeypatch.chdir(reverse_run)
    before = sorted(reverse_run.rglob("*"))
    done = nmt("train", "recipe.yaml", "--set", override)
    assert done.code == 1
    assert message in done.err
    assert "hint: train into another directory: --out OTHER" in done.err
    assert sorted(reverse_run.rglob("*")) == before


def test_preprocess_says_when_there_is_nothing_to_do(nmt, reverse_run: Path, monkeypatch) -> None:
    monkeypatch.chdir(reverse_run)
    assert "nothing to do: data/reverse is up to date" in nmt("preprocess", "recipe.yaml").err


# about 11 updates an epoch, so that a stop at 23 is in the third
SHORT = "--set training.updates=40 --set model.dropout=0.2 --set training.checkpoint_updates=15 --threads 1"
SHORT += " --set training.batch_tokens=5000"


def test_a_resumed_run_is_bit_equal_to_one_that_was_not_stopped(task: Path) -> None:
    whole = shell(f"nmt train recipe.yaml {SHORT} --out whole", task)
    assert whole.returncode == 0, whole.stderr.decode()
    stopped = shell(f"nmt train recipe.yaml {SHORT} --set training.updates=23 --out parts", task)
    assert stopped.returncode == 0
    resumed = shell(f"PYTHONHASHSEED=1 nmt train recipe.yaml {SHORT} --out parts", task)  # in a process of its own
    assert "changed: training.updates from 23 to 40" in resumed.stderr.decode()
    assert "resuming at update 23" in resumed.stderr.decode()
    assert json.loads((task / "parts/step-00000023/training.json").read_text())["epoch"] >= 1
    assert_equal_to_the_bit(task / "whole", task / "parts")
    rows = [[json.loads(row) for row in (task / name / "metrics.jsonl").open()] for name in ("whole", "parts")]
    scores = [{row["step"]: row["valid_bleu"] for row in of if "valid_bleu" in row} for of in rows]
    assert list(scores[0]) == [15, 30, 40]
    assert list(scores[1]) == [15, 23, 30, 40]
    assert scores[0].items() <= scores[1].items()


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 143),
        (signal.SIGKILL, -9),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow),
    ],
)
def test_a_stopped_run_goes_on_where_it_was(task: Path, number: int, code: int) -> None:
    settings = sets(*BARE, "training.updates=100000", "training.checkpoint_updates=20")
    command = [sys.executable, "-m", "nmt", "train", "recipe.yaml", *settings]
    process = subprocess.Popen(command, cwd=task, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "saved ckpts/step-00000040" in line:
            break
    process.send_signal(number)
    rest = process.stderr.read()
    assert process.wait(60) == code
    if number != signal.SIGKILL:
        assert "to resume, run the same command again" in rest
    assert "Traceback" not in rest
    newest = bundles.checkpoints(task / "ckpts")[-1].step
    assert newest >= 40
    more = " ".join(sets(*BARE, f"training.updates={newest + 5}"))
    again = shell(f"nmt train recipe.yaml {more}", task)
    assert f"resuming at update {newest:,}" in again.stderr.decode()
    assert bundles.checkpoints(task / "ckpts")[-1].step == newest + 5
    assert [path.name for path in (task / "ckpts").glob(".*")] == [".lock"]


def test_other_batches_begin_a_new_epoch_and_are_announced(nmt, tmp_path: Path, monkeypatch) -> None:
    write_reverse_task(tmp_path)
    monkeypatch.chdir(tmp_path)
    settings = ["--set", "data.valid=[]", "--set", "training.updates=3"]
    assert nmt("train", "recipe.yaml", *settings).code == 0
    settings = ["--set", "data.valid=[]", "--set", "training.updates=5", "--set", "training.batch_tokens=250"]
    done = nmt("train", "recipe.yaml", *settings)
    assert "changed: training.batch_tokens from 500 to 250" in done.err
    assert "batches differ from before: continuing with epoch 1" in done.err
    position = json.loads((tmp_path / "ckpts/step-00000005/training.json").read_text())
    assert (position["epoch"], position["offset"]) == (1, 2)


def test_a_plan_needs_neither_data_nor_network(nmt, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = nmt("train", RECIPES / "wmt14_en_de.yaml", "--plan", "--device", "cpu")
    assert done.code == 0, done.err
    text = done.out.decode()
    for figure in ("63,045,632", "18,944,000", "25,000 source and 25,000 target", "757 MB a checkpoint", "GFLOP/s"):
        assert figure in text
    assert list(tmp_path.iterdir()) == []


def test_fine_tuning_starts_from_a_bundle_and_its_tokenizer(
    nmt, reverse_run: Path, tmp_path: Path, monkeypatch
) -> None:
    write_reverse_task(tmp_path)
    monkeypatch.chdir(tmp_path)
    base = reverse_run / "ckpts"
    settings = [f"training.init_from={base}", "training.updates=1", "training.warmup=4000", "data.name=tuned"]
    done = nmt("train", "recipe.yaml", *(part for setting in settings for part in ("--set", setting)))
    assert done.code == 0, done.err
    assert f"tokenizer: from {base}/averaged" in done.err
    assert f"weights: from {base}/averaged" in done.err
    assert float(re.search(r"dev BLEU ([\d.]+)", done.err)[1]) > 90


def test_a_shape_that_does_not_fit_the_bundle_is_named(nmt, reverse_run: Path, tmp_path: Path, monkeypatch) -> None:
    write_reverse_task(tmp_path)
    monkeypatch.chdir(tmp_path)
    done = nmt("train", "recipe.yaml", "--set", f"training.init_from={reverse_run / 'ckpts'}", "--set", "model.d_ff=64")
    assert done.code == 1
    assert "has model.d_ff 128, but the recipe has 64" in done.err


def test_positions_that_are_not_those_of_the_bundle_are_named(nmt, reverse_run: Path, tmp_path, monkeypatch) -> None:
    write_reverse_task(tmp_path)
    monkeypatch.chdir(tmp_path)
    settings = [f"training.init_from={reverse_run / 'ckpts'}", "model.positions=words"]
    done = nmt("train", "recipe.yaml", *(word for setting in settings for word in ("--set", setting)))
    assert done.code == 1
    assert "has model.positions sinusoidal, but the recipe has words" in done.err
    assert "--set model.positions=sinusoidal" in done.err


def test_patience_ends_a_run_that_no_longer_improves(nmt, tmp_path: Path, monkeypatch) -> None:
    write_reverse_task(tmp_path)
    monkeypatch.chdir(tmp_path)
    settings = ["training.updates=400", "training.checkpoint_updates=2", "training.patience=2"]
    settings += ["training.learning_rate_scale=1e-6"]
    done = nmt("train", "recipe.yaml", *(part for setting in settings for part in ("--set", setting)))
    assert done.code == 0, done.err
    assert len(bundles.checkpoints(tmp_path / "ckpts")) == 3  # the first is the best, two do not improve on it
    again = nmt("train", "recipe.yaml", *(part for setting in settings for part in ("--set", setting)))
    assert "finished: no better dev BLEU for 2 checkpoints" in again.err


def test_a_diverged_run_stops_with_one_line_and_keeps_its_checkpoints(nmt, tmp_path: Path, monkeypatch) -> None:
    write_reverse_task(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert nmt("train", "recipe.yaml", "--set", "training.updates=2", "--set", "data.valid=[]").code == 0
    settings = ["data.valid=[]", "training.updates=60", "training.learning_rate_scale=1e30"]
    settings += ["training.checkpoint_updates=5"]  # checkpoints come before the first log line
    done = nmt("train", "recipe.yaml", *(part for setting in settings for part in ("--set", setting)))
    assert done.code == 1
    assert "training diverged" in done.err
    assert [bundle.step for bundle in bundles.checkpoints(tmp_path / "ckpts")] == [2]


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["parse"], 1, "error: ckpts: no such model"),
        (["parse", "--pretty", "--json"], 2, "--pretty does not go with --json or --n-best"),
        (["translate", "--beam", "0"], 2, "'--beam': 0 is not in the range x>=1"),
        (["translate", "--engine", "marian"], 2, "'marian' is not one of 'nmt', 'ctranslate2'"),
        (["translate", "--devices", "0"], 2, "'--devices': 0 is not in the range 1<=x<=256"),
        (["parse", "--devices", "1000000000000"], 2, "1000000000000 is not in the range 1<=x<=256"),
        (["train", "missing.yaml", "--devices", "1000000000000"], 2, "1000000000000 is not in the range 1<=x<=256"),
        (["translate", "--no-such-flag"], 2, "No such option '--no-such-flag'"),
        (["no-such-command"], 2, "No such command 'no-such-command'"),
        (["score", "missing.txt"], 1, "error: missing.txt: cannot be read: No such file or directory"),
        (["score", "ref", "--metric", "rouge"], 2, "'rouge' is none of bleu, chrf, ter"),
        (["score", "ref", "--metric", "perplexity"], 2, "'perplexity' is none of bleu, chrf, ter"),
        (["score", "ref", "--source", "src"], 2, "--source goes with --model"),
        (["score", "ref", "--language", "de"], 2, "--language goes with --metric tokenised, paper"),
        (["score", "ref", "--baseline", "hyp", "--metric", "brackets"], 2, "--baseline goes with --metric bleu, chrf"),
        (["score", "ref", "--paper", "--metric", "brackets"], 2, "--metric brackets goes alone"),
        (["score", "ref", "--paper", "--model", "m", "--source", "src"], 2, "'paper' is none of perplexity, logprob"),
        (["score", "ref", "--set", "batch_tokens=9"], 2, "--set goes with --model"),
        (["score", "ref", "--model", "m"], 1, "error: ref: cannot be read"),
        (
            ["score", "ref", "hyp", "--model", "m", "--source", "src"],
            2,
            "--model scores REF itself, so it takes no HYP",
        ),
        (["score", "ref", "--reference", "more", "--model", "m", "--source", "src"], 2, "no HYP or --reference"),
        (["score", "ref", "--model", "m", "--source", "src", "--metric", "bleu"], 2, "none of perplexity, logprob"),
        (["score", "ref", "--model", "m", "--source", "src", "--metric", "logprob", "--json"], 2, "goes alone"),
        (["score", "ref", "--model", "m", "--source", "src"], 1, "error: src: cannot be read"),
        (["average", "missing"], 1, "error: missing: no such directory"),
        (["train", "missing.yaml"], 1, "error: missing.yaml: no such recipe"),
        (["train", str(RECIPES / "demo.yaml"), "--device", "cuda:99"], 1, "error: --device cuda:99: this machine has"),
        (["train", str(RECIPES / "demo.yaml"), "--device", "tpu"], 1, "error: --device tpu"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(nmt, tmp_path: Path, monkeypatch, argv, code, message) -> None:
    monkeypatch.chdir(tmp_path)
    done = nmt(*argv)
    assert done.code == code
    assert message in done.err
    assert "Traceback" not in done.err
    assert done.out == b""


def test_scores_need_equally_many_lines(nmt, tmp_path: Path) -> None:
    (tmp_path / "ref").write_text("a\nb\n")
    done = nmt("score", tmp_path / "ref", stdin=b"a\n")
    assert done.code == 1
    assert "the hypothesis has 1 lines and reference has 2" in done.err


def test_scores_are_compared_with_those_of_a_baseline(nmt, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ref").write_text("der Hund läuft nach Haus\n" * 9 + "die Katze schläft auf dem Sofa\n")
    Path("hyp").write_text("der Hund läuft nach Haus\n" * 9 + "die Katze sitzt auf dem Sofa\n")
    Path("other").write_text("der Hund rennt nach Haus\n" * 9 + "die Katze schläft auf dem Sofa\n")
    found = json.loads(nmt("score", "ref", "hyp", "--baseline", "other", "--metric", "bleu,ter", "--json").out)
    assert list(found) == ["bleu", "ter"]
    for metric, worse in (("bleu", -1), ("ter", 1)):
        alone = json.loads(nmt("score", "ref", "other", "--metric", metric, "--json").out)[metric]["score"]
        one, other = found[metric], found[metric]["baseline"]
        assert set(one) == {"score", "signature", "mean", "ci", "baseline", "p_value"}
        assert other["score"] == pytest.approx(alone)
        assert (other["score"] - one["score"]) * worse > 0
    text = nmt("score", "ref", "--baseline", "other", "--metric", "bleu", stdin=Path("hyp").read_bytes())
    one, other = found["bleu"], found["bleu"]["baseline"]
    both = [f"{of['score']:.2f} ({of['mean']:.2f} ± {of['ci']:.2f})" for of in (one, other)]
    difference = f"{one['score'] - other['score']:+.2f}, p = {one['p_value']:.3f}"
    assert text.out.decode() == f"BLEU {both[0]}, baseline {both[1]}: {difference}  {one['signature']}\n"
    assert "95% interval" in text.err
    assert nmt("score", "ref", "hyp", "--baseline", "other", "--quiet").err == ""


def test_2017_bleu_stands_beside_sacrebleus_with_its_label(nmt, tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("sacremoses")
    monkeypatch.chdir(tmp_path)
    line = "Der deutsch-französische Zug fährt nach Haus.\n".encode()
    Path("test.de").write_bytes(line)
    Path("test").write_bytes(line)
    for wanted in (["--paper", "--metric", "bleu"], ["--metric", "paper"], ["--metric", "paper", "--paper"]):
        first, second = nmt("score", "test.de", *wanted, stdin=line).out.decode().splitlines()
        assert first.startswith("BLEU 100.00  nrefs:1|case:mixed|eff:no|tok:13a|")
        assert second.startswith("BLEU-2017 100.00  nrefs:1|case:mixed|eff:no|tok:sacremoses-")
        assert "-de-compounds|smooth:none|" in second
        assert second.endswith("  (for comparison with 2017 figures only)")
    found = json.loads(nmt("score", "test", "--paper", "--language", "fr", "--json", stdin=line).out)
    assert list(found) == ["bleu", "chrf", "paper"]
    assert found["paper"]["note"] == "for comparison with 2017 figures only"
    assert "-fr-compounds" in found["paper"]["signature"]
    for argv in (["test"], ["test.de", "--language", "xx"]):
        done = nmt("score", *argv, "--paper", stdin=line)
        assert (done.code, done.out) == (1, b"")
        assert "error: BLEU of Moses' words: the language of the reference, " in done.err
        assert "hint: give --language CODE" in done.err


def test_tokenised_and_lowercased_bleu_are_what_published_figures_need(nmt, tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("sacremoses")
    monkeypatch.chdir(tmp_path)
    line = "Der deutsch-französische Zug fährt nach Haus.\n"
    Path("test.de").write_text(line, encoding="utf-8")
    done = nmt("score", "test.de", "--metric", "tokenised", "--lowercase", stdin=line.upper().encode())
    first, second = done.out.decode().splitlines()
    assert first.startswith("BLEU 100.00  nrefs:1|case:lc|eff:no|tok:13a|")
    assert second.startswith("BLEU-tokenised 100.00  nrefs:1|case:lc|eff:no|tok:sacremoses-")
    assert "-de|smooth:none|" in second
    assert second.endswith("  (for comparison with figures on words that Moses cut only)")
    for argv, error in (
        (["--metric", "brackets", "--lowercase"], "--lowercase goes with --metric bleu, chrf, ter, tokenised, paper"),
        (["--metric", "bleu", "--language", "de"], "--language goes with --metric tokenised, paper"),
        (["--runs", "--lowercase"], "--lowercase does not go with --runs"),
    ):
        done = nmt("score", "test.de", *argv, stdin=b"")
        assert done.code == 2
        assert error in done.err


def test_perplexity_is_that_of_training_on_the_same_data(nmt, reverse_run: Path) -> None:
    checkpoint = reverse_run / "ckpts/step-00000400"
    arguments = ("score", "--model", checkpoint, "--source", reverse_run / "valid.a", reverse_run / "valid.b")
    done = nmt(*arguments, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)["perplexity"]
    assert found["score"] == pytest.approx(bundles.Bundle.read(checkpoint).scores["perplexity"], rel=1e-6)
    assert found["score"] == pytest.approx(math.exp(-found["log_probability"] / found["subwords"]))
    assert len(found["lines"]) == 50
    for sum_, name in ((found["subwords"], "subwords"), (found["log_probability"], "log_probability")):
        assert sum(line[name] for line in found["lines"]) == pytest.approx(sum_)
    text = nmt(*arguments, "--quiet")
    signature = f"subwords:{found['subwords']}|lines:50|logprob:{found['log_probability']:.1f}"
    assert text.out.decode() == f"PPL {found['score']:.2f}  {signature}\n"
    assert text.err == ""


def test_log_probabilities_come_line_by_line_from_a_pipe(reverse_run: Path, tmp_path: Path) -> None:
    (tmp_path / "ref.gz").write_bytes(gzip.compress(b"d c b a\nd c b\n\n"))
    command = f"nmt score --model ckpts --source /dev/stdin '{tmp_path}/ref.gz' --metric logprob"
    done = shell(f"printf 'a b c d\\na b c d\\n\\n' | {command}", reverse_run)
    assert done.returncode == 0, done.stderr.decode()
    assert re.fullmatch(r"(-\d+\.\d{4}\t\d+\n){3}", done.stdout.decode())
    rows = [line.split("\t") for line in done.stdout.decode().splitlines()]
    assert float(rows[1][0]) < float(rows[0][0]) - 1  # a word is missing
    assert rows[2][1] == "1"


def test_an_ensemble_scores_between_its_models_or_better(nmt, reverse_run: Path) -> None:
    models = [("--model", reverse_run / f"ckpts/step-00000{step}") for step in (200, 800)]
    pair = ("--source", reverse_run / "valid.a", reverse_run / "valid.b", "--json", "--quiet")
    first, last, both, same = (
        json.loads(nmt("score", *chosen, *pair).out)["perplexity"]["log_probability"]
        for chosen in (models[0], models[1], models[0] + models[1], models[1] + models[1])
    )
    assert first < both
    assert both > (first + last) / 2  # the logarithm of a mean is at least the mean of logarithms
    assert same == pytest.approx(last, rel=1e-6)


def test_models_with_other_tokenizers_are_no_ensemble(nmt, reverse_run: Path, tmp_path: Path) -> None:
    shutil.copytree(reverse_run / "ckpts/averaged", tmp_path / "other")
    other = Tokenizer.train([("zz yy xx", "zz yy xx ww")] * 50, TokenizerSettings(vocab_size=266))
    for name, content in other.files().items():
        (tmp_path / "other" / name).write_bytes(content)
    reseal(tmp_path / "other")
    models = ("--model", reverse_run / "ckpts", "--model", tmp_path / "other")
    done = nmt("score", *models, "--source", reverse_run / "test.a", reverse_run / "test.b")
    assert (done.code, done.out) == (1, b"")
    assert f"{reverse_run / 'ckpts/averaged'} and {tmp_path / 'other'} have different tokenizers" in done.err


def test_what_a_model_did_not_see_of_long_lines_is_said(nmt, reverse_run: Path, tmp_path: Path) -> None:
    (tmp_path / "long").write_text("a b c d e f g\na b\n")
    arguments = ("score", "--model", reverse_run / "ckpts", "--source", tmp_path / "long", tmp_path / "long")
    assert "cut" not in nmt(*arguments).err
    done = nmt(*arguments, "--set", "max_source=5")
    assert done.code == 0
    assert "1 of 2 source lines were cut to 5 subwords" in done.err


@pytest.mark.parametrize(
    ("source", "reference", "message"),
    [
        ("a\n", "a\nb\n", "src ends after 1 lines and ref goes on"),
        ("a\nb\n", "a\n", "ref ends after 1 lines and src goes on"),
        ("", "", "nothing to score"),
    ],
)
def test_forced_decoding_needs_equally_many_lines(
    nmt, reverse_run: Path, tmp_path: Path, monkeypatch, source, reference, message
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("src").write_text(source)
    Path("ref").write_text(reference)
    done = nmt("score", "--model", reverse_run / "ckpts", "--source", "src", "ref")
    assert (done.code, done.out) == (1, b"")
    assert f"error: {message}" in done.err


def test_help_loads_no_torch() -> None:
    code = "import sys; from nmt.cli import cli\nfor a in sys.argv[1:]: cli.main(a.split(), standalone_mode=False)\n"
    code += "heavy = {'torch', 'numpy', 'yaml', 'sentencepiece', 'rich', 'pydantic'} & set(sys.modules)\n"
    code += "assert not heavy, heavy"
    lines = ["--help", "translate --help"]
    done = subprocess.run([sys.executable, "-c", code, *lines], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    for command in (b"preprocess", b"train", b"average", b"translate", b"score", b"parse"):
        assert command in done.stdout


def test_translate_answers_each_line_before_the_next_one_comes(reverse_run: Path) -> None:
    command = [sys.executable, "-m", "nmt", "translate", "--quiet", "--beam", "1"]
    process = subprocess.Popen(command, cwd=reverse_run, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    for line, answer in ((b"a b c\n", b"c b a\n"), (b"\n", b"\n"), (b"j i h\n", b"h i j\n")):
        process.stdin.write(line)
        process.stdin.flush()
        assert process.stdout.readline() == answer
    assert process.communicate(timeout=60)[0] == b""
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGINT, 130, b"interrupted\n"),
        (signal.SIGTERM, 143, b"terminated\n"),
        (signal.SIGHUP, 129, b"hung up\n"),
    ],
)
def test_translate_stops_at_once_while_it_waits_for_input(
    reverse_run: Path, tmp_path: Path, number: int, code: int, said: bytes
) -> None:
    command = [sys.executable, "-m", "nmt", "translate", "--quiet", "--output", tmp_path / "out"]
    process = subprocess.Popen(command, cwd=reverse_run, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stderr is not None
    process.stdin.write(b"a b c\n")
    process.stdin.flush()
    while not list(tmp_path.iterdir()):  # it has loaded its model, and writes
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    assert process.stderr.read() == said
    assert process.wait(60) == code
    process.stdin.close()
    assert list(tmp_path.iterdir()) == []  # nothing half-written


def test_a_hangup_that_is_ignored_stays_ignored(nmt, monkeypatch) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # what nohup does
    try:
        assert nmt("--version").code == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_full_disk_under_an_output_is_one_line(reverse_run: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    done = shell("echo a b c | nmt translate --quiet --output /dev/full", reverse_run)
    assert done.returncode == 1
    assert done.stderr.startswith(b"error: /dev/full: the disk is full\n")


def test_an_output_is_kept_when_n_best_exceeds_the_beam(nmt, reverse_run, tmp_path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("1")
    done = nmt("translate", "--model", reverse_run / "ckpts", "--n-best", 9, "--output", kept, stdin=b"a\n")
    assert done.code == 1
    assert "n-best 9 needs a beam at least as wide (got 4)" in done.err
    assert kept.read_text() == "1"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("step", "3"),
        ("step", 5),
        ("epoch", -1),
        ("offset", 1.5),
        ("seconds", "x"),
        ("estimated_flops", "x"),
        ("devices", 3),
        ("devices", {"CPU": "x"}),
        ("place", 3),
        ("devices", [1]),
        ("tokens", True),
        ("tokens", 10**400),
        ("offset", None),
        ("seconds", float("nan")),
        ("flops", float("inf")),
        ("skipped", 801),
        ("more", 1),
    ],
)
def test_a_damaged_position_is_named(nmt, reverse_run: Path, tmp_path: Path, monkeypatch, key, value) -> None:
    shutil.copytree(reverse_run, tmp_path / "run")
    monkeypatch.chdir(tmp_path / "run")
    path = Path("ckpts/step-00000800/training.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    reseal(path.parent)
    for older in (200, 400, 600):
        shutil.rmtree(f"ckpts/step-{older:08d}")
    done = nmt("train", "recipe.yaml", "--set", "training.updates=801")
    assert done.code == 1
    assert "error: ckpts: all checkpoints are damaged; the newest: ckpts/step-00000800: its training state" in done.err
    assert "\nhint: " in done.err


def test_a_run_does_not_go_into_the_prepared_data(nmt, reverse_run: Path, monkeypatch) -> None:
    monkeypatch.chdir(reverse_run)
    assert "is inside the prepared data" in nmt("train", "recipe.yaml", "--out", "data/reverse/ckpts").err
