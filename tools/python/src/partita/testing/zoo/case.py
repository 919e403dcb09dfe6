"""An architecture of the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

__all__ = ["Case", "without_dropout"]

BATCH = 4  # samples of a step


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
