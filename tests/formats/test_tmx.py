"""TMX: variants that are there and empty, or not there at all."""

from __future__ import annotations

import pytest

from nmt.formats.tmx import TmxFile

HEAD = '<?xml version="1.0"?><tmx version="1.4"><header/><body>'
SOURCE = '<tuv xml:lang="en"><seg>The <ph x="1">{b}</ph>\n   end</seg></tuv>'


def opened(unit: str) -> TmxFile:
    return TmxFile(f"{HEAD}<tu tuid='7'>{unit}</tu></body></tmx>".encode(), ["en", "de"])


@pytest.mark.parametrize("seg", ["<seg/>", "<seg> </seg>", '<seg><ph x="1">{b}</ph></seg>', "<seg><hi/></seg>"])
def test_a_variant_without_words_is_open(seg: str) -> None:
    file = opened(f'<tuv lang="de"><prop>p</prop>{seg}</tuv>{SOURCE}')
    (unit,) = file.units
    assert unit.is_open
    assert unit.sources == ['The <ph x="1">{b}</ph> end']
    unit.write(['Das <ph x="1">{b}</ph> Ende'], True)
    target = '<tuv lang="de"><prop>p</prop><seg>Das <ph x="1">{b}</ph> Ende</seg></tuv>'
    assert file.content().decode() == f"{HEAD}<tu tuid='7'>{target}{SOURCE}</tu></body></tmx>"


def test_units_without_a_source_are_named() -> None:
    file = opened('<tuv xml:lang="fr"><seg>La fin</seg></tuv><tuv xml:lang="de"><seg/></tuv>')
    assert (file.units, file.unfilled, file.lacking) == ([], ["La fin"], 1)


@pytest.mark.parametrize(("kind", "context"), [("x-context", "menu"), ("context", "menu"), ("x-Context", "")])
def test_a_property_of_a_unit_has_its_context(kind: str, context: str) -> None:
    (unit,) = opened(f'<prop type="{kind}">menu</prop>{SOURCE}').units
    assert unit.context == context
