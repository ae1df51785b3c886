"""Lines of metrics.jsonl: which are read, and which stay when a run goes on."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from nmt.system.errors import UserError
from nmt.training.log import dev_scores, forget_after


@pytest.mark.parametrize("failing", ["nmt.system.files._sync", "pathlib.Path.replace"])
def test_lines_that_cannot_be_removed_stay_and_nothing_is_left_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n')

    def fail(*given: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(failing, fail)
        with pytest.raises(UserError, match=r"metrics\.jsonl: cannot be written: Input/output"):
            forget_after(path, 1)
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'
    assert list(tmp_path.iterdir()) == [path]


def test_scores_are_of_the_present_dev_set_finite_and_from_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert dev_scores(path, "bleu") == []
    before = '{"step": 1, "valid_bleu": 9.5}\n'
    now = (
        '{"step": 2, "new_dev_set": true, "valid_bleu": 3}',
        '{"step": 3, "valid_bleu": null}',
        "[]",
        '{"loss": 1.5}',
    )
    path.write_text(
        before + "\n".join(now) + '\n{"step": 4, "valid_bleu": 4.5, "valid_bleu de-en": 7}\n{"step": 5, "val'
    )
    assert dev_scores(path, "bleu") == [3.0, 4.5]
