"""Which process of a group this is, and which device it has."""

from __future__ import annotations

import pytest

from nmt.device import Place, device_of, find_place


def words(text: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in text.split())


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ("", None),
        ("RANK=3", None),
        ("WORLD_SIZE=3", None),
        ("RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4", Place(5, 8, 1, 4)),
        ("RANK=5 WORLD_SIZE=8", Place(5, 8, 0, 1)),
        ("RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1", Place(0, 1, 0, 1)),
        ("SLURM_JOB_ID=7 SLURM_NTASKS=8 SLURM_PROCID=0", None),  # in a batch script, before srun
        ("SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0 SLURM_LOCALID=0", None),
        ("SLURM_STEP_NUM_TASKS=8 SLURM_PROCID=5 SLURM_LOCALID=1 SLURM_NTASKS_PER_NODE=4", Place(5, 8, 1, 4)),
        ("SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 SLURM_CPUS_PER_TASK=4", Place(1, 2, 0, 1, has_own_cores=True)),
        ("SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 SLURM_CPU_BIND_TYPE=mask_cpu:", Place(1, 2, 0, 1, has_own_cores=True)),
        ("SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 SLURM_CPU_BIND_TYPE=none", Place(1, 2, 0, 1)),
        ("SLURM_STEP_NUM_TASKS=8 SLURM_PROCID=5 SLURM_LOCALID=1", Place(5, 8, 1, 1)),
        # torchrun as the one task of a Slurm step, or started by it on each host
        ("RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=2", Place(1, 2, 1, 1)),
    ],
)
def test_a_process_knows_its_place_from_its_environment(environment: str, place: Place | None) -> None:
    assert find_place(words(environment)) == place


def test_each_rank_of_a_host_has_a_device_of_its_own(gpus: int) -> None:
    places = [Place(rank, 8, rank % 4, 4) for rank in range(8)]
    assert {device_of("cpu", place) for place in places} == {"cpu"}
    found = [device_of("auto", place) for place in places]
    # of a launcher that shows each rank one GPU alone, that one is cuda:0
    assert found == {0: ["auto"] * 8, 1: ["cuda:0"] * 8, 4: [f"cuda:{n}" for n in (0, 1, 2, 3)] * 2}[gpus]


def test_ranks_of_torchrun_share_the_cores_that_tasks_of_slurm_have_for_themselves() -> None:
    assert Place(5, 8, 1, 4).threads(8) == 2
    assert Place(5, 8, 1, 4).threads(3) == 1
    assert Place(5, 8, 1, 4, has_own_cores=True).threads(8) == 8


def test_a_process_alone_has_the_device_it_is_told(gpus: int) -> None:
    for name in ("auto", "cuda", "cuda:3", "cpu"):
        assert device_of(name, Place()) == name
