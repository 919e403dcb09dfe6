"""Trains small models of many architectures by torch and by Partita, and writes a table.

    python -m partita.testing.zoo [--only TEXT] [--table FILE] [--jobs N] [--list]

Each runs four steps in training mode, dropout 0, with its own loss: export, compile, train, load_into. It passes where
the weights are within four times torch's own fp32 error of those that torch makes in fp64; that error is the largest of
four runs whose first weights differ by roundings. Leaves with code 1 where one does not. Needs transformers, timm,
torchvision and diffusers; what is missing is refused as such.

FILE has each row as soon as it is done. The same command goes on where it was stopped: what has a row is not run again;
delete a row to have it run. It does not go on under other versions of these packages.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from ...errors import PartitaError
from .catalog import catalog
from .table import Table, row
from .workers import outcomes


def _breadth_first(names: list[str]) -> list[str]:
    """Any number of the first of them lie evenly over all (by the golden ratio's multiples), and kin lie side by side there."""
    return [names[k] for k in sorted(range(len(names)), key=lambda k: k * 0.6180339887 % 1)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m partita.testing.zoo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="those whose name has this text in it")
    parser.add_argument("--table", metavar="FILE", type=Path, help="a page in Markdown, which is gone on with; without it rows are only printed")
    parser.add_argument("--jobs", metavar="N", type=int, default=1, help="so many at a time, each with one thread (default: 1)")
    parser.add_argument("--list", action="store_true", help="names alone")
    flags = parser.parse_args()
    if flags.jobs < 1:
        parser.error(f"--jobs: expected 1 or more, found {flags.jobs}")
    names = list(catalog())
    asked = [name for name in _breadth_first(names) if flags.only in name]
    if flags.list:
        print("\n".join(name for name in names if flags.only in name))
        return 0
    try:
        table = Table(flags.table, names)
    except PartitaError as error:
        parser.error(str(error))
    begin = time.monotonic()
    for outcome in outcomes([name for name in asked if name not in table.rows], flags.jobs):
        table.add(outcome)
        print(row(outcome), flush=True)
    print(f"\n{table.summary()}; this run took {(time.monotonic() - begin) / 60:.0f} minutes")
    return 0 if table.all_equal() else 1


if __name__ == "__main__":
    sys.exit(main())
