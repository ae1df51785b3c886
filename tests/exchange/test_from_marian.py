"""Models of Marian itself: the probabilities of theirs, what is refused, and exports to it."""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from marian_folders import laid_out, pieces_of, train_spm
from marian_models import PRE_NORM, SETTINGS, logits, size_of, train_vocabulary, write_arrays, write_model
from random_bundle import random_bundle, sentence

from nmt.checkpoint.reading import Bundle, checkpoints
from nmt.checkpoint.writing import mix
from nmt.exchange.from_marian import SETTINGS as YAML
from nmt.exchange.npz import read_npz
from nmt.exchange.resolve import initial_bundle, resolve
from nmt.exchange.to_marian import check_expressible, export
from nmt.model.batch import pad_ids
from nmt.recipe import Recipe
from nmt.recipe.yaml_files import read_text
from nmt.system.errors import UserError
from nmt.text.marian import origins_of
from nmt.text.vocabulary import BOS, EOS

ROOT = Path(__file__).parents[2]
SOURCE = ["a dog sees the small house", "the man and a woman walk to the red house", "two dogs run over green trees"]
TARGET = ["ein Hund sieht das kleine Haus", "der Mann und eine Frau gehen zum Haus", "zwei Hunde laufen über Bäume"]
JOINT = train_vocabulary([*SOURCE, *TARGET] * 20, 80, user_defined_symbols=[">>de<<", ">>fr<<"])
SIDES = [train_vocabulary(texts * 20, 60) for texts in (SOURCE, TARGET)]
SHAPES: dict[str, tuple[list[bytes], dict[str, Any]]] = {
    "one matrix": ([JOINT], {}),
    "one matrix by two settings": (
        [JOINT],
        {"tied-embeddings-all": False, "tied-embeddings": True, "tied-embeddings-src": True, "output-omit-bias": True},
    ),
    "one matrix for source and target": ([JOINT], {"tied-embeddings-all": False, "tied-embeddings-src": True}),
    "two vocabularies": (SIDES, {"tied-embeddings-all": False, "tied-embeddings": True}),
    "no matrix is shared": (SIDES, {"tied-embeddings-all": False, "legacy": True}),
    "pre-norm": ([JOINT], PRE_NORM),
}


def read(folder: Path) -> Bundle:
    return resolve(folder)[0]


@pytest.mark.parametrize(("vocabularies", "changes"), SHAPES.values(), ids=SHAPES)
@torch.inference_mode()
def test_probabilities_are_theirs(tmp_path: Path, vocabularies: list[bytes], changes: dict[str, Any]) -> None:
    arrays = write_model(tmp_path, vocabularies, **changes)
    bundle = read(tmp_path)
    tokenizer = bundle.tokenizer()
    model = bundle.model(torch.device("cpu"))
    origins = origins_of(tokenizer.target)
    of_source = origins_of(tokenizer.source)
    known = [index for index, origin in enumerate(origins) if origin >= 0]
    for text, translation in zip([*SOURCE, ">>fr<< dog 😀"], [*TARGET, "Hund"], strict=True):
        source = [*tokenizer.source.encode(text), EOS]
        target = tokenizer.target.encode(translation)
        ours = model(torch.tensor([source]), torch.tensor([[BOS, *target]]))[0].softmax(-1)
        settings = SETTINGS | changes
        theirs = logits(
            arrays,
            settings,
            [of_source[index] for index in source],
            [origins[index] for index in target],
        )
        expected = torch.from_numpy(theirs).softmax(-1)[:, [origins[index] for index in known]]
        torch.testing.assert_close(ours[:, known], expected.float(), rtol=1e-4, atol=1e-7)


def test_the_recipe_says_what_the_model_is_and_the_note_what_is_not_taken_over(tmp_path: Path) -> None:
    write_model(tmp_path, [JOINT])
    (tmp_path / "model.npz.optimizer.npz").touch()
    bundle, note = resolve(tmp_path)
    model, recipe = bundle.recipe.model, bundle.recipe
    assert (model.layers, model.decoder_depth, model.d_ff, model.heads, model.norm_epsilon) == (2, 1, 24, 2, 1e-6)
    assert (model.activation, model.tie_embeddings, model.positions) == ("silu", "all", "marian")
    assert (recipe.decoding.beam, recipe.decoding.alpha, recipe.tokenizer.shared) == (3, 0.6, True)
    assert note == (
        f"model: {tmp_path / 'model.npz'} (of Marian); its length penalty, normalize 0.5, is approximated by "
        "decoding.alpha 0.6; its word-penalty 0.1 is not used; its max-length-factor 2.0 is not used; "
        "its tokenizer cannot spell every character"
    )
    assert read(tmp_path / "model.npz").recipe == recipe
    assert bundle.content().keys() == {"model.npz", "model.npz.optimizer.npz", "vocab.spm", "model.npz.decoder.yml"}
    assert list(bundle.tokenizer().source.languages) == ["de", "fr"]


def test_vocabularies_in_yaml_number_the_pieces_of_two_sentencepiece_models(tmp_path: Path) -> None:
    """As OPUS-MT's archives have them."""
    spms = [train_spm([*texts, "a ' \" # : b"] * 20, 60) for texts in (SOURCE, TARGET)]
    ids = {piece: n for n, piece in enumerate(list(laid_out(pieces_of(spms[0]) + pieces_of(spms[1]), ("fra",)))[:-1])}
    lines = []
    for piece, index in ids.items():
        written = json.dumps(piece, ensure_ascii=False) if set(piece) & set("\"'#:") else piece
        lines.append(f"{written}: {index}")
    sizes: dict[str, Any] = {"dim-vocabs": [len(ids), len(ids)]}
    write_model(tmp_path, spms, **sizes)
    (tmp_path / "opus.vocab.yml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    decoder = {"models": ["model.npz"], "vocabs": ["opus.vocab.yml", "opus.vocab.yml"]}
    (tmp_path / "model.npz.decoder.yml").rename(tmp_path / "decoder.yml").write_text(json.dumps(decoder))
    bundle = read(tmp_path)
    tokenizer = bundle.tokenizer()
    assert tokenizer.source.languages.keys() == {"fra"}
    pieces = tokenizer.source.pieces(tokenizer.source.encode('>>fra<< a " # : b'))
    assert pieces[:2] == [">>fra<<", "▁a"]
    assert "<unk>" not in pieces
    with pytest.raises(UserError, match="has pieces and their numbers in different files"):
        check_expressible(mix([bundle], [1.0], tmp_path / "bundle"))
    (tmp_path / "source.spm").rename(tmp_path / "other.spm")
    with pytest.raises(UserError, match=r"lacks source\.spm") as error:
        read(tmp_path)
    assert "by no BPE files" in error.value.hint
    (tmp_path / "other.spm").rename(tmp_path / "source.spm")
    (tmp_path / "opus.vocab.yml").write_text('</s>: 0\n"<unk>: 1\n')
    with pytest.raises(UserError, match=r"opus\.vocab\.yml:2: damaged: is not a piece and its number"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"type": "s2s"}, "Marian's type s2s"),
        ({"type": "amun"}, "Marian's type amun"),
        ({"type": "char-s2s"}, "Marian's type char-s2s"),
        ({"transformer-decoder-autoreg": "rnn", "dec-cell": "ssru"}, r"autoreg rnn \(dec-cell ssru\)"),
        ({"transformer-decoder-autoreg": "average-attention"}, "transformer-decoder-autoreg average-attention"),
        ({"transformer-ffn-activation": "gelu"}, "transformer-ffn-activation gelu"),
        ({"transformer-ffn-depth": 3}, "transformer-ffn-depth 3"),
        ({"transformer-decoder-dim-ffn": 48}, "transformer-decoder-dim-ffn 48"),
        ({"transformer-postprocess-emb": "nd"}, "transformer-postprocess-emb nd"),
        ({"transformer-postprocess": "dhn"}, "-postprocess 'dhn'"),
        ({"transformer-preprocess": "n", "transformer-postprocess": "da"}, "-postprocess-top ''"),
        ({**PRE_NORM, "version": "v1.10.24"}, r"is pre-norm and of version v1\.10\.24"),
        ({"transformer-tied-layers": [1, 1]}, r"transformer-tied-layers \[1, 1\]"),
        ({"transformer-train-position-embeddings": True}, "transformer-train-position-embeddings True"),
        ({"lemma-dim-emb": 8}, "lemma-dim-emb 8"),
        ({"right-left": True}, "right-left True"),
        ({"dim-vocabs": [7, 7]}, r"has \d+ symbols, but the model has dim-vocabs 7"),
        ({"dim-vocabs": [7, 7, 7]}, r"dim-vocabs \[7, 7, 7\]"),
        ({"dim-emb": 32}, r"shape \[16, 16\], but \[32, 32\] by special:model\.yml|shape \[\d+, 16\], but \[\d+, 32\]"),
        ({"dim-emb": "wide"}, r"model\.npz or its decoder\.yml: model\.d_model"),
        ({"enc-depth": 3}, "lacks the weight encoder_l3_self_Wq"),
        ({"enc-depth": 1}, r"holds encoder_l2_\w+, which is not as in Marian's models"),
        ({"tied-embeddings-all": False}, "lacks the weight decoder_ff_logit_out_Wt"),
    ],
)
def test_what_nmt_has_no_model_for_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    arrays = write_model(tmp_path, [JOINT])
    sizes = {"dim-vocabs": [size_of(JOINT)] * 2}
    write_arrays(tmp_path / "model.npz", arrays, SETTINGS | sizes | changes)
    with pytest.raises(UserError, match=message) as error:
        read(tmp_path).model(torch.device("cpu"))
    assert error.value.hint


def members(path: Path) -> list[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        return [(name, archive.read(name)) for name in archive.namelist()]


def rewrite(path: Path, entries: list[tuple[str, bytes]], compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in entries:
            archive.writestr(name, content)


def saved(array: Any) -> bytes:
    stream = BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)


def bomb(path: Path) -> None:
    rewrite(path, [("a.npy", saved(np.zeros((1000, 1000), np.float32)))], zipfile.ZIP_DEFLATED)


def overlapping(path: Path) -> None:
    """Every entry of the directory leads to the same bytes."""
    rewrite(path, [(f"{n}.npy", saved(np.zeros(1000, np.float32))) for n in range(9)])
    content = path.read_bytes()
    first = content.index(b"PK\x01\x02")
    directory = bytearray(content[first:])
    for start in range(len(directory)):
        if directory[start : start + 4] == b"PK\x01\x02":
            directory[start + 42 : start + 46] = struct.pack("<I", 0)
    end = directory.index(b"PK\x05\x06")
    directory[end + 16 : end + 20] = struct.pack("<I", first // 9)
    path.write_bytes(content[: first // 9] + directory)


def lying(path: Path) -> None:
    """A header of 10^14 numbers."""
    content = saved(np.zeros((1, 9), np.float32)).replace(b"(1, 9), }" + 14 * b" ", b"(10000000, 9000000), }")
    rewrite(path, [*members(path), ("a.npy", content)])


def replaced(name: str, array: Any) -> Callable[[Path], None]:
    def attack(path: Path) -> None:
        rewrite(
            path,
            [*((key, value) for key, value in members(path) if key != f"{name}.npy"), (f"{name}.npy", saved(array))],
        )

    return attack


def settings(text: str) -> Callable[[Path], None]:
    return replaced(YAML, np.frombuffer(text.encode(), np.int8))


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "empty": (lambda path: path.write_bytes(b""), "is not an archive of NumPy"),
    "no archive": (lambda path: path.write_bytes(b"\x80\x04" * 1000), "is not an archive of NumPy"),
    "truncated": (truncated, "is not an archive of NumPy"),
    "a bit flipped": (flipped, "Bad CRC-32"),
    "compressed": (bomb, "is compressed, which Marian's models are not"),
    "overlapping": (overlapping, "larger than the file"),
    "twice": (lambda path: rewrite(path, 2 * members(path)), "two arrays are called"),
    "a shape that lies": (lying, "is not its shape|has no header"),
    "pickled": (replaced("Wemb", np.array([{}])), "Wemb has no header of an array of numbers"),
    "in integers": (replaced("Wemb", np.zeros((9, 16), np.int16)), "holds numbers of type i2"),
    "bytes": (
        replaced("Wemb", np.zeros((9, 16), np.int8)),
        "Wemb holds values that are infinite, not a number, or bytes",
    ),
    "not a number": (
        replaced("decoder_l1_ffn_b1", np.full((1, 24), np.nan, np.float32)),
        "decoder_l1_ffn_b1 holds values",
    ),
    "no dimensions": (replaced("encoder_l1_ffn_W1", np.float32(1)), r"encoder_l1_ffn_W1 has shape \[\]"),
    "no settings": (lambda path: rewrite(path, members(path)[:3]), "is no model of Marian: it lacks special:model.yml"),
    "no YAML": (settings("type: [transformer"), r"special:model\.yml:1: not valid YAML"),
    "no mapping": (settings("transformer"), "is not a mapping"),
    "code": (settings("type: !!python/object/apply:os.system [ls]"), "not valid YAML"),
    "aliases": (
        settings("\n".join(f"k{n}: &a{n} [{','.join(9 * [f'*a{n - 1}'] if n else ['1'])}]" for n in range(9))),
        "nested too deeply, or more than 10,000 values",
    ),
    "deep": (settings("[" * 10_000), "not valid YAML"),
    "not UTF-8": (replaced(YAML, np.array([-1, -2], np.int8)), "can't decode"),
}


@pytest.mark.parametrize(("attack", "message"), DAMAGE.values(), ids=DAMAGE)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_damaged_and_hostile_archives_are_refused(tmp_path: Path, attack: Callable[[Path], Any], message: str) -> None:
    write_model(tmp_path, [JOINT])
    attack(tmp_path / "model.npz")
    with pytest.raises(UserError, match=message) as error:
        read(tmp_path).model(torch.device("cpu"))
    assert error.value.hint
    assert "model.npz" in error.value.message


@pytest.mark.parametrize(
    ("vocabs", "message"),
    [
        (["../vocab.spm", "sub/x.spm"], r"lacks x\.spm"),
        (["model.fsv", "model.fsv"], "is a vocabulary that is factored"),
        (["vocab.txt", "vocab.txt"], "is a vocabulary that is of another kind"),
        (["vocab.spm"], r"lacks a decoder\.yml that names two vocabularies"),
        ([f"{999 * 'v'}.spm", "b.spm"], "lacks v{999}"),
        (["bad.spm", "bad.spm"], r"bad\.spm: is not a SentencePiece model"),
    ],
)
def test_vocabularies_of_other_kinds_are_refused(tmp_path: Path, vocabs: list[str], message: str) -> None:
    folder = tmp_path / "model"
    write_model(folder, [JOINT])
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/x.spm").write_bytes(JOINT)  # what a decoder.yml names elsewhere is not read
    (folder / "bad.spm").write_bytes(b"bad")
    (folder / "model.npz.decoder.yml").write_text(json.dumps({"vocabs": vocabs}))
    with pytest.raises(UserError, match=message) as error:
        read(folder)
    assert error.value.hint


@pytest.mark.parametrize("written", ["[0.6]", "lots", "1" + 400 * "0"])
def test_a_penalty_that_is_no_number_is_refused(tmp_path: Path, written: str) -> None:
    write_model(tmp_path, [JOINT])
    (tmp_path / "model.npz.decoder.yml").write_text(f"vocabs: [vocab.spm, vocab.spm]\nnormalize: {written}")
    with pytest.raises(UserError, match=r"its decoder\.yml has normalize .{3,40}, which is not usable"):
        read(tmp_path)


def test_of_several_models_one_must_be_named(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_model(tmp_path, [JOINT])
        (tmp_path / "model.npz").rename(tmp_path / f"{name}.npz")
    with pytest.raises(UserError, match=r"holds 2 models: a\.npz, b\.npz") as error:
        read(tmp_path)
    assert f"name one, such as {tmp_path / 'a.npz'}" in error.value.hint
    assert read(tmp_path / "b.npz").recipe.decoding.beam == 3
    (tmp_path / "decoder.yml").write_text("models: [somewhere/b.npz]")
    assert read(tmp_path).npz.name == "b.npz"  # type: ignore[attr-defined]


# --- out --------------------------------------------------------------------------------------------------------


def score(bundle: Bundle) -> torch.Tensor:
    """Log-probabilities of translations."""
    tokenizer = bundle.tokenizer()
    source = pad_ids(tokenizer.source.encode_all([sentence(n) for n in range(9)]), after=EOS)
    target = pad_ids(tokenizer.target.encode_all([sentence(n).upper() for n in range(9)]), before=BOS)
    with torch.inference_mode():
        found: torch.Tensor = bundle.model(torch.device("cpu"))(source, target).log_softmax(-1)
    return found[target != 0]


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"shared": False, "tie_embeddings": "target", "activation": "silu", "attention_bias": True},
        {"shared": False, "tie_embeddings": "none", "output_bias": True, "decoder_layers": 1},
    ],
)
def test_our_own_model_comes_back_with_its_probabilities(tmp_path: Path, shape: dict[str, Any]) -> None:
    bundle = random_bundle(tmp_path / "bundle", positions="marian", **shape)
    export(bundle, tmp_path / "out")
    again = read(tmp_path / "out")
    assert not again.lossy
    assert again.tokenizer().files() == bundle.tokenizer().files()
    torch.testing.assert_close(score(again), score(bundle), rtol=0, atol=2e-5)
    arrays = read_npz(tmp_path / "out/model.npz")
    settings, _ = read_text(arrays.pop(YAML).tobytes().decode().rstrip("\0"), YAML)
    source = [*bundle.tokenizer().source.encode(sentence(1)), EOS]
    target = bundle.tokenizer().target.encode(sentence(1).upper())
    theirs = torch.from_numpy(logits(arrays, settings, source, target)).log_softmax(-1)
    with torch.inference_mode():
        ours = bundle.model(torch.device("cpu"))(torch.tensor([source]), torch.tensor([[BOS, *target]]))[0].log_softmax(
            -1
        )
    torch.testing.assert_close(ours, theirs.float(), rtol=0, atol=2e-5)


def test_a_model_of_marian_is_exported_as_it_was(nmt: Callable[..., Any], tmp_path: Path) -> None:
    before = write_model(tmp_path / "model", SIDES, **{"tied-embeddings-all": False})
    mix([read(tmp_path / "model")], [1.0], tmp_path / "bundle")
    done = nmt("average", str(tmp_path / "bundle"), "--format", "marian", "--out", str(tmp_path / "out"))
    assert done.code == 0, done.err
    assert f"exported for Marian: {tmp_path / 'out'}; its search differs" in done.err
    after = read_npz(tmp_path / "out/model.npz")
    after.pop(YAML)
    assert before.keys() == after.keys()
    assert [name for name in before if not np.array_equal(before[name], after[name])] == []
    for name in ("source.spm", "target.spm"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "model" / name).read_bytes()
    assert "normalize: 0.5\n" in (tmp_path / "out/decoder.yml").read_text()


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("positions sinusoidal", {"positions": "sinusoidal"}),
        ("positions learned", {"positions": "learned"}),
        ("norm pre", {"norm": "pre"}),
        ("d_k 9", {"d_k": 9}),
        ("d_v 9", {"d_v": 9}),
        ("norm_epsilon 1e-05", {"norm_epsilon": 1e-5}),
        ("activation gelu", {"activation": "gelu"}),
    ],
)
def test_what_marian_lacks_is_refused_by_name(tmp_path: Path, key: str, changes: dict[str, Any]) -> None:
    bundle = random_bundle(tmp_path / "bundle", **{"positions": "marian", **changes})
    with pytest.raises(UserError, match=rf"Marian has nothing like model\.{key}") as error:
        check_expressible(bundle)
    assert error.value.hint


def test_a_model_of_marian_is_trained_on(
    nmt: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "marian", [JOINT])
    for name in ("train", "valid"):
        (tmp_path / f"{name}.en").write_text("".join(f"{line}\n" for line in SOURCE))
        (tmp_path / f"{name}.de").write_text("".join(f"{line}\n" for line in TARGET))
    sets = [f"{{source: {name}.en, target: {name}.de}}" for name in ("train", "valid")]
    settings = {
        "data.train": f"[{sets[0]}]", "data.valid": f"[{sets[1]}]", "data.test": "[]", "training.updates": 2,
        "training.checkpoint_updates": 1, "training.init_from": "marian/model.npz",
    }  # fmt: skip
    given = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    done = nmt("train", ROOT / "recipes/finetune.yaml", *given)
    assert done.code == 0, done.err
    assert "tokenizer: from marian/model.npz" in done.err
    before, after = read(tmp_path / "marian"), checkpoints(tmp_path / "ckpts")[-1]
    assert after.tokenizer().files() == before.tokenizer().files()
    assert after.recipe.model == before.recipe.model
    done = nmt("translate", "--model", "ckpts", stdin=b"a dog\n")
    assert (done.code, done.out.count(b"\n")) == (0, 1), done.err


def test_training_starts_from_a_model_of_marian_or_goes_over_to_its_positions(tmp_path: Path) -> None:
    write_model(tmp_path / "marian", [JOINT])
    random_bundle(tmp_path / "sinusoidal")
    values = random_bundle(tmp_path / "other", positions="marian").recipe.model_dump()
    values["model"] = {"positions": "marian"}
    for name in ("marian", "sinusoidal"):
        values["training"]["init_from"] = str(tmp_path / name)
        assert initial_bundle(Recipe.model_validate(values)) is not None
    values["model"] = {"positions": "fairseq"}
    with pytest.raises(UserError, match=r"has model\.positions sinusoidal, but the recipe has fairseq"):
        initial_bundle(Recipe.model_validate(values))


def test_its_corrections_tell_the_languages(
    nmt: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "model", [JOINT])
    pairs = "".join(f"{source}\t{target}\n" for source, target in zip(SOURCE, TARGET, strict=True))
    Path("few.en-de.tsv").write_text(pairs)
    Path("dev.tsv").write_text(f"{SOURCE[0]}\t{TARGET[0]}\n")  # which is scored, and not learned
    command = ("train", "few.en-de.tsv", "--set", "training.init_from=model", "--plan")
    assert "the development set of its training" in nmt(*command).err
    done = nmt(*command, "--set", "data.valid=[{file: dev.tsv}]")
    assert done.code == 0, done.err
    Path("few.en-de.tsv").rename("few.tsv")
    command = ("train", "few.tsv", *command[2:])
    assert "neither its name nor anything in it says which languages" in nmt(*command).err
