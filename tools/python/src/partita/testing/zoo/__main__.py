"""Trains small models of many architectures by Partita: on one rank beside torch, or in layouts of many beside one rank.

    python -m partita.testing.zoo [--only TEXT …] [--table FILE] [--jobs N] [--list]
    python -m partita.testing.zoo --layouts zero3,tensor [--random N] [--seed S] [--exports FOLDER] …

Beside torch each runs four steps in training mode, dropout 0, with its own loss: export, compile, train, load_into. It
passes where the weights are within four times torch's own fp32 error of those that torch makes in fp64; that error is
the largest of four runs whose first weights differ by roundings.

In a layout the same export is compiled for many ranks, `partita verify` proves it, and its weights after three steps
are within four times of one rank's own noise of one rank's. `--random N` draws N layouts and recipes for each
architecture, the same ones for the same seed. A refusal with a reason is counted apart from faults.

Leaves with code 1 where one differs or fails. Needs transformers, timm, torchvision and diffusers; what is missing is
refused as such.

FILE has each row as soon as it is done. The same command goes on where it was stopped: what has a row is not run again;
delete a row to have it run. It does not go on under other versions of these packages.
"""

from __future__ import annotations

import argparse
import functools
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ...errors import PartitaError
from .catalog import catalog
from .hold import Held, hold
from .judge import Outcome, judge
from .layouts import LAYOUTS
from .pages import BesideOneRank, BesideTorch
from .table import Table
from .workers import outcomes


def _breadth_first(names: list[str]) -> list[str]:
    """Any number of the first of them lie evenly over all (by the golden ratio's multiples), and kin lie side by side there."""
    return [names[k] for k in sorted(range(len(names)), key=lambda k: k * 0.6180339887 % 1)]


def _flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m partita.testing.zoo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="TEXT", action="append", help="those whose name has this text in it; several times: in that order")
    parser.add_argument("--layouts", metavar="A,B", default="", help=f"of {', '.join(LAYOUTS)}")
    parser.add_argument("--random", metavar="N", type=int, default=0, help="so many drawn layouts and recipes of each")
    parser.add_argument("--seed", metavar="S", type=int, default=1, help="of what is drawn (default: 1)")
    parser.add_argument("--exports", metavar="FOLDER", type=Path, help="keeps exports there for the next time")
    parser.add_argument("--table", metavar="FILE", type=Path, help="a page in Markdown, which is gone on with; without it rows are only printed")
    parser.add_argument("--jobs", metavar="N", type=int, default=1, help="so many at a time, each with one thread (default: 1)")
    parser.add_argument("--list", action="store_true", help="names alone")
    return parser


def main() -> int:
    parser = _flags()
    flags = parser.parse_args()
    layouts: list[str] = flags.layouts.split(",") if flags.layouts else []
    unknown = [name for name in layouts if name not in LAYOUTS]
    if unknown:
        parser.error(f"--layouts: {unknown[0]!r} is none of {', '.join(LAYOUTS)}")
    for name, least in (("jobs", 1), ("random", 0)):
        if getattr(flags, name) < least:
            parser.error(f"--{name}: expected {least} or more, found {getattr(flags, name)}")
    names = list(catalog())
    asked = list(dict.fromkeys(name for text in flags.only or [""] for name in _breadth_first(names) if text in name))
    if flags.list:
        print("\n".join(name for name in names if name in asked))
        return 0
    begin = time.monotonic()
    try:
        good, summary = _in_layouts(flags, layouts, names, asked) if layouts or flags.random else _beside_torch(flags, names, asked)
    except PartitaError as error:
        parser.error(str(error))
    print(f"\n{summary}; this run took {(time.monotonic() - begin) / 60:.0f} minutes")
    return 0 if good else 1


def _beside_torch(flags: Any, names: list[str], asked: list[str]) -> tuple[bool, str]:
    """Whether all in the table are equal, and the table in a line."""
    table = Table(flags.table, names, BesideTorch())
    for outcome in outcomes([name for name in asked if name not in table.rows], flags.jobs, judge, _lost):
        print(table.add(outcome.name, outcome), flush=True)
    return table.good(), table.summary()


def _in_layouts(flags: Any, layouts: list[str], names: list[str], asked: list[str]) -> tuple[bool, str]:
    """Whether the table has no fault, and the table in a line."""
    said = f"{f' --layouts {flags.layouts}' if layouts else ''}{f' --random {flags.random} --seed {flags.seed}' if flags.random else ''}"
    page = BesideOneRank(layouts, flags.random, f"python3 -m partita.testing.zoo{said} --table docs/architecture_layouts.md --jobs 2")
    table = Table(flags.table, names, page)
    with tempfile.TemporaryDirectory(prefix="partita-") as folder:
        judged = functools.partial(hold, names=layouts, random=flags.random, seed=flags.seed, exports=flags.exports or Path(folder))
        for outcome in outcomes([name for name in asked if name not in table.rows], flags.jobs, judged, _lost_in_layouts):
            table.add(outcome.name, outcome)
            for cell in outcome.cells:
                held = f"{'idle' if cell.idle else 'holds'}, {cell.error:.1e} beside {cell.own:.1e}"
                found = f"FAULT: {cell.fault}" if cell.fault else f"refused: {cell.refused}" if cell.refused else held
                print(f"{outcome.name}: {cell.layout} ({cell.about}): {found}", flush=True)
            if outcome.refused:
                print(f"{outcome.name}: refused: {outcome.refused}", flush=True)
    return table.good(), table.summary()


def _lost(name: str, reason: str) -> Outcome:
    return Outcome(name, refused=reason)


def _lost_in_layouts(name: str, reason: str) -> Held:
    return Held(name, refused=reason)


if __name__ == "__main__":
    sys.exit(main())
