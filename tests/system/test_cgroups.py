"""Cores and memory that control groups grant, of version 1 and 2."""

import pytest

from nmt.system.cgroups import cpu_quota, memory_limit


def control_groups(folder, own, limits):
    """Files of a hierarchy of control groups, by name, and of the group of this process."""
    (folder / "cgroup").write_text("".join(f"{line}\n" for line in own))
    for name, content in limits.items():
        (folder / "fs" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "fs" / name).write_text(f"{content}\n")
    return folder / "fs", folder / "cgroup"


@pytest.mark.parametrize(
    ("own", "limits", "quota"),
    [
        (["0::/"], {"cpu.max": "200000 100000"}, 2.0),  # a container of version 2
        (["0::/"], {"cpu.max": "max 100000"}, None),
        (["0::/"], {}, None),
        (["0::/job/step"], {"job/cpu.max": "150000 100000", "job/step/cpu.max": "max 100000"}, 1.5),
        (["0::/job/step"], {"job/cpu.max": "400000 100000", "job/step/cpu.max": "50000 100000"}, 0.5),
        (["4:memory:/", "3:cpu,cpuacct:/docker/1", "0::/"],  # a container of version 1, which sees itself as the root
         {"cpu,cpuacct/cpu.cfs_quota_us": "300000", "cpu,cpuacct/cpu.cfs_period_us": "100000"}, 3.0),
        (["1:cpu:/"], {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        (["1:cpuset:/"], {"cpuset/cpu.cfs_quota_us": "100000", "cpuset/cpu.cfs_period_us": "100000"}, None),
        (["0::/"], {"cpu.max": "0 0"}, None),
        (["0::/"], {"cpu.max": "much"}, None),
    ],
)  # fmt: skip
def test_the_quota_of_a_container_is_read(tmp_path, own, limits, quota):
    assert cpu_quota(*control_groups(tmp_path, own, limits)) == quota


def test_the_limits_of_all_cgroups_around_a_process_count(tmp_path):
    own = ["12:cpu,cpuacct:/elsewhere", "5:memory:/job", "0::/user/job"]
    limits = {"memory.max": "max", "user/memory.max": 5000, "user/job/memory.max": 7000, "elsewhere/memory.max": 1}
    groups = control_groups(tmp_path, own, limits | {"memory/job/memory.limit_in_bytes": 3000})
    assert memory_limit(*groups) == 3000
    (groups[0] / "memory/job/memory.limit_in_bytes").unlink()
    assert memory_limit(*groups) == 5000
    assert memory_limit(groups[0], tmp_path / "none") is None
