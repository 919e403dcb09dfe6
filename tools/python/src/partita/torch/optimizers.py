"""torch's optimizers and schedulers as keys of a recipe."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer, lr_scheduler

from ..errors import PartitaError

__all__ = ["recipe_keys"]


def recipe_keys(optimizer: Optimizer, scheduler: lr_scheduler.LRScheduler | None, clip: float | None, autocast: Any) -> dict[str, Any]:
    """The keys optimizer, schedule, clip_grad_norm and precision."""
    said = _optimizer(optimizer)
    keys: dict[str, Any] = {"optimizer": said}
    if scheduler is not None:
        keys["schedule"] = _schedule(scheduler, said["lr"])
    if clip is not None:
        keys["clip_grad_norm"] = clip
    if autocast is not None:
        precisions = {torch.bfloat16: "bf16", torch.float16: "fp16"}
        if autocast not in precisions:
            raise PartitaError(f"autocast: expected torch.bfloat16 or torch.float16, found {autocast!r}")
        keys["precision"] = precisions[autocast]
    return keys


def _optimizer(optimizer: Optimizer) -> dict[str, Any]:
    kind = type(optimizer)
    makers = {torch.optim.SGD: _sgd, torch.optim.Adam: _adam, torch.optim.AdamW: _adam, torch.optim.Adagrad: _adagrad}
    if kind not in makers:
        raise PartitaError(f"optimizer: {kind.__module__}.{kind.__qualname__} has no counterpart; there are SGD, Adam, AdamW, Adagrad (and lamb, by Recipe)")
    groups = optimizer.param_groups
    said = [makers[kind](g) for g in groups]
    for k, (group, keys) in enumerate(zip(groups, said)):
        for flag in ("maximize", "amsgrad"):
            if group.get(flag):
                raise PartitaError(f"optimizer: {flag}=True has no counterpart")
        other = [key for key in keys if key != "weight_decay" and keys[key] != said[0][key]]
        if other:
            raise PartitaError(f"optimizer: group {k} has its own {other[0]}; groups may differ in weight_decay being 0 alone")
    decays = sorted({keys["weight_decay"] for keys in said})
    if len(decays) == 1:
        return said[0]
    if len(decays) > 2 or decays[0] != 0:
        raise PartitaError(f"optimizer: groups have weight_decay {decays}; one value and 0 have a counterpart")
    return {**said[0], "weight_decay": decays[1], "no_decay": _names([g for g, keys in zip(groups, said) if keys["weight_decay"] == 0])}


def _names(groups: list[dict[str, Any]]) -> list[str]:
    if any("param_names" not in g for g in groups):
        raise PartitaError("optimizer: groups without weight decay need names; make them of (name, parameter) pairs, as named_parameters() has them")
    return [name for g in groups for name in g["param_names"]]


def _rate(group: dict[str, Any]) -> float:
    return float(group.get("initial_lr", group["lr"]))


def _sgd(g: dict[str, Any]) -> dict[str, Any]:
    keys = {"kind": "sgd", "lr": _rate(g), "weight_decay": g["weight_decay"], "momentum": g["momentum"]}
    if g["momentum"]:
        keys.update(dampening=g["dampening"], nesterov=g["nesterov"])
    return keys


def _adam(g: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "adamw" if g.get("decoupled_weight_decay") else "adam", "lr": _rate(g), "weight_decay": g["weight_decay"],
            "betas": [float(b) for b in g["betas"]], "eps": g["eps"]}


def _adagrad(g: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "adagrad", "lr": _rate(g), "weight_decay": g["weight_decay"], "eps": g["eps"], "lr_decay": g["lr_decay"],
            "initial_accumulator": g["initial_accumulator_value"]}


def _schedule(scheduler: lr_scheduler.LRScheduler, lr: float) -> dict[str, Any]:
    if not isinstance(scheduler, lr_scheduler.SequentialLR):
        return _decay(scheduler, lr)
    parts, milestones = scheduler._schedulers, scheduler._milestones
    if len(parts) != 2 or not isinstance(parts[0], lr_scheduler.LinearLR):
        raise PartitaError("scheduler: of SequentialLR, [LinearLR, one that decays] has a counterpart: a warm-up, then a decay")
    first, warmup = parts[0], milestones[0]
    if first.total_iters != warmup - 1 or first.end_factor != 1 or abs(first.start_factor * warmup - 1) > 1e-9:
        raise PartitaError(
            f"scheduler: a warm-up over {warmup} steps is lr * (t + 1) / {warmup} here; write it LinearLR(optimizer, 1 / {warmup}, 1, {warmup - 1}) "
            f"with milestones=[{warmup}]")
    keys = _decay(parts[1], lr)
    return {**keys, "warmup": warmup, **({"total": keys["total"] + warmup} if "total" in keys else {})}


def _decay(scheduler: lr_scheduler.LRScheduler, lr: float) -> dict[str, Any]:
    kind = type(scheduler)
    if kind is lr_scheduler.CosineAnnealingLR:
        return {"kind": "cosine", "total": scheduler.T_max, "min_lr": scheduler.eta_min}  # pyright: ignore[reportAttributeAccessIssue]
    if kind is lr_scheduler.LinearLR and scheduler.start_factor == 1:  # pyright: ignore[reportAttributeAccessIssue]
        return {"kind": "linear", "total": scheduler.total_iters, "min_lr": lr * scheduler.end_factor}  # pyright: ignore[reportAttributeAccessIssue]
    if kind is lr_scheduler.PolynomialLR and scheduler.power == 1:  # pyright: ignore[reportAttributeAccessIssue]
        return {"kind": "linear", "total": scheduler.total_iters, "min_lr": 0}  # pyright: ignore[reportAttributeAccessIssue]
    if kind is lr_scheduler.ConstantLR and scheduler.factor == 1:  # pyright: ignore[reportAttributeAccessIssue]
        return {"kind": "constant"}
    raise PartitaError(
        f"scheduler: {kind.__qualname__} has no counterpart as it stands; there are CosineAnnealingLR, LinearLR, PolynomialLR(power=1), and a "
        "LinearLR warm-up before them (SequentialLR); or say schedule={…} in the keys of train.yaml")
