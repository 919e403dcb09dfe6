"""The table as a page that people read, and that a later run goes on with."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ...errors import PartitaError
from .judge import Outcome

__all__ = ["Table", "row"]

_PACKAGES = ("torch", "transformers", "timm", "torchvision", "diffusers")
_MADE_WITH = "Made with "
_COLUMNS = "| architecture | parameters | CPU seconds | learning rate | beside fp64 | torch's fp32 | |\n|---|---|---|---|---|---|---|"
_EQUAL, _DIFFERS = "equal", "**DIFFERS**"


def row(o: Outcome) -> str:
    numbers = f"{o.rate} | {o.error:.1e} | {o.own:.1e}" if not o.refused else " | | "
    found = o.refused.replace("|", "\\|") or (_EQUAL if o.passed else _DIFFERS)
    return f"| {o.name} | {o.parameters or ''} | {o.seconds:.0f} | {numbers} | {found} |"


class Table:
    """Rows by the names of their architectures. `file`: None keeps them in memory alone."""

    def __init__(self, file: Path | None, names: list[str]):
        """`names`: of all architectures, in the order of the page. PartitaError where the file was made under other versions."""
        self._file, self._names = file, names
        self._versions = ", ".join(f"{p} {_version(p)}" for p in _PACKAGES)
        self.rows: dict[str, str] = {}
        if file is None or not file.exists():
            return
        lines = file.read_text(encoding="utf-8").splitlines()
        made = next((line[len(_MADE_WITH) :].rstrip(".") for line in lines if line.startswith(_MADE_WITH)), None)
        if made != self._versions:
            raise PartitaError(f"{file}: its rows were made with {made or 'nothing that it names'}; installed are {self._versions}: give another FILE, or install those")
        found = {line.split("|")[1].strip(): line for line in lines if line.startswith("| ")}
        self.rows = {name: found[name] for name in names if name in found}

    def add(self, outcome: Outcome) -> None:
        self.rows[outcome.name] = row(outcome)
        if self._file is None:
            return
        rows = "\n".join(self.rows[name] for name in self._names if name in self.rows)
        beside = self._file.with_name(self._file.name + ".new")
        beside.write_text(_PAGE.format(versions=self._versions, summary=self.summary(), columns=_COLUMNS, rows=rows), encoding="utf-8")
        os.replace(beside, self._file)

    def summary(self) -> str:
        ends = [line.rsplit(" | ", 1)[1] for line in self.rows.values()]
        equal, differ = ends.count(f"{_EQUAL} |"), ends.count(f"{_DIFFERS} |")
        rest = len(self._names) - len(ends)
        text = f"{len(ends)} of {len(self._names)} architectures: {equal} equal, {differ} different, {len(ends) - equal - differ} refused"
        return text + (f"; {rest} have not been run" if rest else "")

    def all_equal(self) -> bool:
        return all(line.endswith(f"| {_EQUAL} |") for line in self.rows.values())


_PAGE = """# Architectures

Made by the command below, which goes on with this page. How a model is judged, and why some are refused: [the Python package](python.md#which-architectures).

<!-- not run: needs PyTorch -->
```sh
python3 -m partita.testing.zoo --table docs/architectures.md --jobs 2
```

Made with {versions}.
{summary}.

`CPU seconds`: of all that was run for it, captures and torch's own runs included. `beside fp64`: of what Partita trained, the distance of the weights from torch's in fp64, as a share of their norm; `torch's fp32`: of what torch trained in fp32.

{columns}
{rows}
"""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(none)"
