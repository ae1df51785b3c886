"""Installs packages of Argos Translate into $XDG_DATA_HOME, updates all from its index, and translates lines.

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
    installed = {each.package_path.name: each for each in package.get_installed_packages()}
    for each in installed.values():
        each.update()
    translation = translate.get_translation_from_codes(source, target)
    answer = {
        "versions": {name: each.package_version for name, each in installed.items()},
        "readmes": {name: each.get_readme() for name, each in installed.items()},
        "languages": {each.code: each.name for each in translate.get_installed_languages()},
        "used": translation.underlying.pkg.package_path.name,
        "texts": [translation.translate(line) for line in sys.stdin.buffer.read().decode().splitlines()],
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
