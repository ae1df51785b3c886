"""What the benchmarks for a GPU must get right without one: how kernels are counted, and that no part stops another."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor

import gpu_check
from contest import random_vocabulary
from counts import add_kernels
from gpu_first import run
from nmt.data.corpus import Corpus
from nmt.model import batch as batches
from nmt.recipe import Training
from nmt.text.vocabulary import EOS
from nmt.training.batches import make_batch
from plain import PlainTransformer, smoothed_loss
from results import KERNELS, Results, read, settings_of, table
from search_agreement import VOCABULARY
from synthetic import wmt_lengths, write_corpus
from updates import plan_of

KERNELS_OF = {
    "attention": "fmha_cutlassF_bf16_aligned_64x64_rf_sm80",
    "norms": "triton_per_fused__to_copy_add_native_dropout_backward_native_layer_norm_backward",
    "softmax": "triton_red_fused__to_copy_exp_prepare_softmax_online_sub_0",
    "optimizer": "at::native::multi_tensor_apply_kernel<LpNormFunctor>",
    "rest": "at::native::sbtopk::gatherTopK<float>",
}
"""A kernel of each of these groups"""


def event(name: str, device: str, begin: int, end: int, is_annotation: bool = False) -> SimpleNamespace:
    """What a profiler records, in milliseconds."""
    found: dict[str, Any] = {"name": name, "device_type": f"DeviceType.{device}", "start_ns": begin * 10**6}
    found |= {"end_ns": end * 10**6, "duration_ns": (end - begin) * 10**6, "is_user_annotation": is_annotation}
    return SimpleNamespace(**{key: (lambda value=value: value) for key, value in found.items()})


def test_a_kernel_counts_once_beside_its_operator_and_other_kernels(tmp_path: Path) -> None:
    events = [
        event("aten::mm", "CPU", 0, 9),
        event("cudaLaunchKernelExC", "CPU", 0, 1),
        event("Memcpy HtoD", "CUDA", 15, 30),
        event("nvjet_sm90_tst", "CUDA", 10, 20),
        event("Optimizer.step", "CUDA", 0, 100, is_annotation=True),
        *(event(name, "CUDA", 16, 18) for name in KERNELS_OF.values()),
    ]
    watch: Any = SimpleNamespace(profiler=SimpleNamespace(kineto_results=SimpleNamespace(events=lambda: events)))
    add_kernels(Results(tmp_path), "an update", watch, 2, 0.02)
    rows = read(tmp_path / "results.jsonl")
    assert rows["an update"] == {"launches": 0.5, "kernels_ms": 10.0, "busy": 0.5}
    expected = {"products": 5.0, "copies and casts": 7.5, **dict.fromkeys(KERNELS_OF, 1.0)}
    assert {name: ms for name, ms in rows["an update: kernels, ms"].items() if ms} == expected
    assert len((tmp_path / KERNELS).read_text().splitlines()) == 2 + len(KERNELS_OF)


@pytest.mark.parametrize(
    ("code", "seconds", "why"),
    [
        ("print('done')", 60.0, ""),
        ("print('half'); raise SystemExit(3)", 60.0, "ended with 3: half"),
        ("import os; print('half', flush=True); os.kill(os.getpid(), 11)", 60.0, "ended with -11: half"),
        ("import time; time.sleep(60)", 0.3, "stopped after its 0 s: "),
    ],
)
def test_a_part_that_fails_or_hangs_ends_with_a_reason(code: str, seconds: float, why: str, tmp_path: Path) -> None:
    assert run([sys.executable, "-S", "-c", code], seconds, tmp_path / "log.txt") == why


def test_figures_of_a_row_stand_on_one_line_beside_the_last(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.add("row", ours=49.84)
    results.attempt("other", lambda: json.loads("{"))
    results.add("row", plain=1234.5)
    results.add("check", figure=1.0, limit=2.0, passed=True)
    rows = read(tmp_path / "results.jsonl")
    first, second = table(rows, {"row": {"ours": 51.0}}, 2)
    assert first.split(maxsplit=1)[1] == "ours 49.8 [51], plain 1,234"
    assert "JSONDecodeError" in second
    assert list(table(rows, {}, 1)) == ["and 2 more rows in results.jsonl"]


def test_a_variant_is_a_setting_or_a_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "PADDING", 0)
    option = "torch._inductor.config:triton.mix_order_reduction_split_size"
    assert settings_of("training.packing=false") == {"training.packing": False}
    with inductor.patch({option.partition(":")[2]: None}):
        assert settings_of(f"nmt.model.batch.PADDING=7+{option}=64") == {}
        assert inductor.triton.mix_order_reduction_split_size == 64
    assert batches.PADDING == 7
    with pytest.raises(AttributeError):
        settings_of("nmt.model.batch.PADDINGS=7")


def test_a_vocabulary_of_random_words_has_its_size_and_loses_no_text() -> None:
    vocabulary = random_vocabulary(400)
    assert len(vocabulary) == 400
    assert vocabulary.pieces([EOS]) == ["</s>"]
    assert vocabulary.decode(vocabulary.encode("a  word, Ω")) == "a  word, Ω"


def test_the_reference_of_the_checks_is_what_plain_pytorch_computes(tmp_path: Path) -> None:
    write_corpus(tmp_path / "train.arrow", *wmt_lengths(60), vocabulary=VOCABULARY)
    corpus = Corpus(tmp_path / "train.arrow")
    ours = gpu_check.Updates(gpu_check.MODELS[gpu_check.POST], corpus, torch.device("cpu"), "fp64")
    plain = PlainTransformer(ours.model.config, VOCABULARY).double()
    plain.take(ours.model.state_dict())
    loss, exact = ours.compute(0)
    batch = make_batch(corpus, plan_of(corpus, gpu_check.TOKENS)(0).rows(0))
    found = smoothed_loss(plain, batch, Training().label_smoothing)
    (found / int(batch.target_out.count_nonzero())).backward()
    assert float(found.detach()) == pytest.approx(loss, rel=1e-6)
    assert gpu_check.error(gpu_check.copied(plain, lambda parameter: parameter.grad), exact) < 1e-5
