"""`nmt translate` as users meet it: results, options, streams and files."""

from __future__ import annotations

import gzip
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from reverse_task import names, shell

HOSTILE = [*[""] * 5, "   ", "x" * 10_000, "a b\u2028c d", "a\rb", "\x0b\x85\x1c", "a b c 🦊👩‍👩‍👧"]
HOSTILE += ["\x00\x01\x7f\x1b[31m", "<s> </s> <pad> <unk>", "\u2581\u2581", "\ufeffa b"]


@pytest.mark.parametrize("split", ["sentences", "length"])
def test_as_many_lines_come_out_as_went_in(nmt, reverse_run: Path, split: str) -> None:
    text = "".join(line + "\n" for line in HOSTILE).encode() + b"a b \xff\xfe c\r\nlast without end"
    settings = ("--set", "max_source=32", "--set", "max_extra=3", "--set", f"split={split}")
    arguments = ("--model", reverse_run / "ckpts", *settings)
    done = nmt("translate", *arguments, stdin=text)
    assert done.code == 0, done.err
    lines = done.out.decode().split("\n")
    assert len(lines) == len(HOSTILE) + 2 + 1
    assert lines[:6] == [*[""] * 5, "   "]
    if split == "length":
        alone = [nmt("translate", *arguments, stdin=line.encode() + b"\n").out.decode() for line in HOSTILE]
        assert [line + "\n" for line in lines[: len(HOSTILE)]] == alone
    assert lines[-1] == ""
    assert b"\r" not in done.out
    summary = r"^17 sentences, [\d,]+ tokens/s; .*inputs split (\d+), unknown .*\n\Z"
    assert (found := re.search(summary, done.err, re.M))
    assert int(found[1]) == 1 if split == "length" else int(found[1]) > 1


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


@pytest.mark.parametrize("devices", [1, 3])
def test_terms_of_a_table_stand_in_translations(devices: int, nmt, reverse_run: Path, tmp_path: Path) -> None:
    (tmp_path / "terms").write_text("a\tj\nb c\tno such words\nb c\tf\n")
    arguments = ("--model", reverse_run / "ckpts", "--devices", devices, "--terms", tmp_path / "terms")
    done = nmt("translate", *arguments, "--keep", "[gh] h", stdin=b"a b d\na b c d\nd g h e\nd e f\n")
    first, second, third, free = done.out.decode().splitlines()
    assert "j" in first.split()
    assert {"j", "f"} <= set(second.split())
    assert "g h" in third
    assert free == "f e d"
    assert done.code == 0
    assert "missing terms" not in done.err


@pytest.mark.parametrize("devices", [1, 3])
def test_tags_stay_around_their_words(devices: int, nmt, reverse_run: Path, tmp_path: Path) -> None:
    (tmp_path / "terms").write_text("b\tj\n")
    command = ("translate", "--model", reverse_run / "ckpts", "--markup", "--devices", devices)
    lines = b"<p>a <b>b</b> d\n\n<br/>\n  <i>g h</i> e\nd e f\n"
    done = nmt(*command, "--terms", tmp_path / "terms", stdin=lines)
    tagged, blank, lone, indented, plain = done.out.decode().splitlines()
    assert tagged == "<p>d <b>j</b> a"
    assert (blank, lone, plain) == ("", "<br/>", "f e d")
    assert indented == "  e <i>h g</i>"
    assert done.code == 0
    ranked = nmt(*command, "--n-best", 2, "--json", stdin=lines)
    texts = [each["text"] for each in json.loads(ranked.out.decode().splitlines()[0])["hypotheses"]]
    assert texts[0] == "<p>d <b>b</b> a"
    assert "<b>" in texts[1]


def test_a_document_is_translated_sentence_by_sentence_and_laid_out_as_it_was(nmt, reverse_run: Path) -> None:
    arguments = ("translate", "--model", reverse_run / "ckpts", "--beam", 1, "--set", "max_extra=2")
    sentences = "ab cd ef gh ij ab cd ef gh ij ab cd ef gh ij ab!", "Cd ef gh ij.", "ab cd é", "ab"
    alone = nmt(*arguments, "--set", "split=sentences", stdin="\n".join(sentences).encode()).out.decode().splitlines()
    text = "---\n\n - ab cd ef gh ij ab cd ef gh ij ab cd ef gh\n   ij ab! Cd ef gh ij.\n\n> ab cd é\n\n| 12 | ab |"
    done = nmt(*arguments, "--document", "--strict", stdin=text.encode())
    begin, item, quote, end = done.out.decode().split("\n\n")
    assert (begin, end) == ("---", f"| 12 | {alone[3]} |\n")
    assert item.startswith(" - ")
    assert item.replace("\n   ", " ").removeprefix(" - ") == " ".join(alone[:2])
    assert quote == f"> {alone[2]}"
    assert done.code == 1
    assert "unknown characters" in done.err
    assert "(first in line 3)" in done.err
    assert "inputs split" not in done.err
    assert "left as they were" not in done.err


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
    done = nmt(*arguments, "--json", stdin=b"a b c\na 77 b\n")
    assert [json.loads(line)["lost"] for line in done.out.splitlines()] == [[], ["77"]]
    assert "numbers changed 1 (first in line 2)" in done.err


def test_several_workers_write_what_one_writes(nmt, reverse_run: Path, monkeypatch) -> None:
    monkeypatch.chdir(reverse_run)
    one = nmt("translate", "--input", "test.a")
    for options in ("--threads 2", "--devices 3 --threads 3"):  # of threads on a CPU workers are made
        done = shell(f"nmt translate --input test.a {options}", reverse_run)
        assert (done.returncode, done.stdout) == (0, one.out), done.stderr.decode()
        assert b"100 sentences" in done.stderr


def test_a_compressed_output_takes_its_name_when_it_is_whole(
    nmt, reverse_run: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kept, source, content = Path("kept.gz"), Path("in.gz"), gzip.compress(b"a b c d\n" * 100)
    kept.write_text("old\n")
    source.write_bytes(content[:-4])
    arguments = ("translate", "--model", reverse_run / "ckpts", "--input", source, "--output", kept)
    done = nmt(*arguments)
    assert (done.code, "in.gz: cannot be read to its end" in done.err) == (1, True)
    assert kept.read_text() == "old\n"
    assert names(Path()) == ["in.gz", "kept.gz"]
    source.write_bytes(content)
    assert nmt(*arguments).code == 0
    assert gzip.decompress(kept.read_bytes()) == b"d c b a\n" * 100
    assert nmt("score", kept, kept).out.startswith(b"BLEU 100.00\n")


def test_the_model_is_found_by_flag_environment_and_default(nmt, reverse_run: Path, monkeypatch) -> None:
    monkeypatch.setenv("NMT_MODEL", str(reverse_run / "ckpts" / "step-00000800"))
    assert "step-00000800" in nmt("translate").err
    monkeypatch.delenv("NMT_MODEL")
    monkeypatch.chdir(reverse_run)
    assert "model: ckpts/averaged" in nmt("translate").err


def test_translate_stops_at_once_while_it_waits_for_input(reverse_run: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "nmt", "translate", "--quiet", "--output", tmp_path / "out"]
    process = subprocess.Popen(command, cwd=reverse_run, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stderr is not None
    process.stdin.write(b"a b c\n")
    process.stdin.flush()
    while not list(tmp_path.iterdir()):  # it has loaded its model, and writes
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.stderr.read() == b"terminated\n"
    assert process.wait(60) == 143
    process.stdin.close()
    assert list(tmp_path.iterdir()) == []  # nothing half-written
