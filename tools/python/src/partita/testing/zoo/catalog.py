"""All architectures of the table."""

from __future__ import annotations

from . import others, signals, text, vision
from .case import Case

__all__ = ["catalog"]


def catalog() -> dict[str, Case]:
    """By name, in the order of the table."""
    return {case.name: case for module in (text, vision, others, signals) for case in module.cases()}
