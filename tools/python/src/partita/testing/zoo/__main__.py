"""Trains small models of many architectures by torch and by Partita, and writes a table.

    python -m partita.testing.zoo [--only TEXT] [--list]

Each runs four steps in training mode, dropout 0, with its own loss: export, compile, train, load_into. It passes where
the weights are within four times torch's own fp32 error of those that torch makes in fp64; that error is the largest of
four runs whose first weights differ by roundings. Leaves with code 1 where one does not. Needs transformers, timm,
torchvision and diffusers; what is missing is refused as such.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings

from . import others, signals, text, vision
from .judge import judge


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m partita.testing.zoo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="those whose name has this text in it")
    parser.add_argument("--list", action="store_true", help="names alone")
    flags = parser.parse_args()
    warnings.simplefilter("ignore")
    cases = [c for c in [*text.cases(), *vision.cases(), *others.cases(), *signals.cases()] if flags.only in c.name]
    if flags.list:
        print("\n".join(c.name for c in cases))
        return 0
    print("| architecture | parameters | seconds | learning rate | beside fp64 | torch's fp32 | |\n|---|---|---|---|---|---|---|")
    passed, first = 0, time.monotonic()
    for case in cases:
        begin = time.monotonic()
        o = judge(case)
        passed += o.passed
        numbers = f"{o.rate} | {o.error:.1e} | {o.own:.1e}" if not o.refused else " | | "
        print(f"| {o.name} | {o.parameters} | {time.monotonic() - begin:.1f} | {numbers} | {o.refused or ('equal' if o.passed else '**DIFFERS**')} |", flush=True)
    print(f"\n{passed} of {len(cases)} equal, in {(time.monotonic() - first) / 60:.0f} minutes")
    return 0 if passed == len(cases) else 1


if __name__ == "__main__":
    sys.exit(main())
