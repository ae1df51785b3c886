"""`nmt score` as users meet it: of texts, and by forced decoding."""

from __future__ import annotations

import gzip
import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from reverse_task import shell

from nmt.checkpoint.reading import Bundle, checkpoints
from nmt.checkpoint.writing import add_info


def test_systems_are_compared_with_the_best_or_with_a_baseline(nmt, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ref").write_text("der Hund läuft nach Haus\n" * 9 + "die Katze schläft auf dem Sofa\n")
    Path("hyp").write_text("der Hund läuft nach Haus\n" * 9 + "die Katze sitzt auf dem Sofa\n")
    Path("other").write_text("der Hund rennt nach Haus\n" * 9 + "die Katze schläft auf dem Sofa\n")
    found = json.loads(nmt("score", "ref", "other", "hyp", "--metric", "bleu,ter", "--json").out)
    assert list(found) == ["bleu", "ter"]
    for metric in found:
        best, worse = found[metric]["systems"]
        assert (best["system"], best["verdict"], worse["verdict"]) == ("hyp", "best", "worse")
        for one in (best, worse):
            alone = json.loads(nmt("score", "ref", one["system"], "--metric", metric, "--json").out)[metric]
            assert one["score"] == pytest.approx(alone["score"])
            assert found[metric]["signature"] == alone["signature"]
        assert worse["difference"] == pytest.approx(worse["score"] - best["score"])
    arguments = ("score", "ref", "--baseline", "other", "--metric", "bleu", "--show", "1")
    done = nmt(*arguments, stdin=Path("hyp").read_bytes())
    heading, system, baseline, signature, *lines = done.out.decode().splitlines()
    assert heading.split() == ["BLEU", "score", "95%", "interval", "difference", "p", "people"]
    assert system.startswith(f"<stdin>  {found['bleu']['systems'][0]['score']:.2f}")
    assert system.endswith("%  better")
    assert baseline.endswith("–  baseline")
    assert signature == f"  {found['bleu']['signature']}"
    gained, lost = lines.index("gained most by chrF2:"), lines.index("lost most by chrF2:")
    assert lines[gained + 3 : gained + 6] == [
        "  ref      der Hund läuft nach Haus",
        "  <stdin>  der Hund läuft nach Haus",
        "  other    der Hund rennt nach Haus",
    ]
    assert lines[lost + 2].startswith("line 10: 100.00 to ")
    same = nmt(*arguments, stdin=Path("other").read_bytes()).out.decode()
    assert same.endswith("\ngained most by chrF2: no line\n\nlost most by chrF2: no line\n")
    assert "95% interval" in done.err
    assert "Kocmi et al., 2024" in done.err
    as_json = json.loads(nmt("score", "ref", "hyp", *arguments[2:], "--json").out)
    assert ([line["number"] for line in as_json["gained"]], as_json["lost"][0]["number"]) == ([1], 10)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("test.po", 'msgid "dog"\nmsgstr "Hund"\n'),
        ("test.sgm", '<refset setid="n">\n<doc docid="a">\n<seg id="1">Hund</seg>\n</doc>\n</refset>\n'),
        ("test.de", '<tstset setid="n">\n<seg id="1">Hund</seg>\n</tstset>\n'),
        ("out.jsonl", '{"output": "Hund"}\n'),
    ],
)
def test_only_lines_are_scored(nmt: Callable[..., Any], tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    lines = tmp_path / "hyp.txt"
    lines.write_text("Hund\n" * text.count("\n"))
    for files in ((path, lines), (lines, path)):
        said = nmt("score", *map(str, files)).err
        assert f"error: {path}: is no file of lines" in said
    for ending in ("ts", "arb"):  # the codes of Tsonga and Arabic are endings of formats, too
        path = tmp_path / f"test.{ending}"
        path.write_text(lines.read_text())
        assert "error" not in nmt("score", str(path), str(lines)).err


def test_means_are_by_words_of_the_source_that_training_has_not_seen(nmt: Callable[..., Any], runs: Path) -> None:
    Path("src").write_text("a b c\na Zebra, giraffe!\nzebra b\nc\n")
    Path("ref").write_text("c b a\nx y a\nb zebra\nc\n")
    Path("old").write_text("c b\nx y a\nb\nc\n")
    arguments = ("score", "ref", "ref", "--baseline", "old", "--source", "src", "--show", "1", "--model", "a")
    found = json.loads(nmt(*arguments, "--json").out)["means"]
    assert list(found) == ["length", "unseen words"]
    assert [(row["words"], row["lines"]) for row in found["unseen words"]] == [("0", 2), ("1", 1), ("2", 1)]
    assert found["unseen words"][2]["difference"] == 0.0
    shown = nmt(*arguments).out.decode()
    assert re.search(r"unseen words +lines +baseline +system +difference\n0 +2 ", shown)
    (runs / "data").unlink()
    done = nmt(*arguments)
    assert done.code == 0
    assert "unseen words are not counted: data/reverse: holds no prepared data" in done.err
    assert "length" in done.out.decode()
    assert "unseen words" not in done.out.decode()


def test_chinese_is_scored_by_its_language_or_with_a_warning(nmt, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = "一只猫坐在垫子上，看着窗外。\n两个女人坐在公园的长椅上。\n"
    for name in ("test.zh", "test.txt"):
        Path(name).write_text(text)
    named, given = nmt("score", "test.zh", "test.zh"), nmt("score", "test.txt", "test.zh", "--language", "zho_Hans")
    assert named.out == given.out
    assert nmt("score", "test.txt", "test.zh", "--language", "Chinese").out == given.out
    assert given.out.decode().splitlines()[:2] == ["BLEU 100.00", given.out.decode().splitlines()[1]]
    assert "|tok:zh|" in given.out.decode()
    assert "warning" not in named.err + given.err
    unknown = nmt("score", "test.txt", "test.zh", "--metric", "bleu,ter")
    assert "warning: the references are written without spaces, but their language is not given" in unknown.err
    assert "give --language CODE" in unknown.err
    assert "BLEU 100.00" in unknown.out.decode()
    assert nmt("score", "test.txt", "test.zh", "--metric", "chrf").err == ""  # which counts characters anyway


def test_bleu_of_words_stands_beside_sacrebleus_with_its_label(nmt, tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("sacremoses")
    monkeypatch.chdir(tmp_path)
    line = "Der deutsch-französische Zug fährt nach Haus.\n".encode()
    Path("test.de").write_bytes(line)
    Path("test").write_bytes(line)
    for wanted in (["--paper", "--metric", "bleu"], ["--metric", "paper"], ["--metric", "paper", "--paper"]):
        bleu, signature, *of_2017 = nmt("score", "test.de", *wanted, stdin=line).out.decode().splitlines()
        assert bleu == "BLEU 100.00"
        assert signature.startswith("  nrefs:1|case:mixed|eff:no|tok:13a|")
        assert of_2017[0] == "BLEU-2017 100.00  (for comparison with 2017 figures only)"
        assert of_2017[1].startswith("  nrefs:1|case:mixed|eff:no|tok:sacremoses-")
        assert "-de-compounds|smooth:none|" in of_2017[1]
    found = json.loads(nmt("score", "test", "--paper", "--language", "fr", "--json", stdin=line).out)
    assert list(found) == ["bleu", "chrf", "paper"]
    assert found["paper"]["note"] == "for comparison with 2017 figures only"
    assert "-fr-compounds" in found["paper"]["signature"]
    for argv in (["test"], ["test.de", "--language", "xx"]):
        done = nmt("score", *argv, "--paper", stdin=line)
        assert (done.code, done.out) == (1, b"")
        assert "error: BLEU of Moses' words: the language of the reference, " in done.err
        assert "hint: give --language CODE" in done.err
    done = nmt("score", "test.de", "--metric", "tokenised", "--lowercase", stdin=line.decode().upper().encode())
    bleu, signature, tokenised, of_words = done.out.decode().splitlines()
    assert bleu == "BLEU 100.00"
    assert "BLEU of all lines is 100.00 to 100.00 in 95% of bootstrap samples" in done.err
    assert signature.startswith("  nrefs:1|case:lc|eff:no|tok:13a|")
    assert tokenised == "BLEU-tokenised 100.00  (for comparison with figures on words that Moses cut only)"
    assert of_words.startswith("  nrefs:1|case:lc|eff:no|tok:sacremoses-")
    assert "-de|smooth:none|" in of_words


def test_perplexity_is_that_of_training_on_the_same_data(nmt, reverse_run: Path) -> None:
    checkpoint = reverse_run / "ckpts/step-00000400"
    arguments = ("score", "--model", checkpoint, "--source", reverse_run / "valid.a", reverse_run / "valid.b")
    done = nmt(*arguments, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)["perplexity"]
    assert found["score"] == pytest.approx(Bundle.read(checkpoint).scores["perplexity"], rel=1e-6)
    assert found["score"] == pytest.approx(math.exp(-found["log_probability"] / found["subwords"]))
    assert len(found["lines"]) == 50
    for sum_, name in ((found["subwords"], "subwords"), (found["log_probability"], "log_probability")):
        assert sum(line[name] for line in found["lines"]) == pytest.approx(sum_)
    text = nmt(*arguments, "--quiet")
    signature = f"subwords:{found['subwords']}|lines:50|logprob:{found['log_probability']:.1f}"
    assert text.out.decode() == f"PPL {found['score']:.2f}\n  {signature}\n"
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


def test_confidence_of_translations_is_what_their_search_says(
    nmt: Callable[..., Any], reverse_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = reverse_run / "test.a"
    model = shutil.copytree(reverse_run / "ckpts/averaged", "model")
    search = ("translate", "--model", model, "--input", source, "--json", "--quiet")
    found = [json.loads(line) for line in nmt(*search).out.splitlines()]
    Path("hyp").write_text("".join(line["hypotheses"][0]["text"] + "\n" for line in found))
    scoring = ("score", "hyp", "--source", source, "--model", model, "--metric", "confidence", "--quiet")
    done = nmt(*scoring)
    assert done.code == 0, done.err
    scored = list(map(float, done.out.splitlines()))
    assert scored == pytest.approx([line["confidence"] for line in found], abs=2e-3)
    assert 0.0 < min(scored) < max(scored) < 1.0
    assert "cannot be combined" in nmt(*scoring, "--json").err
    add_info(Path(model), {"confidence": None})  # as in models of before
    assert "confidence" not in json.loads(nmt(*search).out.splitlines()[0])
    done = nmt(*scoring)
    assert (done.code, done.out) == (1, b"")
    assert done.err.startswith("error: model: its bundle.json has no calibrated confidence\nhint: ")
    assert done.err.count("\n") == 2


def test_what_a_model_did_not_see_of_long_lines_is_said(nmt, reverse_run: Path, tmp_path: Path) -> None:
    (tmp_path / "long").write_text("a b c d e f g\na b\n")
    arguments = ("score", "--model", reverse_run / "ckpts", "--source", tmp_path / "long", tmp_path / "long")
    assert "cut" not in nmt(*arguments).err
    done = nmt(*arguments, "--set", "max_source=5")
    assert done.code == 0
    assert "1 of 2 source lines were cut to 5 subwords" in done.err


def test_each_change_is_scored_as_its_translations_are_against_the_changed_reference(
    nmt: Callable[..., Any], reverse_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = "".join(f"{line}.\n" for line in (reverse_run / "valid.a").read_text().splitlines())
    reference = (reverse_run / "valid.b").read_text()
    for name, write in (("plain", str), ("capitals", str.upper), ("unpunctuated", lambda text: text.replace(".", ""))):
        Path(name).write_text(write(source))
        Path(f"{name}.b").write_text(write(reference))
    model = "--model", reverse_run / "ckpts"
    arguments = ("score", *model, "--source", "plain", "--robust", "plain.b")
    done = nmt(*arguments, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)["robust"]
    assert list(found) == [
        "lines",
        "signature",
        "plain",
        "capitals",
        "title_case",
        "unpunctuated",
    ]  # no typos in letters
    assert found["lines"] == 50
    for name in ("plain", "capitals", "unpunctuated"):
        translated = nmt("translate", *model, "--input", name).out
        alone = json.loads(nmt("score", "--metric", "chrf", f"{name}.b", "--json", stdin=translated).out)["chrf"]
        assert found[name]["score"] == pytest.approx(alone["score"])
        assert found[name]["share"] == pytest.approx(alone["score"] / found["plain"]["score"])
        assert found["signature"] == alone["signature"]
    assert found["capitals"]["share"] < 0.9 < found["unpunctuated"]["share"]
    head, plain, *_, signature = nmt(*arguments).out.decode().splitlines()
    assert head.split() == ["source", "chrF2", "share"]
    assert plain.split() == ["plain", f"{found['plain']['score']:.2f}", "1.000"]
    assert signature == f"  {found['signature']}"


# --- score --runs: Table 2 of a list of runs ----------------------------------------------------------------


COST = {"seconds": 7200.0, "device_seconds": 50400.0, "tokens": 1_234_567, "flops": 1.25e18}
COST |= {"estimated_flops": 4.788e17, "devices": {"8 × Tesla P100": 6171.4, "1 × CPU (2 threads)": 1028.6}}


def test_a_table_has_a_line_for_each_run(nmt: Callable[..., Any], runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree("a", "older")
    told = {"signatures": {"chrf": "made up"}}
    add_info(Path("a/averaged"), {"scores": {"chrf": 27.341}, **told})
    add_info(Path("a/step-00000800"), {"cost": COST})  # the whole run's, not what the chosen one had
    add_info(Path("older/averaged"), {"scores": {"chrf": 3.0}, **told})
    add_info(Path("older/step-00000800"), {"cost": {"seconds": 61.0, "tokens": 5, "flops": 2e9}})
    done = nmt("score", "--runs", "a", "older")
    assert done.code == 0, done.err
    assert done.out.decode() == (
        "model    dev score  FLOPs by the paper  FLOPs counted   time  target tokens  updates  devices\n"
        "a      chrF2 27.34             4.8e+17        1.2e+18  2h00m      1,234,567      800  "
        "8 × Tesla P100, 1 × CPU (2 threads)\n"
        "older   chrF2 3.00                   –        2.0e+09    61s              5      800  –\n"
        "dev chrF2: made up\n"
    )
    assert "model: a/averaged (average of 2 checkpoints)" in done.err
    monkeypatch.setattr("nmt.commands.score.width_of", lambda stream: 80)
    narrow = nmt("score", "--runs", "a", "older").out.decode().splitlines()
    assert narrow[:2] == ["a", "  dev score           chrF2 27.34"]
    assert narrow[7:9] == ["  devices             8 × Tesla P100, 1 × CPU (2 threads)", "older"]


def test_an_average_without_a_score_is_scored_where_its_data_is(
    nmt: Callable[..., Any], runs: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_info(runs / "a/averaged", {"scores": {}, "signatures": {}})  # as after nmt average without its data
    (found,) = json.loads(nmt("score", "--runs", "a", "--json").out)["runs"]
    assert found["dev"]["score"] > 80
    assert "nc:6" in found["dev"]["signature"]
    cost = checkpoints(Path("a"))[-1].cost
    assert {name: found[name] for name in COST} == {name: cost[name] for name in COST}
    assert cost["seconds"] > 0
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    (other,) = json.loads(nmt("score", "--runs", runs / "a", "--json").out)["runs"]
    assert other["dev"] == found["dev"]
    monkeypatch.chdir(runs)
    (runs / "data").unlink()
    done = nmt("score", "--runs", "a")
    assert done.code == 0
    assert "no dev score: " in done.err
    assert "data/reverse: holds no prepared data" in done.err
    assert done.out.splitlines()[1].split()[:2] == [b"a", "–".encode()]
    assert len(done.out.splitlines()) == 2  # and no signature
