"""Folders that a program lies in."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path

__all__ = ["TemporaryFolder"]


class TemporaryFolder:
    """A new folder, gone with this object or at the end of the process that made it; one that was forked from it leaves it alone."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="partita-"))
        weakref.finalize(self, _remove, self.path, os.getpid())


def _remove(path: Path, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(path, ignore_errors=True)
