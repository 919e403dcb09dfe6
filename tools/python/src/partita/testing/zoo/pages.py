"""The two pages: architectures beside torch, and in layouts beside one rank."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from .hold import Held
from .judge import Outcome

__all__ = ["BesideOneRank", "BesideTorch"]

_EQUAL, _DIFFERS = "equal", "**DIFFERS**"


class BesideTorch:
    """Of `Outcome`s."""

    head = """# Architectures

Made by the command below, which goes on with this page. How a model is judged, and why some are refused: [the Python package](python.md#which-architectures). The same models on many ranks: [layouts](architecture_layouts.md).

<!-- not run: needs PyTorch -->
```sh
python3 -m partita.testing.zoo --table docs/architectures.md --jobs 2
```

`CPU seconds`: of all that was run for it, captures and torch's own runs included. `beside fp64`: of what Partita trained, the distance of the weights from torch's in fp64, as a share of their norm; `torch's fp32`: of what torch trained in fp32.
"""
    columns: Sequence[str] = ("architecture", "parameters", "CPU seconds", "learning rate", "beside fp64", "torch's fp32", "")

    def row(self, outcome: Outcome) -> str:
        o = outcome
        numbers = f"{o.rate} | {o.error:.1e} | {o.own:.1e}" if not o.refused else " | | "
        found = o.refused.replace("|", "\\|") or (_EQUAL if o.passed else _DIFFERS)
        return f"| {o.name} | {o.parameters or ''} | {o.seconds:.0f} | {numbers} | {found} |"

    def summary(self, rows: Sequence[str], names: int) -> str:
        ends = [row.rsplit(" | ", 1)[1] for row in rows]
        equal, differ = ends.count(f"{_EQUAL} |"), ends.count(f"{_DIFFERS} |")
        return _of_all(f"{len(ends)} of {names} architectures: {equal} equal, {differ} different, {len(ends) - equal - differ} refused", names - len(ends))

    def good(self, rows: Sequence[str]) -> bool:
        return all(row.endswith(f"| {_EQUAL} |") for row in rows)

    def foot(self) -> str:
        return ""

    def go_on(self, foot: Sequence[str]) -> None:
        pass


_HELD, _IDLE, _FAULT, _REFUSED = "holds", "idle", "**fault**", "refused"


class BesideOneRank:
    """Of `Held`s. Each reason has a number, under which it stands below the table; reasons that differ in names and numbers are one."""

    def __init__(self, layouts: Sequence[str], random: int, command: str):
        """`layouts` and `random`: of the columns. `command`: that makes the page."""
        self.columns: Sequence[str] = ("architecture", "parameters", *layouts, *(f"random {k + 1}" for k in range(random)))
        self.head = _BESIDE_ONE_RANK.format(command=command)
        self._reasons: dict[str, str] = {}  # by what is left of them without names and numbers

    def row(self, outcome: Held) -> str:
        if outcome.refused:
            found = [f"{_REFUSED} {self._number(outcome.refused)}"] * (len(self.columns) - 2)
        else:
            found = [(_IDLE if c.idle else _HELD) if c.held else f"{_FAULT if c.fault else _REFUSED} {self._number(c.fault or c.refused)}" for c in outcome.cells]
        return f"| {outcome.name} | {outcome.parameters or ''} | {' | '.join(found)} |"

    def summary(self, rows: Sequence[str], names: int) -> str:
        found = Counter(cell.strip().split(" ")[0] for row in rows for cell in row.split("|")[3:-1])
        done = f"{len(rows)} of {names} architectures in {len(self.columns) - 2} layouts: {found[_HELD]} hold, {found[_IDLE]} hold with an axis that finds nothing to divide, {found[_FAULT]} faults, {found[_REFUSED]} refused"
        return _of_all(done, names - len(rows))

    def good(self, rows: Sequence[str]) -> bool:
        return not any(_FAULT in row for row in rows)

    def foot(self) -> str:
        return "".join(["\n## Reasons\n\n", *(f"{k + 1}. {reason}\n" for k, reason in enumerate(self._reasons.values()))]) if self._reasons else ""

    def go_on(self, foot: Sequence[str]) -> None:
        for text in foot:
            if re.match(r"\d+\. ", text):
                self._number(text.partition(". ")[2])

    def _number(self, reason: str) -> int:
        kind = re.sub(r"(\w+ )?'[^']*'|[\w.]*\d[\w./]*", "…", reason)[:120]
        self._reasons.setdefault(kind, reason)
        return list(self._reasons).index(kind) + 1


_BESIDE_ONE_RANK = """# Architectures in layouts

Made by the command below, which goes on with this page. How a layout is judged: [the Python package](python.md#which-architectures).

<!-- not run: needs PyTorch -->
```sh
{command}
```

`holds`: proved, and the weights are one rank's. `idle`: that too, but an axis found nothing that its ranks could divide, of which the compiler warns. `refused`, `fault`: for the reason of that number.
"""


def _of_all(text: str, left: int) -> str:
    return text + (f"; {left} have not been run" if left else "")
