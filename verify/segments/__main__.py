"""Segments of seven formats, translated by models that compute, and an independent count of what goes wrong.

    python -m verify.segments --count 4000 --seed 1                  # all formats, all translators: minutes of one core
    python -m verify.segments --only html po --translators copy      # some of them
    python -m verify.segments --show "code lost" --examples 20       # more examples of one kind
    python -m verify.segments --prove                                # plant damage, and see that each kind is found

`generator.py` draws segments from a seed and knows what each piece of them is: tags up to four deep, copied elements,
placeholders, entities, white space, accelerators, ends of sentences, scripts without spaces. `models.py` has the
translators; they stand in for the search and the attention, and `nmt translate` does the rest, by its command line:

copy      every token as it is: the result is the source, to the byte
trace     word by word; each word is signed by the call that wrote it, which shows what was translated together
garble    word by word, with plain spaces; every placeholder becomes a word
reverse   words in reverse order, with plain spaces
fuse      some words become two, and some two become one

`counter.py`, which shares no code with nmt, names what is wrong. Files keep all bytes outside translations.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

os.environ |= {"OMP_NUM_THREADS": "1"}

from .counter import Fault, faults
from .damage import prove
from .files import Kind, groups, outside
from .generator import FORMS, draw_segment
from .pieces import Segment

TRANSLATORS = ("copy", "trace", "garble", "reverse", "fuse")


class Finding(NamedTuple):
    """A fault of a result."""

    fault: Fault
    source: str
    result: str | None


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=4000, help="segments of all formats together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=FORMS, default=FORMS, metavar="FORMAT")
    parser.add_argument("--translators", nargs="+", choices=TRANSLATORS, default=TRANSLATORS, metavar="NAME")
    parser.add_argument("--examples", type=int, default=3, help="of each kind of fault")
    parser.add_argument("--show", metavar="KIND", help="the examples of one kind alone")
    parser.add_argument("--prove", action="store_true", help="count damage that is planted")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where files are written, and stay")
    return parser.parse_args()


def translated_file(
    folder: Path, name: str, kind: Kind, segments: list[Segment], model: Path, fake: object
) -> tuple[str, str, str]:
    """Write a file, have nmt translate it, and return the source, the output and what was said."""
    from .models import Fake, run

    assert isinstance(fake, Fake)
    for part in ("in", name):
        (folder / part).mkdir(parents=True, exist_ok=True)
    source, output = folder / "in" / kind.name, folder / name / kind.name
    source.write_text(kind.write(segments), newline="")
    output.unlink(missing_ok=True)
    code, said = run(
        fake, "translate", "--model", model, "--devices", 1, *kind.options, "--input", source, "--output", output
    )
    written = output.read_bytes().decode() if output.exists() else ""
    return source.read_bytes().decode(), written, said if code else ""


def measure(given: argparse.Namespace, folder: Path) -> dict[str, list[Finding]]:
    """Translate all segments by all translators; return the findings of each "translator format kind"."""
    from .models import Fake, write_model

    tokenizer = write_model(folder / "model")
    found: dict[str, list[Finding]] = defaultdict(list)
    for position, form in enumerate(given.only):
        count = (given.count + len(given.only) - 1 - position) // len(given.only)
        segments = [draw_segment(form, number, given.seed) for number in range(count)]
        for name in given.translators:
            for kind, own in groups(form, segments):
                fake = Fake(name, tokenizer)
                before, after, error = translated_file(folder, name, kind, own, folder / "model", fake)
                if error:
                    found[f"{name} {form}\tcommand failed"].append(Finding(Fault(error), kind.name, None))
                    continue
                if outside(form, before) != outside(form, after):
                    found[f"{name} {form}\tbytes outside"].append(Finding(Fault("bytes outside"), kind.name, None))
                results = kind.read(after)
                for index, segment in enumerate(own):
                    result = results.get(index if form == "html" else segment.number)
                    for fault in faults(segment, result, name):
                        found[f"{name} {form}\t{fault.kind}"].append(Finding(fault, segment.raw, result))
    return found


def report(given: argparse.Namespace, found: dict[str, list[Finding]]) -> None:
    kinds = sorted({key.split("\t")[1] for key in found})
    cells = {
        kind: [len({finding.source for finding in found[key]}) for key in found if key.endswith(f"\t{kind}")]
        for kind in kinds
    }
    header = "".join(f"{form:>10}" for form in given.only)
    for name in given.translators:
        bad = {
            form: {f.source for key in found if key.startswith(f"{name} {form}\t") for f in found[key]}
            for form in given.only
        }
        print(f"\n{name:28}{header}")
        for kind in sorted(kinds, key=lambda kind: -sum(cells[kind])):
            counts = [len({f.source for f in found.get(f"{name} {form}\t{kind}", [])}) for form in given.only]
            if any(counts):
                print(f"  {kind:26}" + "".join(f"{count or '-':>10}" for count in counts))
        print(f"  {'segments with a fault':26}" + "".join(f"{len(bad[form]):>10}" for form in given.only))
    for key in sorted(found):
        where, kind = key.split("\t")
        if given.show and kind != given.show:
            continue
        print(f"\n== {where}: {kind} ({len(found[key])})")
        for finding in found[key][: given.examples]:
            print(f"   source {finding.source!r}")
            print(f"   result {finding.result!r}")
            print(f"          {finding.fault.detail or finding.fault.kind}")


def main() -> None:
    given = arguments()
    if given.prove:
        sys.exit(prove(given.count, given.seed))
    began = time.process_time()
    with tempfile.TemporaryDirectory() as scratch:
        found = measure(given, given.keep or Path(scratch))
    report(given, found)
    total = len({(key.split("\t")[0].split()[1], f.source) for key in found for f in found[key]})
    print(
        f"\n{given.count:,} segments, {len(given.translators)} translators: {total:,} segments with a fault; ", end=""
    )
    print(f"{time.process_time() - began:.0f} s of CPU time")
    sys.exit(total > 0)


main()
