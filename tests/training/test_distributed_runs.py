"""`nmt train` on several devices, as users meet it: the same weights as on one, and whatever happens to a rank.

Ranks are forks, as on a CPU, or launched, as on GPUs.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import ranks_of
from reverse_task import (
    AUGMENTED,
    BARE,
    assert_equal_to_the_bit,
    assert_near,
    metrics,
    parameters,
    position,
    sets,
    small,
)

from nmt.checkpoint.reading import checkpoints
from nmt.system.processes import exclusive
from nmt.training.validation import Validation

SMALL = small(
    "updates: 20, log_updates: 1, device_tokens: 130, report: false, optimizer: muon", "model.dropout=0", *BARE
)
NMT = [sys.executable, "-m", "nmt", "train", "recipe.yaml", *SMALL, "--threads", "1", "--device", "cpu"]
EXACT = "training.precision=fp64"  # in fp32, for one seed in ten, two ranks differ from one device by more than 1e-5
LONG = "training.updates=1000000"  # stopped by what the test does
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has forks that are safe")
NO_PROC = not Path("/proc/self/environ").exists()


class Training:
    """A running `nmt train`, whose lines can be waited for."""

    def __init__(self, folder: Path, *arguments: str, settings: tuple[str, ...] = (), command: list[str] = NMT) -> None:
        self.process = subprocess.Popen(
            [*command, *sets(*settings), *arguments],
            cwd=folder,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []

    def until(self, text: str) -> str:
        """Reads what is said up to a line that holds `text`."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            if text in line:
                return line
        raise AssertionError(f"{text!r} was not said:\n" + "\n".join(self.lines))

    def end(self, code: int = 0) -> str:
        """Reads to the end; everything said."""
        assert self.process.stderr is not None
        self.lines += self.process.stderr.read().splitlines()
        said = "\n".join(self.lines)
        assert self.process.wait(120) == code, said
        assert "Traceback" not in said
        assert "Warning" not in said
        assert not re.search(r"^[IWEF]\d{4} ", said, re.MULTILINE)  # what PyTorch's launcher logs
        return said

    def ranks(self) -> dict[int, int]:
        """The processes of the group: rank to process id."""
        return ranks_of(self.process.pid)


@pytest.fixture(params=[pytest.param("forked", marks=ON_LINUX), "launched"])
def way(request: pytest.FixtureRequest, task: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """How ranks are started."""
    folder = task / "injected"
    folder.mkdir()
    launched = "import nmt.system.parallelism\nnmt.system.parallelism.forks = lambda: False\n"
    (folder / "sitecustomize.py").write_text(launched if request.param == "launched" else "")
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ['PYTHONPATH']}")
    return str(request.param)


launched = pytest.mark.parametrize("way", ["launched"], indirect=True)
forked = pytest.mark.parametrize("way", [pytest.param("forked", marks=ON_LINUX)], indirect=True)


@pytest.fixture
def start(task: Path, way: str) -> Iterator[Callable[..., Training]]:
    """Starts trainings; what is left of them at the end is killed."""
    started: list[Training] = []

    def run(*arguments: str, **options: Any) -> Training:
        started.append(Training(task, *arguments, **options))
        return started[-1]

    yield run
    for training in started:
        for process in (training.process.pid, *training.ranks().values()):
            if training.process.poll() is None:
                os.kill(process, signal.SIGKILL)
        training.process.wait(60)


def said_twice(said: str) -> set[str]:
    """Lines that stand there more than once."""
    lines = [line for line in said.splitlines() if line]
    return {line for line in lines if lines.count(line) > 1}


# --- the same update everywhere -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alone(prepared_task: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs of one process, by precision, and one with changed texts."""
    folder = tmp_path_factory.mktemp("alone")
    shutil.copytree(prepared_task, folder, dirs_exist_ok=True)
    for precision in ("fp32", "fp64"):
        Training(folder, "--out", precision, settings=(f"training.precision={precision}",)).end()
    Training(folder, "--out", "augmented", settings=(EXACT, AUGMENTED)).end()
    return {name: folder / name for name in ("fp32", "fp64", "augmented")}


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "localhost"]
TORCHRUN += ["--nproc-per-node", "2", *NMT[1:]]


@pytest.mark.parametrize(
    ("devices", "precision", "tolerance"), [(2, "fp64", 1e-9), pytest.param(4, "fp32", 1e-5, marks=pytest.mark.slow)]
)
def test_weights_are_those_of_one_device(
    start, task: Path, alone: dict[str, Path], way: str, devices: int, precision: str, tolerance: float
) -> None:
    said = start("--devices", str(devices), settings=(f"training.precision={precision}",)).end()
    assert f"on {devices} {'processes' if way == 'forked' else 'devices'}, cpu" in said
    assert said_twice(said) == set()
    assert said.count("finished: 20 of 20 updates") == 1
    assert_near(task / "ckpts", alone[precision], tolerance)
    cost = checkpoints(task / "ckpts")[-1].cost
    assert cost["device_seconds"] == pytest.approx(devices * cost["seconds"])
    assert cost["flops"] == pytest.approx(checkpoints(alone[precision])[-1].cost["flops"])


@launched
@pytest.mark.slow  # torchrun's ranks import torch anew
def test_a_group_of_torchrun_is_joined(
    start, task: Path, alone: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # else torchrun talks about it
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "ERROR")  # else gloo does about a host without an address
    said = start(command=TORCHRUN, settings=(EXACT,)).end()
    assert "on 2 devices, cpu" in said
    assert said_twice(said) == set()
    assert_near(task / "ckpts", alone["fp64"], 1e-9)


def test_a_run_is_continued_on_other_numbers_of_devices(start, task: Path, alone: dict[str, Path]) -> None:
    start("--devices", "2", settings=(EXACT, AUGMENTED, "training.updates=7")).end()
    assert "resuming at update 7" in start(settings=(EXACT, AUGMENTED, "training.updates=13")).end()
    assert "resuming at update 13" in start("--devices", "2", settings=(EXACT, AUGMENTED)).end()
    assert_near(task / "ckpts", alone["augmented"], 1e-9)


@pytest.mark.slow
def test_stopped_and_resumed_ranks_repeat_to_the_bit(start, task: Path) -> None:
    random = "model.dropout=0.2", "training.checkpoint_updates=5"
    scored = "data.name=reverse", "data.valid=[{source: valid.a, target: valid.b}]", "training.valid_beam=1"
    for out, settings in (("whole", ()), ("parts", ("training.updates=8",)), ("parts", ())):
        start("--devices", "2", "--out", out, settings=(*random, *scored, *settings)).end()
    assert_equal_to_the_bit(task / "whole", task / "parts")
    rows = [metrics(task / of) for of in ("whole", "parts")]
    scores = [{row["step"]: row["valid_bleu"] for row in of if "valid_bleu" in row} for of in rows]
    assert scores[0].items() <= scores[1].items()
    kept = [(task / of / "dev.jsonl").read_text().splitlines() for of in ("whole", "parts")]
    assert kept[0] == [line for line in kept[1] if not line.startswith('{"step": 8,')]
    assert len(kept[0]) == 1 + len(scores[0])
    # each rank scored its share; the whole is what one process says of the same weights
    newest = checkpoints(task / "whole")[-1]
    again = Validation.of(newest)(newest.model(torch.device("cpu")))
    assert newest.scores == pytest.approx(again.scores, rel=1e-6)


# --- files of pairs ---------------------------------------------------------------------------------------------


def write_pairs(path: Path) -> None:
    path.write_text("".join(f"I see {count} trees.\tIch sehe {count} Bäume.\n" for count in range(300)))


@launched
def test_a_recipe_for_files_is_written_once_and_told_once(start, task: Path) -> None:
    write_pairs(task / "pairs.en-de.tsv")
    files = [*NMT[:4], "pairs.en-de.tsv", *SMALL[:4], "--threads", "1", "--device", "cpu", "--devices", "2"]
    for updates, line in ((2, "recipe: pairs.en-de.yaml is written"), (3, "recipe: pairs.en-de.yaml, as it is")):
        said = start(command=files, settings=(f"training.updates={updates}", "training.warmup=1")).end()
        assert line in said
        assert f"finished: {updates} of {updates} updates" in said
        assert said_twice(said) == set()
    assert position(task / "pairs.en-de")["step"] == 3


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("pairs.tsv", "says which languages it is in"),  # which each rank would find
        ("pairs.en-de.tsv", "is there already, and nmt has not written it"),  # which would be read by the others
    ],
)
def test_an_error_is_told_by_one_rank_and_ends_all(
    task: Path, monkeypatch: pytest.MonkeyPatch, name: str, problem: str
) -> None:
    write_pairs(task / name)
    (task / "pairs.en-de.yaml").write_text("extends: laptop\n")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = []
    for rank in range(2):
        for variable, value in {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
            monkeypatch.setenv(variable, str(value))
        ranks.append(Training(task, command=[*NMT[:4], name, "--threads", "1", "--device", "cpu"]))
    said = [training.end(1) for training in ranks]
    assert sum(each.count("error: ") for each in said) == 1
    assert problem in said[0] + said[1]
    assert not (task / "pairs.yaml").exists()


# --- signals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "code", "told"),
    [(signal.SIGTERM, 143, "the launcher"), pytest.param(signal.SIGINT, 130, "all", marks=pytest.mark.slow)],
)
def test_a_signal_saves_and_says_how_to_go_on(start, task: Path, number: int, code: int, told: str) -> None:
    training = start("--devices", "2", settings=(LONG,))
    training.until("update 5/")
    if told == "all":  # as a terminal does
        os.killpg(training.process.pid, number)
    else:
        training.process.send_signal(number)
    said = training.end(code)
    step = position(task / "ckpts")["step"]
    assert step >= 5
    assert said.count(f"stopped at update {step}, saved in ckpts; to resume, run the same command again") == 1
    assert said.count(f"saved ckpts/step-{step:08d}") == 1
    assert said_twice(said) == set()
    more = f"training.updates={step + 2}"
    assert f"resuming at update {step:,}" in start("--devices", "2", settings=(more,)).end()


@launched
@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_rank_that_dies_is_named_and_the_group_resumes(start, inject, task: Path, rank: int) -> None:
    inject(DIES.format(rank=rank))
    training = start("--devices", "2", settings=(LONG, "training.checkpoint_updates=5"))
    training.until("saved ckpts/step-00000005")
    os.kill(int((task / "process").read_text()), signal.SIGKILL)
    line = training.until("restart ")
    assert line == f"rank {rank} was killed by SIGKILL: restart 1 of 3, from the last checkpoint\n"
    resumed = int(re.search(r"resuming at update ([\d,]+)", training.until("resuming at"))[1].replace(",", ""))
    assert resumed >= 5
    assert resumed % 5 == 0
    training.until(f"saved ckpts/step-{resumed + 5:08d}")
    training.process.send_signal(signal.SIGTERM)
    training.end(143)


@launched
@pytest.mark.slow  # PyTorch's launcher gives a stopped process 30 seconds
@pytest.mark.usefixtures("new_processes")
@pytest.mark.skipif(NO_PROC, reason="needs /proc to find the ranks")
def test_a_rank_that_hangs_is_replaced_and_the_group_resumes(start, task: Path) -> None:
    training = start("--devices", "2", settings=(LONG, "training.checkpoint_updates=5", "training.timeout_minutes=0.1"))
    training.until("saved ckpts/step-00000005")
    hanging = training.ranks()[1]
    os.kill(hanging, signal.SIGSTOP)
    assert training.until("lost the others").startswith("error: rank 0 lost the others")
    training.until("restart 1 of 3, from the last checkpoint")
    assert not Path(f"/proc/{hanging}").exists()
    training.until("resuming at update")
    training.until("saved ckpts")
    training.process.send_signal(signal.SIGTERM)
    training.end(143)


@launched
@pytest.mark.slow
@pytest.mark.usefixtures("new_processes")
@pytest.mark.skipif(NO_PROC, reason="needs /proc to find the ranks")
def test_ranks_whose_launcher_was_killed_save_and_end(start, task: Path) -> None:
    training = start("--devices", "2", settings=(LONG,))
    training.until("update 5/")
    ranks = training.ranks()
    assert sorted(ranks) == [0, 1]
    watched = [os.pidfd_open(process) for process in ranks.values()]
    training.process.kill()
    assert "stopped at update" in training.end(-9)  # read to its end: all ranks have closed it
    for descriptor in watched:
        assert select.select([descriptor], [], [], 60)[0]
        os.close(descriptor)
    assert position(task / "ckpts")["step"] >= 5
    with exclusive(task / "ckpts/.lock", "ckpts", print):
        pass


@forked
@pytest.mark.parametrize("rank", [0, 1])
def test_no_fork_outlives_another(start, inject, task: Path, rank: int) -> None:
    """A run whose fork was killed says so and can be resumed; if rank 0 was, the forks end."""
    inject(DIES.format(rank=1))
    training = start("--devices", "2", settings=(LONG, "training.checkpoint_updates=5"))
    training.until("saved ckpts/step-00000005")
    fork = int((task / "process").read_text())
    ended = os.pidfd_open(fork)
    os.kill(fork if rank else training.process.pid, signal.SIGKILL)
    said = training.end(1 if rank else -9)
    assert said.count("error: a process was killed by SIGKILL\nhint: if memory ran out") == rank
    assert select.select([ended], [], [], 60)[0]
    os.close(ended)
    step = int(position(task / "ckpts")["step"])
    more = f"training.updates={step + 2}"
    assert f"resuming at update {step:,}" in start("--devices", "2", settings=(more,)).end()


# --- problems of one rank -----------------------------------------------------------------------------------


@pytest.fixture
def inject(task: Path, way: str) -> Callable[[str], None]:
    """Has ranks run some code as soon as they have imported the trainer."""

    def put(code: str) -> None:
        with (task / "injected/sitecustomize.py").open("a") as file:
            file.write(
                "import os, torch\n"
                "from nmt.system.errors import UserError\n"
                f"from nmt.training.trainer import Trainer\n{code}"
            )

    return put


DIES = """
def gradients(self, update, requests):
    if self.group.rank == {rank} and self.state.step == 1: open('process', 'w').write(str(os.getpid()))
    return original(self, update, requests)
original, Trainer.gradients = Trainer.gradients, gradients
"""


def test_a_problem_of_another_rank_is_said_once_and_not_tried_again(start, inject, task: Path) -> None:
    inject(
        """
def gradients(self, update, requests):
    if self.group.rank == 1 and self.state.step == 4: raise UserError("rank 1 has had enough", "give it a rest")
    return original(self, update, requests)
original, Trainer.gradients = Trainer.gradients, gradients
""",
    )
    said = start("--devices", "2").end(1)
    assert said.count("error: rank 1 has had enough\nhint: give it a rest") == 1
    assert said.count("error: ") == 1
    assert "restart " not in said


def test_a_problem_of_all_ranks_is_said_once(start, task: Path) -> None:
    said = start("--devices", "2", settings=("training.learning_rate_scale=1e30", "training.updates=60")).end(1)
    assert said.count("error: training diverged") == said.count("error: ") == said.count("hint: ") == 1
    said = start("--devices", "2", "--device", "tpu").end(1)
    assert said.count("error: ") == 1


LOADS_OTHERS = """
from nmt.training import start
def restore(learner, checkpoint):
    state = original(learner, checkpoint)
    if os.environ["RANK"] == "1": next(learner.model.parameters()).data.mul_(2)
    return state
original, start.restore = start.restore, restore
"""
HAS_OTHERS = """
from nmt.training import start
def make_learner(recipe, prepared, group, *rest):
    if group.rank == 1:
        recipe = recipe.model_copy(update={"training": recipe.training.model_copy(update={"adam_epsilon": 1e-8})})
    return original(recipe, prepared, group, *rest)
original, start.make_learner = start.make_learner, make_learner
"""


@pytest.mark.parametrize(
    ("way", "code", "difference"),
    [
        ("launched", LOADS_OTHERS, r"rank 0: loaded weights (\w{8}); rank 1: loaded weights (?!\1)\w{8}"),
        ("launched", HAS_OTHERS, r"rank 0: training\.adam_epsilon=1e-09; rank 1: training\.adam_epsilon=1e-08"),
    ],
    indirect=["way"],
)
def test_ranks_that_load_other_weights_or_have_other_settings_are_named(
    start, inject, task: Path, code: str, difference: str
) -> None:
    start("--devices", "1", settings=("training.updates=5",)).end()
    inject(code)
    said = start("--devices", "2").end(1)
    assert said.count("error: ") == said.count("hint: ") == 1
    assert re.search(rf"error: the ranks do not start from the same state: {difference}\n", said)
    assert "update 6/" not in said


ROUNDS = """
import hashlib
from nmt.training import start
from nmt.training.run import Run
def tensors(learner): return [*learner.model.parameters(), *learner.optimizer.state().values()]
def untrained(recipe, tokenizer, group):
    model = originals[0](recipe, tokenizer, group)
    if group.rank == 1:
        for each in model.parameters(): each.data.mul_(1 + 2**-20)
    return model
def update(self, *arguments):
    agreed = originals[1](self, *arguments)
    if self.group.rank == 1:
        for each in tensors(self): each.data.mul_(1 + 2**-20)
    return agreed
def save(self, *arguments, **options):
    originals[2](self, *arguments, **options)
    weights = b"".join(each.detach().numpy().tobytes() for each in tensors(self.learner))
    open(f"{self.state.step}-of-{self.group.rank}", "w").write(hashlib.sha256(weights).hexdigest())
originals = start._untrained, Trainer.update, Run.save
start._untrained, Trainer.update, Run.save = untrained, update, save
"""


@launched
def test_ranks_that_round_differently_begin_alike_and_are_alike_again_at_each_checkpoint(
    start, inject, task: Path
) -> None:
    """As unlike processors do; a run that is resumed then equals one that was not stopped, to the bit."""
    inject(ROUNDS)
    settings = "training.checkpoint_updates=5", "model.dropout=0.1", "training.updates=10"
    said = start("--devices", "2", "--out", "whole", settings=settings).end()
    assert said.count("ranks round differently, as on unlike processors") == 1
    for step in (5, 10):
        assert Path(task, f"{step}-of-0").read_text() == Path(task, f"{step}-of-1").read_text()
    shutil.copytree(task / "whole", task / "parts")
    shutil.rmtree(task / "parts/step-00000010")
    assert "resuming at update 5" in start("--devices", "2", "--out", "parts", settings=settings).end()
    assert_equal_to_the_bit(task / "whole", task / "parts")


def test_ranks_halve_their_micro_batches_together(start, inject, task: Path, alone: dict[str, Path]) -> None:
    inject(
        """
def forward(self, batch):
    global calls
    calls += self.group.rank == 1
    if self.group.rank == 1 and calls == 6: raise torch.OutOfMemoryError("full")
    return original(self, batch)
calls, original, Trainer._forward = 0, Trainer._forward, forward
""",
    )
    said = start("--devices", "2", settings=(EXACT,)).end()
    assert len(re.findall(r"update \d+: out of memory; from here on micro-batches have half the size, 65", said)) == 1
    assert said.count("out of memory") == 1
    assert position(task / "ckpts")["device_tokens"] == 65
    assert_near(task / "ckpts", alone["fp64"], 1e-9)


def test_a_gradient_that_is_not_finite_on_one_rank_skips_the_update_on_all(start, inject, task: Path) -> None:
    inject(
        """
def forward(self, batch):
    global calls
    calls += self.group.rank == 1
    loss, nll = original(self, batch)
    return (loss * float("nan"), nll) if self.group.rank == 1 and calls == 6 else (loss, nll)
calls, original, Trainer._forward = 0, Trainer._forward, forward
""",
    )
    said = start("--devices", "2").end()
    assert len(re.findall(r"update \d+: skipped, its gradient is not finite", said)) == 1
    assert position(task / "ckpts")["skipped"] == 1
    assert all(tensor.isfinite().all() for tensor in parameters(task / "ckpts").values())
