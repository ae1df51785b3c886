"""How fast the processors are: by the time of one of them."""

from itertools import count

import pytest

from nmt.system import speed


def test_the_speed_of_a_core_is_by_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = count()
    monkeypatch.setattr(speed, "SECONDS", 3.0)
    monkeypatch.setattr(speed.time, "process_time", lambda: float(next(ticks)))
    # 0 at the start, 1 and 2 before a hundred multiplications each, 3 when time is up
    assert speed.core_flops.__wrapped__() == 2 * 96**3 * 200 / 3
