"""Test sets that sacreBLEU knows by name, each as two text files, a sentence a line."""

from __future__ import annotations

import difflib
from pathlib import Path

from nmt.errors import UserError


def find_test_set(name: str, source: str, target: str) -> tuple[Path, Path]:
    """Files of a test set's sources and of its (first) reference, such as those of wmt14/full from en to de.

    They stand in sacreBLEU's folder, ~/.sacrebleu unless the variable SACREBLEU says otherwise, and sacreBLEU downloads
    them where they do not. Raises UserError where it knows no such set or direction, or cannot have it.
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
    if sources.exists() and references.exists():  # asked first: sacreBLEU wants files beside them that we do not need
        return sources, references
    try:
        return Path(get_source_file(name, pair)), Path(get_reference_files(name, pair)[0])
    except (Exception, SystemExit) as error:  # sacreBLEU lets all kinds pass, and exits where a download is damaged
        reason = "its download failed" if isinstance(error, SystemExit) else error
        raise UserError(
            f"{name}: sacreBLEU cannot provide this test set: {reason}",
            f"without a network put its sentences, one a line, into {sources} and {references}, or give files of your "
            "own: --set 'data.test=[{source: test.en, target: test.de}]', and likewise data.valid",
        ) from error
