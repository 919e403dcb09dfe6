"""Schedulers that have no counterpart: their rates of so many steps, tried one by one, as straight lines."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim import lr_scheduler

from ..errors import PartitaError

__all__ = ["sampled", "steps_taken"]

_ERROR = 1e-7  # of the lines, as a part of the highest rate: less than fp32 rounds
_MOST = 1 << 15  # lines of a recipe


def steps_taken(scheduler: Any) -> int:
    """By a scheduler so far; ChainedScheduler leaves that to those that it chains."""
    while not hasattr(scheduler, "last_epoch") and getattr(scheduler, "_schedulers", None):
        scheduler = scheduler._schedulers[0]
    return int(getattr(scheduler, "last_epoch", 0))


def sampled(scheduler: lr_scheduler.LRScheduler, steps: int, rate: Callable[[dict[str, Any]], float]) -> dict[str, Any]:
    """The key schedule, exact at each of the first `steps` steps. `rate`: of an optimizer's group, what the shares are of."""
    name = type(scheduler).__qualname__
    if not isinstance(scheduler, lr_scheduler.LRScheduler) or isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
        raise PartitaError(f"scheduler: {name} has no counterpart: its rates do not follow from the step alone")
    if steps < 1:
        raise PartitaError(f"steps: expected the steps of the training, found {steps}")
    if steps_taken(scheduler) > 0:
        raise PartitaError(f"scheduler: {name} has taken {steps_taken(scheduler)} steps, and its rates are tried from the first one on; make the recipe before")
    shares = _shares(scheduler, steps, rate)
    points = _lines(shares)
    if len(points) > _MOST:
        raise PartitaError(f"scheduler: the rates of {steps} steps of {name} take {len(points)} straight lines, and a recipe has at most {_MOST}; "
                           "say schedule={…} in the keys of train.yaml")  # fmt: skip
    return {"kind": "piecewise", "points": points}


def _shares(scheduler: Any, steps: int, rate: Callable[[dict[str, Any]], float]) -> list[float]:
    """Of each step, on a copy that sets the rates of a stand-in for the optimizer."""
    real, name = scheduler.optimizer, type(scheduler).__qualname__
    stand_in = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    stand_in.defaults = dict(real.defaults)
    parameter = stand_in.param_groups[0]["params"]
    stand_in.param_groups = [{**{k: copy.copy(v) for k, v in g.items() if k not in ("params", "param_names")}, "params": parameter} for g in real.param_groups]
    bases = [rate(g) for g in real.param_groups]
    if min(bases) <= 0:
        raise PartitaError(f"scheduler: {name} starts from a rate of {min(bases)}; expected more than 0")
    others = [_all_but_rate(g) for g in stand_in.param_groups]
    shares: list[float] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the stand-in takes no steps
        try:
            twin = copy.deepcopy(scheduler, {id(real): stand_in})
        except Exception as error:
            raise PartitaError(f"scheduler: {name} cannot be copied to try its rates ({error}); say schedule={{…}} in the keys of train.yaml") from error
        for step in range(steps):
            now = [float(g["lr"]) / base for g, base in zip(stand_in.param_groups, bases)]
            if any(abs(share - now[0]) > 1e-9 * max(1.0, now[0]) for share in now):
                raise PartitaError(f"scheduler: of {name} the groups have {now} of their rates at step {step}; a schedule here scales each group's own lr alike")
            if now[0] < 0 or not math.isfinite(now[0]):
                raise PartitaError(f"scheduler: {name} has a rate of {now[0] * bases[0]} at step {step}; expected a number >= 0")
            for group, before in zip(stand_in.param_groups, others):
                changed = [key for key, value in _all_but_rate(group).items() if before.get(key) != value]
                if changed:
                    raise PartitaError(f"scheduler: {name} changes {changed[0]} at step {step}; a schedule here changes the learning rate alone")
            shares.append(now[0])
            twin.step()
    return shares


def _all_but_rate(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in ("lr", "params") and not isinstance(value, torch.Tensor)}


def _lines(values: Sequence[float]) -> list[list[float]]:
    """[index, value] of some, between which straight lines miss none by more than _ERROR of the largest."""
    error = _ERROR * max(values)
    points, at = [[0, values[0]]], 0
    while at + 1 < len(values):
        least, most, last = -math.inf, math.inf, at + 1  # slopes that pass by all between
        for k in range(at + 1, len(values)):
            rise, run = values[k] - values[at], k - at
            if least <= rise / run <= most:
                last = k
            least, most = max(least, (rise - error) / run), min(most, (rise + error) / run)
            if least > most:
                break
        points.append([last, values[last]])
        at = last
    return points
