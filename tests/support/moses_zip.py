"""Archives as OPUS has them for Moses."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping


def moses_zip(stem: str, texts: Mapping[str, str]) -> bytes:
    """An archive of texts by language, with the other members that those of OPUS have."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("README", "A corpus.\n")
        archive.writestr("LICENSE", "CC0\n")
        for language, text in texts.items():
            archive.writestr(f"{stem}.{language}", text)
        archive.writestr(f"{stem}.xml", "<cesAlign/>\n")
    return written.getvalue()
