"""Export of translators to Argos Translate and LibreTranslate, as a package that both install.

A package, `NAME.argosmodel`, is a zip of one folder: `metadata.json` with languages and version, `README.md`,
`model/` for CTranslate2, and `sentencepiece.model`. The latter is the source's: it also decodes outputs, since pieces
that it does not know are text. Every package has the same files, and its folder is named after the languages and the
recipe, so that installing a newer one overwrites all of an older one. Argos Translate would use either of two.
"""

from __future__ import annotations

import json
import re
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZIP_DEFLATED, ZipFile

from nmt.checkpoint.reading import Bundle
from nmt.exchange import ctranslate2
from nmt.exchange.huggingface import model_card
from nmt.system.errors import UserError
from nmt.system.files import whole_file
from nmt.text.tokenizer import SPM

SUFFIX = ".argosmodel"
LONGEST = 1024  # subwords at which Argos Translate cuts off an input
CODES = {"pt-br": "pb", "zh-cn": "zh", "zh-hans": "zh", "zh-hant": "zt", "zh-tw": "zt"}
"""Codes of LibreTranslate that are not the usual ones"""
NAMES = dict(
    re.findall(
        r"(\w+) ([^,]+)",
        "af Afrikaans, ar Arabic, az Azerbaijani, be Belarusian, bg Bulgarian, bn Bengali, ca Catalan, cs Czech, "
        "cy Welsh, da Danish, de German, el Greek, en English, eo Esperanto, es Spanish, et Estonian, eu Basque, "
        "fa Persian, fi Finnish, fr French, ga Irish, gl Galician, he Hebrew, hi Hindi, hr Croatian, hu Hungarian, "
        "id Indonesian, is Icelandic, it Italian, ja Japanese, ko Korean, ky Kyrgyz, lt Lithuanian, lv Latvian, "
        "ms Malay, nb Norwegian, nl Dutch, pb Portuguese (Brazil), pl Polish, pt Portuguese, ro Romanian, ru Russian, "
        "sk Slovak, sl Slovenian, sq Albanian, sr Serbian, sv Swedish, sw Swahili, ta Tamil, te Telugu, th Thai, "
        "tl Tagalog, tr Turkish, uk Ukrainian, ur Urdu, vi Vietnamese, zh Chinese, zt Chinese (traditional)",
    )
)
"""Display names of languages by code"""


def export(bundle: Bundle, path: Path, quantization: str, licence: str | None) -> None:
    """Export a translator as an `.argosmodel`, whose version is today's date.

    `quantization` is float32 or int8; `licence`, if known, is named in its README.md. An existing file is replaced.
    Raise UserError if Argos Translate cannot express the model, the bundle is damaged, or the file cannot be written.
    """
    check_expressible(bundle)
    recipe, tokenizer = bundle.recipe, bundle.tokenizer()
    source, target = (CODES.get(code.lower(), code.lower()) for code in recipe.data.languages)
    name = re.sub(r"[^\w.-]", "_", f"nmt-{source}_{target}-{recipe.name}")
    metadata = {
        "package_version": f"{date.today():%Y.%m.%d}",  # above the versions of official packages, which start at 1.0
        "argos_version": "1.9.0",
        "from_code": source,
        "from_name": NAMES.get(source, source),
        "to_code": target,
        "to_name": NAMES.get(target, target),
    }
    positions = max(ctranslate2.positions_for(recipe.model, recipe.decoding), LONGEST)
    card = model_card(bundle, name, sum(each.numel() for each in bundle.weights().values()), licence, "argos_card.md")
    with TemporaryDirectory() as folder, whole_file(path) as stream, ZipFile(stream, "w", ZIP_DEFLATED) as package:
        ctranslate2.specification(bundle, positions, quantization).save(folder)
        for file in sorted(Path(folder).iterdir()):
            shared = file.name == "shared_vocabulary.json"
            for written in ("source_vocabulary.json", "target_vocabulary.json") if shared else (file.name,):
                package.write(file, f"{name}/model/{written}")
        package.writestr(
            f"{name}/sentencepiece.model",
            tokenizer.files()[SPM[0]] if tokenizer.lossy else tokenizer.source.serialized,
        )
        package.writestr(f"{name}/metadata.json", json.dumps(metadata, indent=2))
        package.writestr(f"{name}/README.md", card)


def check_expressible(bundle: Bundle) -> None:
    """Raise UserError if CTranslate2 is not installed, or it or Argos Translate does not support the model."""
    ctranslate2.check_expressible(bundle)
    model = bundle.recipe.model
    if model.positions == "learned" and model.max_positions < LONGEST:
        raise UserError(
            f"{bundle.path}: Argos Translate has inputs of up to {LONGEST:,} subwords, but model.max_positions is "
            f"{model.max_positions:,}",
            "--format ctranslate2 takes it; or train with model.positions: sinusoidal",
        )
