"""How fast the processors are."""

from nmt.system.speed import processor_flops


def test_processors_have_a_speed_that_is_measured_once() -> None:
    assert 1e7 < processor_flops() < 1e16
    assert processor_flops() == processor_flops()
