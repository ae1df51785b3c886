"""Installs packages of Argos Translate into $XDG_DATA_HOME, and translates lines by one of them.

    python argos_packages.py FROM TO NAME.argosmodel … < lines

Runs where argostranslate is installed, and prints a JSON object. Lines are not split, as the splitter is a download.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from argostranslate import package, sbd, translate


def main() -> None:
    source, target, *packages = sys.argv[1:]
    sbd.MiniSBDSentencizer.split_sentences = lambda self, text: [text]
    for path in packages:
        package.install_from_path(Path(path))
    translation = translate.get_translation_from_codes(source, target)
    installed = [
        {"folder": each.package_path.name, "version": each.package_version, "readme": each.get_readme()}
        for each in package.get_installed_packages()
    ]
    languages = {each.code: each.name for each in translate.get_installed_languages()}
    lines = sys.stdin.buffer.read().decode().splitlines()
    texts = [translation.translate(line) for line in lines]
    print(json.dumps({"installed": installed, "languages": languages, "texts": texts}))


if __name__ == "__main__":
    main()
