"""An architecture of the table, and what all that judge one agree on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

__all__ = ["BATCH", "CALM", "LIMIT", "ROUNDING", "Case", "line", "without_dropout"]

BATCH = 4  # samples of a step
ROUNDING = 2.0**-24
CALM = 1e-4  # training is no chaos: a run that begins a rounding away ends at most this far, as a share of the weights' norm
LIMIT = 4.0  # times that distance: two runs are one


@dataclass(frozen=True)
class Case:
    """`make` returns a module, and a batch of so many samples as its mapping of inputs."""

    name: str
    make: Callable[[], nn.Module]
    batch: Callable[[int], dict[str, torch.Tensor]]
    loss: Any = "output"


def without_dropout(module: nn.Module) -> nn.Module:
    """The module in training mode, no part of it dropping anything out: what is random differs by design."""
    module.train()
    for m in module.modules():
        for name, value in vars(m).items():
            if isinstance(value, float) and ("drop" in name.lower() or (name == "p" and "Drop" in type(m).__name__)):
                setattr(m, name, 0.0)
    return module


def line(error: BaseException) -> str:
    """The first line of what it says."""
    return next((text.strip() for text in str(error).splitlines() if text.strip()), type(error).__name__)[:300]
