"""Test sets that sacreBLEU knows by name, as two text files each, with one sentence per line."""

from __future__ import annotations

import difflib
from pathlib import Path

from nmt.errors import UserError


def find_test_set(name: str, source: str, target: str) -> tuple[Path, Path]:
    """Finds the files of a test set's sources and of its (first) reference, such as wmt14/full from en to de.

    They are in sacreBLEU's folder, which is ~/.sacrebleu or the environment variable SACREBLEU; sacreBLEU downloads
    those that are missing. Raises UserError where it has no such set or direction, or cannot download it.
    """
    from sacrebleu.dataset import DATASETS
    from sacrebleu.utils import SACREBLEU_DIR, get_reference_files, get_source_file

    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=3, cutoff=0.4)
        raise UserError(
            f"{name}: sacreBLEU knows no such test set",
            f"did you mean {' or '.join(near)}?" if near else "name one that sacrebleu --list shows",
        )
    pairs, pair = DATASETS[name].langpairs, f"{source}-{target}"
    if pair not in pairs:
        raise UserError(
            f"{name}: sacreBLEU does not have this test set for {pair}", f"take one of {', '.join(sorted(pairs))}"
        )
    stem = Path(SACREBLEU_DIR) / name / f"{name.replace('/', '_')}.{pair}"
    sources, references = Path(f"{stem}.src"), Path(f"{stem}.ref")
    if sources.exists() and references.exists():  # checked first: sacreBLEU also wants files that we do not need
        return sources, references
    try:
        return Path(get_source_file(name, pair)), Path(get_reference_files(name, pair)[0])
    except (Exception, SystemExit) as error:  # sacreBLEU passes all kinds on, and exits where a download is damaged
        reason = "its download failed" if isinstance(error, SystemExit) else error
        raise UserError(
            f"{name}: sacreBLEU cannot provide this test set: {reason}",
            f"without a network put its sentences, one a line, into {sources} and {references}, or give files of your "
            "own: --set 'data.test=[{source: test.en, target: test.de}]', and likewise data.valid",
        ) from error
