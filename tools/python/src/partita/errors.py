"""What goes wrong, as exceptions."""

from __future__ import annotations

__all__ = ["PartitaError"]


class PartitaError(Exception):
    """What the compiler or a run refused or failed at, in its own words.

    `code` is the exit code: 1 a fault of Partita's own, 2 bad input or usage, 3 does not fit (memory, disk), 4 a
    verification failed, 128 and above worth another try.
    """

    def __init__(self, message: str, code: int = 2):
        super().__init__(message)
        self.code = code
