"""Rows in a page that people read, and that a later run goes on with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from ...errors import PartitaError
from .versions import versions

__all__ = ["Page", "Table"]

_MADE_WITH = "Made with "


class Page(Protocol):
    """What a page shows: `head` is Markdown above the table, with the command that makes it."""

    head: str
    columns: Sequence[str]  # the first: names of architectures

    def row(self, outcome: Any) -> str: ...
    def summary(self, rows: Sequence[str], names: int) -> str: ...
    def good(self, rows: Sequence[str]) -> bool: ...
    def foot(self) -> str: ...
    def go_on(self, foot: Sequence[str]) -> None:
        """Takes up the lines below a table that `foot` wrote."""
        ...


class Table:
    """Rows by the names of their architectures. `file`: None keeps them in memory alone."""

    def __init__(self, file: Path | None, names: list[str], page: Page):
        """`names`: of all architectures, in the order of the page. PartitaError where another command, or other versions, made the file."""
        self._file, self._names, self._page = file, names, page
        self.rows: dict[str, str] = {}
        if file is None or not file.exists():
            return
        text = file.read_text(encoding="utf-8")
        lines = text.splitlines()
        made = next((line[len(_MADE_WITH) :].rstrip(".") for line in lines if line.startswith(_MADE_WITH)), None)
        if made != versions():
            raise PartitaError(f"{file}: its rows were made with {made or 'nothing that it names'}; installed are {versions()}: give another FILE, or install those")
        if page.head not in text:
            raise PartitaError(f"{file}: another command made it: give another FILE, or the flags that it names")
        found = {line.split("|")[1].strip(): line for line in lines if line.startswith("| ")}
        self.rows = {name: found[name] for name in names if name in found}
        page.go_on(lines[max(k for k, line in enumerate(lines) if line.startswith("|")) + 1 :])

    def add(self, name: str, outcome: Any) -> str:
        """Returns its row."""
        row = self.rows[name] = self._page.row(outcome)
        if self._file is not None:
            columns = f"| {' | '.join(self._page.columns)} |\n{'|---' * len(self._page.columns)}|"
            rows = "\n".join(self.rows[name] for name in self._names if name in self.rows)
            text = f"{self._page.head}\n{_MADE_WITH}{versions()}.\n{self.summary()}.\n\n{columns}\n{rows}\n{self._page.foot()}"
            beside = self._file.with_name(self._file.name + ".new")
            beside.write_text(text, encoding="utf-8")
            os.replace(beside, self._file)
        return row

    def summary(self) -> str:
        return self._page.summary(list(self.rows.values()), len(self._names))

    def good(self) -> bool:
        """Whether all is as it should be."""
        return self._page.good(list(self.rows.values()))
