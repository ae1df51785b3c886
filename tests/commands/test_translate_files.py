"""Which files are translated: those of Android in the folders of their languages."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from nmt.commands.ledger import Ledger
from nmt.commands.translate_files import FileTranslation, find_files
from nmt.recipe import Data, Dataset, Decoding
from nmt.system.errors import UserError

pytest.importorskip("translate", reason="needs the package translate-toolkit")

DATA = Data(name="x", source="en", target="pt_BR", train=(Dataset(file="unused.tsv"),))


def test_folders_of_android_say_of_what_language_their_files_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = list[str]()
    for folder in ("values", "values-night", "values-de", "values-pt-rBR"):
        Path(f"res/{folder}").mkdir(parents=True)
        Path(f"res/{folder}/strings.xml").write_text('<resources><string name="a">One</string></resources>')

    def translation(source: str, output: str) -> FileTranslation:
        files = find_files(Path(source), Path(output), False, said.append)
        with ExitStack() as held:
            ledger = Ledger(None, said.append, held)
            return FileTranslation(files, [], [], DATA, Decoding(), said.append, held, ledger)

    assert translation("res", "new").strings == 2
    assert said == [
        "left out, for they are in other languages (2): "
        "res/values-de/strings.xml (de), res/values-pt-rBR/strings.xml (pt-BR)"
    ]
    for folder in ("values-pt", "values-b+pt+BR", "values-v21", "new"):
        assert translation("res/values/strings.xml", f"res/{folder}/strings.xml").strings == 1
    for folder, code in (("values-de", "de"), ("values-pt-rPT-night", "pt-PT")):
        with pytest.raises(
            UserError, match=f"--output res/{folder}/strings.xml: is in a folder for {code}, not for pt_BR"
        ):
            translation("res/values/strings.xml", f"res/{folder}/strings.xml")
    with pytest.raises(UserError, match="says that its sources are in de, not in en"):
        translation("res/values-de/strings.xml", "strings.xml")
