"""The schedules of transformers, which its functions make as LambdaLR, as a recipe's."""

from __future__ import annotations

import functools
from typing import Any

from torch.optim import lr_scheduler

from ..errors import PartitaError

__all__ = ["of_lambda"]

# What its functions hand to LambdaLR.
_LAMBDAS = {
    "_get_constant_lambda": "constant",
    "_get_constant_schedule_with_warmup_lr_lambda": "constant_with_warmup",
    "_get_linear_schedule_with_warmup_lr_lambda": "linear",
    "_get_cosine_schedule_with_warmup_lr_lambda": "cosine_with_min_lr",
    "_get_cosine_with_hard_restarts_schedule_with_warmup_lr_lambda": "cosine_with_restarts",
    "_get_polynomial_decay_schedule_with_warmup_lr_lambda": "polynomial",
    "_get_inverse_sqrt_schedule_lr_lambda": "inverse_sqrt",
    "_get_wsd_scheduler_lambda": "warmup_stable_decay",
}


def _schedule(kind: str, lr: float, warmup: int, steps: int, arguments: dict[str, Any]) -> dict[str, Any]:
    """The key schedule. `arguments`: beside warm-up and steps."""
    more = dict(arguments)
    start = 0.0  # of a warm-up, as a part of lr
    take = more.pop
    keys: dict[str, Any]
    if kind in ("constant", "constant_with_warmup"):
        keys, warmup = {"kind": "constant"}, warmup if kind == "constant_with_warmup" else 0
    elif kind == "linear":
        keys = {"kind": "linear", "total": steps}
    elif (kind in ("cosine", "cosine_with_min_lr") and take("num_cycles", 0.5) == 0.5) or (kind == "cosine_with_restarts" and take("num_cycles", 1) == 1):
        rate = take("min_lr_rate", None)
        keys = {"kind": "cosine", "total": steps, "min_lr": take("min_lr", 0.0) if rate is None else rate * lr}
    elif kind == "polynomial":
        keys = {"kind": "polynomial", "total": steps, "min_lr": take("lr_end", 1e-7), "power": take("power", 1.0)}
    elif kind == "inverse_sqrt":
        keys = {"kind": "inverse_sqrt", "timescale": take("timescale", None) or warmup or 10000}
    elif kind == "warmup_stable_decay" and take("decay_type", "cosine") == "linear" and take("warmup_type", "linear") == "linear":
        take("num_cycles", None)  # of a cosine
        start = take("min_lr_ratio", 0.0)
        keys = {"kind": "wsd", "total": steps, "decay": take("num_decay_steps", 0), "min_lr": start * lr}
    else:
        raise PartitaError(
            f"scheduler: {kind} with {arguments} has no counterpart; there are constant, constant_with_warmup, linear, "
            "cosine (num_cycles=0.5), cosine_with_min_lr, cosine_with_restarts (num_cycles=1), polynomial, inverse_sqrt and warmup_stable_decay (decay_type='linear'); "
            "or say schedule={…} in the keys of train.yaml", 2)  # fmt: skip
    if more:
        raise PartitaError(f"scheduler: {', '.join(more)} of {kind} has no counterpart", 2)
    return {**keys, "warmup": warmup, "warmup_start": start} if warmup else keys


def of_lambda(scheduler: lr_scheduler.LambdaLR, lr: float) -> dict[str, Any] | None:
    """The key schedule, where transformers made `scheduler`; None for any other function."""
    functions = [(f.func, dict(f.keywords)) if isinstance(f, functools.partial) else (f, {}) for f in scheduler.lr_lambdas]
    (function, arguments), *others = functions
    kind = _LAMBDAS.get(getattr(function, "__name__", ""))
    if kind is None or function.__module__ != "transformers.optimization" or any(other != functions[0] for other in others):
        return None
    warmup, steps = arguments.pop("num_warmup_steps", 0), arguments.pop("num_training_steps", 0)
    if kind == "polynomial":  # its end is as far below lr_init as that of the groups is below their own
        arguments["lr_end"] *= lr / arguments.pop("lr_init")
    if kind == "warmup_stable_decay":
        steps = warmup + arguments.pop("num_stable_steps") + arguments["num_decay_steps"]
    return _schedule(kind, lr, warmup, steps, arguments)
