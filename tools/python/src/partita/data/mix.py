"""Several token files in fixed proportions: what train.yaml's `data.sources` should say."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import PartitaError
from .indexed import TokenFile

__all__ = ["Mixture", "mix"]

MANY_EPOCHS = 4  # beyond which repeated tokens teach little (Muennighoff et al., Scaling Data-Constrained Language Models, 2023)


@dataclass(frozen=True)
class Mixture:
    """Token files, their tokens and weights (which add up to 1), and how often `total` tokens take each."""

    paths: list[str]
    tokens: list[int]
    weights: list[float]
    total: int

    @property
    def epochs(self) -> list[float]:
        return [w * self.total / t for w, t in zip(self.weights, self.tokens)]

    @property
    def recipe(self) -> str:
        """The section `data` of train.yaml."""
        lines = [f"  - {{path: {json.dumps(p, ensure_ascii=False)}, weight: {w:.6g}}}" for p, w in zip(self.paths, self.weights)]
        return "\n".join(["data:", "  sources:", *lines]) + "\n"

    @property
    def table(self) -> str:
        width = max(len(p) for p in self.paths)
        rows = [f"# {p:{width}}  {t:>16,} tokens  {w:7.2%}  {e:8.2f} times" for p, t, w, e in zip(self.paths, self.tokens, self.weights, self.epochs)]
        return "\n".join(rows) + "\n"

    @property
    def warnings(self) -> list[str]:
        return [f"{p} is taken {e:.1f} times; more than {MANY_EPOCHS} teach little" for p, e in zip(self.paths, self.epochs) if e > MANY_EPOCHS]


def mix(paths: Sequence[str | Path], *, weights: Sequence[float] | None = None, temperature: float = 1.0, total: int | None = None) -> Mixture:
    """Weighs token files: by `weights`, else in proportion to their tokens to the power 1/`temperature` (1: by size; large: alike).

    `total`: tokens of the whole training; default: all files once. PartitaError where a weight is not positive or a file is empty.
    """
    files = [TokenFile(p) for p in paths]
    tokens = [len(f.tokens) for f in files]
    if not paths or 0 in tokens:
        raise PartitaError("no token file was named" if not paths else f"{paths[tokens.index(0)]}: there is no token in it")
    if not temperature > 0:
        raise PartitaError(f"temperature: expected a number above 0, found {temperature}")
    if weights is None:
        weights = [(t / max(tokens)) ** (1 / temperature) for t in tokens]
    if len(weights) != len(paths) or not all(0 < w < float("inf") for w in weights):
        raise PartitaError(f"weights: expected {len(paths)} numbers above 0, one for each file, found {', '.join(map(str, weights))}")
    return Mixture([str(f.bin) for f in files], tokens, [w / sum(weights) for w in weights], total or sum(tokens))
