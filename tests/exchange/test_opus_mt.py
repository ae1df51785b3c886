"""Models of transformers: the logits of theirs, what is refused, and training that starts from one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from marian import logits
from marian_folders import as_added, write_model, write_tokenizer
from random_bundle import random_bundle
from reverse_task import sets
from safetensors.torch import load_file, save_file

import nmt
from nmt.checkpoint.reading import Bundle, checkpoints
from nmt.checkpoint.writing import mix
from nmt.decoding.engine import Request
from nmt.decoding.forced import ForcedDecoder
from nmt.exchange.huggingface import export
from nmt.exchange.resolve import resolve
from nmt.model.batch import pad_ids
from nmt.recipe import Decoding
from nmt.system.errors import UserError
from nmt.text.vocabulary import BOS, EOS, PAD

ROOT = Path(__file__).parents[2]
SOURCE = ["a dog sees the small house", "the man and a woman walk to the red house", "two dogs run over green trees"]
TARGET = ["ein Hund sieht das kleine Haus", "der Mann und eine Frau gehen zum Haus", "zwei Hunde laufen über Bäume"]
SHAPES: dict[str, dict[str, Any]] = {
    "as OPUS-MT": {},
    "two vocabularies": {"separate": True, "activation_function": "gelu"},
    "no matrix is shared": {"separate": True, "tie_word_embeddings": False, "activation_function": "relu"},
    "pre-norm": {"model_type": "pegasus"},
}


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """Folders with the tokenizers of one vocabulary, and of two."""
    folders = {separate: tmp_path_factory.mktemp("tokenizer") for separate in (False, True)}
    for separate, folder in folders.items():
        write_tokenizer(folder, SOURCE * 20, TARGET * 20, 60, separate)
    return folders


@pytest.fixture
def make_folder(tokenizers: dict[bool, Path], tmp_path: Path) -> Callable[..., Path]:
    """Writes the folder of a small random model; keywords change its config.json."""

    def make(name: str = "opus-mt-en-de", separate: bool = False, **changes: Any) -> Path:
        folder = tmp_path / name
        shutil.copytree(tokenizers[separate], folder)
        tables = [json.loads(path.read_text()) for path in sorted(folder.glob("*vocab.json"), reverse=True)]
        write_model(folder, (len(tables[0]), len(tables[-1])), separate, **changes)
        return folder

    return make


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@torch.inference_mode()
def test_logits_are_theirs(make_folder: Callable[..., Path], shape: dict[str, Any]) -> None:
    folder = make_folder(**shape)
    bundle, _ = resolve(folder)
    tokenizer, model = bundle.tokenizer(), bundle.model(torch.device("cpu"))
    sources = [*tokenizer.source.encode_all(SOURCE), tokenizer.source.encode("dog 😀")]
    targets = [*tokenizer.target.encode_all(TARGET), tokenizer.target.encode("Hund 😀")]
    source, target_in = pad_ids(sources, after=EOS), pad_ids(targets, before=BOS)
    config = json.loads((folder / "config.json").read_text())
    origins = [torch.tensor(side.origins) for side in (tokenizer.source, tokenizer.target)]
    theirs_in = origins[1].clone()
    theirs_in[BOS] = config["decoder_start_token_id"]
    config["pad_token_id"] = int(origins[0][PAD])
    (folder / "config.json").write_text(json.dumps(config))

    ours, theirs = model(source, target_in), logits(folder, origins[0][source], theirs_in[target_in])
    words = target_in != PAD
    known = origins[1] >= 0
    assert [index for index in range(len(known)) if not known[index]] == [BOS]
    torch.testing.assert_close(ours[words][:, known], theirs[words][:, origins[1][known]], rtol=1e-5, atol=1e-5)
    # <s> takes nothing of the softmax
    probabilities = theirs[words].softmax(-1)[:, origins[1][known]]
    torch.testing.assert_close(ours[words].softmax(-1)[:, known], probabilities, rtol=1e-5, atol=1e-7)


def test_the_recipe_says_what_the_model_is(make_folder: Callable[..., Path]) -> None:
    folder = make_folder(activation_function="gelu", length_penalty=0.8)
    bundle, note = resolve(folder)
    model, recipe = bundle.recipe.model, bundle.recipe
    assert (model.layers, model.decoder_depth, model.d_ff, model.heads, model.norm_epsilon) == (2, 1, 24, 2, 1e-5)
    assert (model.activation, model.tie_embeddings) == ("gelu", "all")
    assert (model.attention_bias, model.output_bias) == (True, True)
    assert (recipe.data.source, recipe.data.target, recipe.tokenizer.shared) == ("en", "de", True)
    assert (recipe.decoding.beam, recipe.decoding.alpha, recipe.decoding.max_source) == (2, 0.8, 512)
    assert note == f"model: {folder} (of transformers); its tokenizer cannot spell every character"


def test_a_prefix_that_the_vocabulary_cannot_spell_gives_an_empty_line(make_folder: Callable[..., Path]) -> None:
    with nmt.load(make_folder(), device="cpu", threads=1) as model:
        prefixes = ["中", "😀 Hund", "ein", "DQX"]
        found = list(model.stream(Request(SOURCE[0], prefix) for prefix in prefixes))
    assert [each.texts[0][:3] for each in found] == ["", "", "ein", ""]
    spelling = "no output: the vocabulary cannot spell {} of the prefix"
    assert [each.complaints for each in found if each.failed] == [
        [spelling.format(text)] for text in ("中", "😀", "DQX")
    ]


def test_a_model_whose_weights_overflow_finds_nothing_and_fails_at_none(make_folder: Callable[..., Path]) -> None:
    folder = make_folder()
    weights = {name: 1e30 * weight for name, weight in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors")
    with nmt.load(folder, device="cpu", threads=1) as model:
        assert model.translate(["<b>a</b> dog"], markup=True, terms=[("dog", "Hund")], keep=["a"]) == ["<b></b>"]
        assert [each.texts for each in model.stream(["a dog"], sample=2)] == [["", ""]]
        with pytest.raises(nmt.UserError, match="no output"):
            model.attention("a dog")
    decoder = ForcedDecoder([resolve(folder)[0].model(torch.device("cpu"))], model.tokenizer, Decoding())
    with pytest.raises(nmt.UserError, match="line 1: its log-probability is nan"):
        next(decoder.stream([("a dog", "ein Hund")]))


def test_weights_in_half_precision_and_under_other_names_are_read(make_folder: Callable[..., Path]) -> None:
    expected = resolve(folder := make_folder())[0].weights()
    tensors = {name: tensor.half() for name, tensor in load_file(folder / "model.safetensors").items()}
    shared = tensors.pop("model.shared.weight")
    names = ("lm_head.weight", "model.encoder.embed_tokens.weight")
    save_file({**tensors, **{name: shared.clone() for name in names}}, folder / "model.safetensors")
    found = resolve(folder)[0].weights()
    assert {weight.dtype for weight in found.values()} == {torch.float32}
    assert found.keys() == expected.keys()
    for name, weight in found.items():
        torch.testing.assert_close(weight, expected[name], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "t5"}, "is a model of transformers of the type t5"),
        ({"normalize_before": True}, "no model with normalize_before True"),
        ({"activation_function": "gelu_new"}, "activation_function gelu_new"),
        ({"decoder_attention_heads": 4}, "decoder_attention_heads 4"),
        ({"vocab_size": 7}, "symbols, but the model 7 by config.json"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "is quantised"),
        ({"decoder_start_token_id": 10**6}, "decoder_start_token_id 1000000 is no symbol"),
        ({"d_model": 32}, r"shape \[\d+, 16\], but \[\d+, 32\]"),
        ({"decoder_layers": 2}, "lacks the weight model.decoder.layers.1"),
        ({"encoder_layers": 1}, "holds model.encoder.layers.1"),
    ],
)
def test_what_cannot_be_expressed_is_refused_by_name(
    make_folder: Callable[..., Path], changes: dict[str, Any], message: str
) -> None:
    folder = make_folder()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(UserError, match=message) as error:
        resolve(folder)[0].model(torch.device("cpu"))
    assert error.value.hint


def test_nothing_is_unpickled(make_folder: Callable[..., Path]) -> None:
    folder = make_folder()
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"has no model\.safetensors, and nmt does not unpickle") as error:
        resolve(folder)
    assert f"from_pretrained('{folder}').save_pretrained('opus-mt-en-de-safetensors'" in error.value.hint


@pytest.mark.parametrize("separate", [False, True])
def test_matrices_that_are_tied_and_differ_are_refused_and_read_as_two_if_config_says_so(
    make_folder: Callable[..., Path], separate: bool
) -> None:
    """transformers 5 saves such, and reads each; 4 reads the first alone."""
    folder = make_folder(separate=separate)
    weights, first = load_file(folder / "model.safetensors"), "model.shared.weight"
    first = "model.decoder.embed_tokens.weight" if separate else first
    save_file({**weights, "lm_head.weight": weights[first] + 1}, folder / "model.safetensors")
    with pytest.raises(
        UserError, match=f"{first} and lm_head.weight differ, but are one matrix by config.json"
    ) as error:
        resolve(folder)[0].weights()
    assert 'set "tie_word_embeddings": false in config.json' in error.value.hint
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    found = resolve(folder)[0].weights()
    torch.testing.assert_close(found["output_embedding.weight"], found["target_embedding.weight"] + 1)


def test_rows_without_a_symbol_are_refused_by_their_number(make_folder: Callable[..., Path]) -> None:
    folder = make_folder()
    size = len(json.loads((folder / "vocab.json").read_text()))
    write_model(folder, (size + 1, size + 1))
    with pytest.raises(
        UserError, match=f"has {size} symbols, but the model {size + 1} by config.json, 1 more"
    ) as error:
        resolve(folder)
    assert f"model.resize_token_embeddings({size}) of transformers drops them" in error.value.hint


@pytest.mark.parametrize("changed", [False, True])
def test_position_encodings_that_are_stored_are_those_that_are_computed(
    make_folder: Callable[..., Path], changed: bool
) -> None:
    folder, name = make_folder(), "model.encoder.embed_positions.weight"
    angles = torch.arange(50)[:, None] / 10000 ** (torch.arange(8) / 8)
    table = torch.cat((angles.sin(), angles.cos()), 1).half()
    stored = table.roll(1, 0).contiguous() if changed else table
    save_file({**load_file(folder / "model.safetensors"), name: stored}, folder / "model.safetensors")
    if not changed:
        assert resolve(folder)[0].weights()
        return
    with pytest.raises(UserError, match=f"{name} holds other position encodings than the sinusoids"):
        resolve(folder)[0].weights()


def test_a_symbol_that_is_missing_amid_others_is_no_row_too_many(make_folder: Callable[..., Path]) -> None:
    folder = make_folder()
    ids = json.loads((folder / "vocab.json").read_text())
    gone = ids.pop(next(piece for piece, index in ids.items() if index == 5))
    (folder / "vocab.json").write_text(json.dumps(ids))
    with pytest.raises(UserError, match=f"has no symbol with the id {gone}, but later ones") as error:
        resolve(folder)
    assert "resize_token_embeddings" not in error.value.hint


def test_adapters_that_are_not_merged_are_refused_by_name(make_folder: Callable[..., Path]) -> None:
    folder = make_folder()
    name = "model.encoder.layers.0.self_attn.q_proj.lora_A.default.weight"
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, name: torch.ones(2, 16)}, folder / "model.safetensors")
    with pytest.raises(UserError, match=rf"holds {name}, a matrix of LoRA") as error:
        resolve(folder)[0].weights()
    assert "merge_and_unload()" in error.value.hint


@pytest.mark.parametrize("name", ["tokenizer_config.json", "added_tokens.json"])
def test_tokens_added_to_a_vocabulary_are_refused_by_name(make_folder: Callable[..., Path], name: str) -> None:
    folder = make_folder()
    ids = json.loads((folder / "vocab.json").read_text())
    known = {each: ids[each] for each in ("</s>", "<unk>", "<pad>", ">>fra<<")}
    (folder / name).write_text(as_added(name, known))
    resolve(folder)
    for token in ("<term>", "TERM", "ein", ">>xyz<<"):
        (folder / name).write_text(as_added(name, {**known, token: ids.get(token, len(ids))}))
        with pytest.raises(UserError, match=f"added tokens, at which nmt would not split a text: {token}\n"):
            resolve(folder)


def test_a_folder_without_its_sentencepiece_model_says_where_to_get_it(make_folder: Callable[..., Path]) -> None:
    folder = make_folder()
    (folder / "source.spm").unlink()
    with pytest.raises(UserError, match=r"lacks source\.spm") as error:
        resolve(folder)
    assert error.value.hint.startswith("copy source.spm, target.spm and vocab.json from the model that")


# --- round trips ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("separate", [False, True])
def test_a_marian_model_is_exported_as_it_was(make_folder: Callable[..., Path], tmp_path: Path, separate: bool) -> None:
    folder, out = make_folder(separate=separate), tmp_path / "out"
    bundle, _ = resolve(folder)
    export(mix([bundle], [1.0], tmp_path / "bundle"), out)
    for name, content in bundle.tokenizer().files().items():
        assert (out / name).read_bytes() == (folder / name).read_bytes() == content
    before, after = (load_file(path / "model.safetensors") for path in (folder, out))
    assert before.keys() == after.keys()
    assert [name for name in before if not torch.equal(before[name], after[name])] == []
    configs = [json.loads((path / "config.json").read_text()) for path in (folder, out)]
    for key in ("vocab_size", "decoder_vocab_size", "pad_token_id", "eos_token_id", "decoder_start_token_id"):
        assert configs[0][key] == configs[1][key]
    suppressed = json.loads((out / "generation_config.json").read_text())["suppress_tokens"]
    assert suppressed == bundle.tokenizer().target.origins[:BOS]  # which has no <s>


@pytest.mark.parametrize("shape", [{}, {"shared": False, "tie_embeddings": "none"}, {"norm": "pre"}])
def test_our_own_model_comes_back_to_the_bit(tmp_path: Path, shape: dict[str, Any]) -> None:
    bundle = random_bundle(tmp_path / "bundle", **shape)
    export(bundle, tmp_path / "out")
    again, _ = resolve(tmp_path / "out")
    assert not again.lossy
    assert again.tokenizer().files() == bundle.tokenizer().files()
    before, after = bundle.weights(), again.weights()
    assert before.keys() == after.keys()
    assert [name for name in before if not torch.equal(before[name], after[name])] == []
    assert again.recipe.model == bundle.recipe.model.model_copy(update={"decoder_layers": bundle.recipe.model.layers})


# --- training from it -------------------------------------------------------------------------------------------


def test_a_marian_model_is_fine_tuned_averaged_and_mixed(
    nmt: Callable[..., Any], make_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = make_folder()
    (tmp_path / "texts").mkdir()
    for name in ("domain", "general", "valid"):
        (tmp_path / f"texts/{name}.en").write_text("".join(f"{line}\n" for line in SOURCE))
        (tmp_path / f"texts/{name}.de").write_text("".join(f"{line} 😀\n" for line in TARGET))
    small = "data.root=texts", "training.updates=2", "training.checkpoint_updates=1"
    said = []
    for command in (
        ("train", ROOT / "recipes/finetune.yaml", *sets(f"training.init_from={folder.name}", *small)),
        ("average", "ckpts"),
        ("average", folder.name, "ckpts", "--weights", "0.3,0.7", "--out", "between"),
        ("average", folder.name, "--weights", "1", "--out", "bundle"),
        ("translate", "--model", "between"),
    ):
        done = nmt(*command, stdin=b"a dog\n")
        assert done.code == 0, done.err
        said.append(done.err)
    assert "3 targets that the tokenizer cannot spell" in said[0]
    assert f"tokenizer: from {folder.name}" in said[0]
    assert f"weights: from {folder.name}" in said[0]
    trained = checkpoints(tmp_path / "ckpts")[-1]
    assert trained.lossy
    before, _ = resolve(folder)
    assert trained.recipe.model == before.recipe.model
    assert trained.tokenizer().files() == before.tokenizer().files()
    averaged, between = (Bundle.read(tmp_path / name) for name in ("ckpts/averaged", "between"))
    start, end, mixed = before.weights(), averaged.weights(), between.weights()
    for name, weight in mixed.items():
        torch.testing.assert_close(weight, 0.3 * start[name] + 0.7 * end[name])
    unchanged = Bundle.read(tmp_path / "bundle")
    assert all(torch.equal(weight, start[name]) for name, weight in unchanged.weights().items())


def test_a_recipe_that_does_not_fit_is_refused_by_name(
    nmt: Callable[..., Any], make_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    start = f"training.init_from={make_folder().name}"
    for key, said in (("layers=6", "layers 2, but the recipe has 6"), ("activation=relu", "activation silu")):
        done = nmt("train", ROOT / "recipes/finetune.yaml", "--plan", *sets(start, f"model.{key}"))
        assert (done.code, said in done.err) == (1, True), done.err
    augmented = nmt("train", ROOT / "recipes/finetune.yaml", *sets(start, "data.augment.upper=0.1"))
    assert augmented.code == 1
    assert "error: data.augment: changes text, some of which the vocabulary of" in augmented.err
    plan = nmt("train", ROOT / "recipes/finetune.yaml", "--plan", "--device", "cpu", "--set", start)
    assert plan.code == 0, plan.err


def test_models_that_differ_are_not_averaged(
    nmt: Callable[..., Any], make_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = make_folder("a"), make_folder("b", activation_function="gelu")
    third = make_folder("c", separate=True)
    for other, said in (
        (second, "differ in model.activation: silu and gelu"),
        (third, "differ in model.tie_embeddings"),
    ):
        done = nmt("average", first, other, "--weights", "1,1")
        assert (done.code, said in done.err) == (1, True), done.err
    assert "need --weights" in nmt("average", first, second).err
