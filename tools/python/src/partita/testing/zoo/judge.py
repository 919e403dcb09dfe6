"""Four steps of an architecture by torch in fp32 and fp64, and by Partita."""

from __future__ import annotations

import copy
import math
import os
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ... import Recipe, compile
from ...errors import PartitaError
from ...torch.export import _Step, export
from .case import BATCH, CALM, LIMIT, ROUNDING, Case, line, without_dropout

__all__ = ["Outcome", "judge"]

STEPS = 4
RATES = (0.05, 0.01, 0.002)  # the first at which torch's own error in fp32 is calm
NEIGHBOURS = 3  # runs of torch's from weights that lie within a rounding of the first


@dataclass(frozen=True)
class Outcome:
    """`error`: of what Partita trained, and `own`: of what torch did in fp32, as shares of the weights' norm, beside fp64.

    `own` is the largest of several runs. Their first weights differ by roundings: where a value lies beside a kink (of a
    ReLU, of a maximum), one run may fall on either side, and its error says little of the next one's.
    """

    name: str
    parameters: int = 0
    error: float = math.nan
    own: float = math.nan
    rate: float = math.nan  # learning rate
    seconds: float = math.nan  # of CPUs, those of other processes included
    refused: str = ""  # by whom and why; empty: it ran

    @property
    def passed(self) -> bool:
        return not self.refused and self.error <= LIMIT * max(self.own, ROUNDING)


def judge(case: Case) -> Outcome:
    """Raises nothing: what cannot be made, captured or compiled is an outcome."""
    begin = sum(os.times()[:4])
    outcome = _judged(case)
    return replace(outcome, seconds=sum(os.times()[:4]) - begin)


def _judged(case: Case) -> Outcome:
    torch.manual_seed(0)
    try:
        module = without_dropout(case.make())
        batches = [case.batch(BATCH) for _ in range(STEPS)]
        rate, exact, own = _by_torch(module, batches, case.loss)
    except Exception as error:
        return Outcome(case.name, refused=f"torch: {line(error)}")
    count = sum(p.numel() for p in module.parameters())
    try:
        exported = export(module, batches[0], case.loss, check=False)
        program = compile(exported, Recipe(optimizer={"kind": "momentum", "lr": rate, "momentum": 0.9}))
        program.train({name: torch.cat([b[name] for b in batches]) for name in exported.inputs}, STEPS, progress=False, threads=1)
        program.load_into(module)
    except Exception as error:
        return Outcome(case.name, count, refused=line(error) if isinstance(error, PartitaError) else f"{type(error).__name__}: {line(error)}")
    return Outcome(case.name, count, _distance(module, exact), own, rate)


def _by_torch(module: nn.Module, batches: list[dict[str, torch.Tensor]], loss: Any) -> tuple[float, nn.Module, float]:
    """The learning rate, the module as it is trained in fp64, and torch's own error in fp32."""
    wide = [{k: v.double() if v.is_floating_point() else v for k, v in b.items()} for b in batches]
    k = 0
    while True:
        exact = _trained(copy.deepcopy(module).double(), wide, loss, RATES[k])
        own = max(_distance(_trained(_neighbour(module, n), batches, loss, RATES[k]), exact) for n in range(1 + NEIGHBOURS))
        k += 1
        if own <= CALM or k == len(RATES):
            return RATES[k - 1], exact, own


def _neighbour(module: nn.Module, number: int) -> nn.Module:
    """A copy, each weight of it moved by up to a rounding; 0: by nothing."""
    copied, draw = copy.deepcopy(module), torch.Generator().manual_seed(number)
    with torch.no_grad():
        for p in copied.parameters():
            if number > 0 and p.is_floating_point():
                p.mul_(1 + (torch.rand(p.shape, generator=draw) - 0.5) * 2 * ROUNDING)
    return copied


def _trained(module: nn.Module, batches: list[dict[str, torch.Tensor]], loss: Any, rate: float) -> nn.Module:
    step = _Step(module, list(batches[0]), loss, mapping=True)
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=rate, momentum=0.9)
    for batch in batches:
        optimizer.zero_grad()
        step(*batch.values()).backward()
        optimizer.step()
    return module


def _distance(a: nn.Module, b: nn.Module) -> float:
    difference, norm = 0.0, 0.0
    for x, y in zip(a.state_dict().values(), b.state_dict().values()):
        difference += float((x.double() - y.double()).square().sum())
        norm += float(y.double().square().sum())
    return math.sqrt(difference / norm)
