"""torch's optimizers and schedulers as keys of a recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from glob import escape
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler

from ..errors import PartitaError
from .sampled_schedules import sampled, steps_taken
from .transformers_schedules import of_lambda

__all__ = ["recipe_keys"]

Rate = Callable[[dict[str, Any]], float]  # of a group


def recipe_keys(
    optimizer: Optimizer | Sequence[Optimizer],
    scheduler: lr_scheduler.LRScheduler | None,
    clip: float | None,
    autocast: Any,
    module: nn.Module | None = None,
    steps: int | None = None,
    scheduled: bool = False,
) -> dict[str, Any]:
    """The keys optimizer, schedule, clip_grad_norm, precision and loss_scale. `module`: names the parameters of groups. `steps`: of the training, where known.
    `scheduled`: a schedule is said beside these keys, which begins with the rates that the optimizer was made with."""
    names = {id(p): name for name, p in module.named_parameters()} if module is not None else {}
    rate = _base_rate if scheduler is not None or scheduled else _rate_now
    said = _optimizer(optimizer, names, rate) if isinstance(optimizer, Optimizer) else _muon_beside(list(optimizer), names, rate)
    keys: dict[str, Any] = {"optimizer": said}
    if scheduler is not None:
        keys["schedule"] = _schedule(scheduler, said, steps)
    if clip is not None:
        keys["clip_grad_norm"] = clip
    if autocast is not None:
        precisions = {torch.bfloat16: "bf16", torch.float16: "fp16"}
        if autocast not in precisions:
            raise PartitaError(f"autocast: expected torch.bfloat16 or torch.float16, found {autocast!r}")
        keys["precision"] = precisions[autocast]
        if autocast is torch.float16:
            keys["loss_scale"] = {"window": 2000, "hysteresis": 1}  # of torch.amp.GradScaler, which also begins at 65536
    return keys


def _is_muon(optimizer: Optimizer) -> bool:
    return type(optimizer) is getattr(torch.optim, "Muon", None)  # torch has it from 2.9 on


def _is_8bit(optimizer: Optimizer) -> bool:
    """bitsandbytes' AdamW8bit, or its AdamW with 8 bits: torch does not bring it, so it is known by name."""
    kind = type(optimizer)
    return kind.__module__ == "bitsandbytes.optim.adamw" and kind.__name__ in ("AdamW", "AdamW8bit") and getattr(optimizer, "args").optim_bits == 8


def _optimizer(optimizer: Optimizer, names: Mapping[int, str], rate: Rate) -> dict[str, Any]:
    kind = type(optimizer)
    makers: dict[Any, Any] = {torch.optim.SGD: _sgd, torch.optim.Adam: _adam, torch.optim.AdamW: _adamw, torch.optim.Adagrad: _adagrad,
                              torch.optim.RMSprop: _rmsprop, torch.optim.Adafactor: _adafactor}
    if _is_muon(optimizer):
        makers[kind] = _muon
    if _is_8bit(optimizer):
        makers[kind] = _adamw_8bit
    if kind not in makers:
        there = ", ".join(f"torch.optim.{known.__name__}" for known in makers)
        raise PartitaError(f"optimizer: {kind.__module__}.{kind.__qualname__} has no counterpart; there are {there}, "
                           "torch.optim.Muon and bitsandbytes' AdamW8bit (and lamb and lion, by Recipe)")  # fmt: skip
    groups = _rated(optimizer, rate)
    said = [makers[kind](g) for g in groups]
    for group in groups:
        for flag, instead in (("maximize", "train on the loss's negative"), ("amsgrad", "leave it out: Adam's own rule has none")):
            if group.get(flag):
                raise PartitaError(f"optimizer: {flag}=True has no counterpart; {instead}")
    kinds = sorted({keys["kind"] for keys in said})
    if len(kinds) > 1:
        raise PartitaError(f"optimizer: groups of different kinds ({', '.join(kinds)}) have no counterpart; decoupled_weight_decay is the same for all groups here")
    own, decays = said[0], sorted({keys["weight_decay"] for keys in said})
    if any({**keys, "weight_decay": 0} != {**own, "weight_decay": 0} for keys in said) or len(decays) > 2 or decays[0] not in (0, decays[-1]):
        return {**own, "groups": _groups(groups, said, names)}
    if len(decays) == 1:
        return own
    return {**own, "weight_decay": decays[1], "no_decay": [name for k, keys in enumerate(said) if keys["weight_decay"] == 0 for name in _names(groups, k, names)]}


def _muon_beside(optimizers: list[Optimizer], names: Mapping[int, str], rate: Rate) -> dict[str, Any]:
    """Muon for matrices and AdamW for the rest, each with groups of its own."""
    if len(optimizers) != 2 or not _is_muon(optimizers[0]) or type(optimizers[1]) is not torch.optim.AdamW:
        kinds = ", ".join(type(o).__qualname__ for o in optimizers)
        raise PartitaError(f"optimizer: of several, [Muon, AdamW] has a counterpart, found [{kinds}]")
    matrices, rest = _optimizer(optimizers[0], names, rate), _rated(optimizers[1], rate)
    for group in rest:
        if group.get("maximize") or group.get("amsgrad"):
            raise PartitaError("optimizer: maximize=True and amsgrad=True of AdamW have no counterpart")
    said = [{key: value for key, value in _adam(group).items() if key != "kind"} for group in rest]
    own = {**said[0], "match": [name for k in range(len(rest)) for name in _names(rest, k, names)]}
    groups = [{"match": g["match"], "adamw": {key: value for key, value in g.items() if key != "match"}} for g in _groups(rest, said, names)]
    return {**matrices, "adamw": own, "groups": matrices.get("groups", []) + groups}


def _groups(groups: list[dict[str, Any]], said: list[dict[str, Any]], names: Mapping[int, str]) -> list[dict[str, Any]]:
    """What the groups after the first have of their own. Those that differ in nothing need no entry."""
    listed: list[dict[str, Any]] = []
    for k, keys in enumerate(said):
        other = {key: value for key, value in keys.items() if said[0].get(key) != value}
        if other:
            listed.append({"match": _names(groups, k, names), **other})
    return listed


def _names(groups: list[dict[str, Any]], k: int, names: Mapping[int, str]) -> list[str]:
    """Of the parameters of a group, as globs."""
    parameters = groups[k]["params"]
    if "param_names" in groups[k]:
        return [escape(names.get(id(p), said)) for p, said in zip(parameters, groups[k]["param_names"])]
    if not names:
        raise PartitaError(f"optimizer: group {k} needs names; say module=, the module that is trained, or make the groups of (name, parameter) pairs")
    if any(id(p) not in names for p in parameters):
        raise PartitaError(f"optimizer: group {k} has parameters that are none of the module's")
    return [escape(names[id(p)]) for p in parameters]


def _rated(optimizer: Optimizer, rate: Rate) -> list[dict[str, Any]]:
    """The groups, whose "lr" is the one that the recipe says. Adagrad's sums begin with what the optimizer was made with, whatever a group says: torch reads no other."""
    begins = {key: value for key, value in optimizer.defaults.items() if key == "initial_accumulator_value"}
    return [{**group, **begins, "lr": rate(group)} for group in optimizer.param_groups]


def _rate_now(group: dict[str, Any]) -> float:
    """Without a schedule: a scheduler of before may have left what it began with in the group."""
    return float(group["lr"])


def _base_rate(group: dict[str, Any]) -> float:
    """The rate that a schedule starts from: of OneCycleLR, which leaves `max_lr` in the group, the highest."""
    return float(group.get("max_lr", group.get("initial_lr", group["lr"])))


def _sgd(g: dict[str, Any]) -> dict[str, Any]:
    keys = {"kind": "sgd", "lr": g["lr"], "weight_decay": g["weight_decay"], "momentum": g["momentum"]}
    return {**keys, "dampening": g["dampening"], "nesterov": g["nesterov"]} if g["momentum"] else keys


def _adam(g: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "adamw" if g.get("decoupled_weight_decay") else "adam", "lr": g["lr"], "weight_decay": g["weight_decay"],
            "betas": [float(b) for b in g["betas"]], "eps": g["eps"]}


def _adamw(g: dict[str, Any]) -> dict[str, Any]:
    """Before PyTorch 2.7 its groups do not say that the decay is decoupled."""
    return {**_adam(g), "kind": "adamw"}


def _adamw_8bit(g: dict[str, Any]) -> dict[str, Any]:
    return {**_adam(g), "kind": "adamw_8bit"}


def _adagrad(g: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "adagrad", "lr": g["lr"], "weight_decay": g["weight_decay"], "eps": g["eps"], "lr_decay": g["lr_decay"],
            "initial_accumulator": g["initial_accumulator_value"]}


def _rmsprop(g: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "rmsprop", "lr": g["lr"], "weight_decay": g["weight_decay"], "alpha": g["alpha"], "eps": g["eps"], "momentum": g["momentum"],
            "centered": g["centered"]}


def _adafactor(g: dict[str, Any]) -> dict[str, Any]:
    eps1, eps2 = g["eps"]
    return {"kind": "adafactor", "lr": g["lr"], "weight_decay": g["weight_decay"], "beta2_decay": g["beta2_decay"], "eps2": eps2,
            "eps": torch.finfo(torch.float32).eps if eps1 is None else eps1, "clip_threshold": g["d"]}


def _muon(g: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "muon", "lr": g["lr"], "weight_decay": g["weight_decay"], "momentum": g["momentum"], "nesterov": g["nesterov"],
            "ns_coefficients": [float(c) for c in g["ns_coefficients"]], "eps": g["eps"], "ns_steps": g["ns_steps"],
            "adjust_lr_fn": g["adjust_lr_fn"] or "original"}


def _schedule(scheduler: lr_scheduler.LRScheduler, optimizer: dict[str, Any], steps: int | None) -> dict[str, Any]:
    try:
        said = _counterpart(scheduler, optimizer)
    except PartitaError as error:
        if steps is None:
            raise PartitaError(f"{error}; or say steps=N, the steps of the training, and its rates are tried") from error
        return sampled(scheduler, steps, _base_rate)
    if steps is not None and said["kind"] == "cosine" and steps > said["total"] + 1:  # torch's cosines rise again behind their end
        return sampled(scheduler, steps, _base_rate)
    return said


def _counterpart(scheduler: lr_scheduler.LRScheduler, optimizer: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(scheduler, lr_scheduler.SequentialLR):
        keys = _decay(scheduler, optimizer)
        _refuse_other_rates(scheduler, keys)
        return keys
    parts, milestones = scheduler._schedulers, scheduler._milestones
    if len(parts) != 2 or not isinstance(parts[0], lr_scheduler.LinearLR) or isinstance(parts[1], lr_scheduler.OneCycleLR):
        raise PartitaError("scheduler: of SequentialLR, [LinearLR, one that decays] has a counterpart: a warm-up, then a decay")
    first, warmup = parts[0], milestones[0]
    to_last = first.total_iters == warmup - 1 and abs(first.start_factor * warmup - 1) < 1e-9  # all of the rate at the warm-up's last step
    if first.end_factor != 1 or not (to_last or first.total_iters == warmup):
        raise PartitaError(f"scheduler: a warm-up has to reach the rate where the decay begins; write it LinearLR(optimizer, start_factor, 1, {warmup}) "
                           f"with milestones=[{warmup}]")  # fmt: skip
    keys = _decay(parts[1], optimizer)
    _refuse_other_rates(scheduler, {"warmup_start": first.start_factor})
    if "warmup" in keys:
        raise PartitaError(f"scheduler: {type(parts[1]).__qualname__} has a warm-up of its own behind a LinearLR, and a schedule here has one")
    if "total" in keys:
        keys["total"] += warmup
    if "milestones" in keys:
        keys["milestones"] = [warmup + t for t in keys["milestones"]]
    return {**keys, "warmup": warmup} if to_last else {**keys, "warmup": warmup, "warmup_start": first.start_factor}


def _refuse_other_rates(scheduler: Any, keys: dict[str, Any]) -> None:
    """PartitaError where the optimizer's rates are not those that the scheduler left: somebody, or another scheduler, changed them, and
    whether the scheduler goes on from there depends on its kind."""
    groups, name = scheduler.optimizer.param_groups, type(scheduler).__qualname__
    left = getattr(scheduler, "_get_closed_form_lr", scheduler.get_last_lr)()
    if steps_taken(scheduler) == 0 and keys.get("kind") != "one_cycle":
        left = [_base_rate(g) * keys.get("warmup_start", 1.0) for g in groups]
    begins = [g.get("initial_lr", g["lr"]) for g in groups]
    for what, expected, found in (("begins with", getattr(scheduler, "base_lrs", begins), begins), ("left", left, [g["lr"] for g in groups])):
        for group, wanted, rate in zip(groups, expected, found):
            if abs(float(rate) - float(wanted)) > 1e-6 * _base_rate(group):
                raise PartitaError(f"scheduler: {name} {what} a rate of {float(wanted):.6g}, and the optimizer has {float(rate):.6g}; set lr before the scheduler is made")


def _decay(scheduler: Any, optimizer: dict[str, Any]) -> dict[str, Any]:
    kind, lr = type(scheduler), optimizer["lr"]
    if kind is lr_scheduler.CosineAnnealingLR:
        if scheduler.eta_min != 0 and any("lr" in part for part in (optimizer.get("adamw", {}), *optimizer.get("groups", []))):
            raise PartitaError("scheduler: CosineAnnealingLR ends at eta_min for all groups, a schedule here scales each group's own lr; say eta_min=0")
        return {"kind": "cosine", "total": scheduler.T_max, "min_lr": scheduler.eta_min}
    if kind is lr_scheduler.LinearLR and scheduler.end_factor == 1 and scheduler.start_factor < 1:
        return {"kind": "constant", "warmup": scheduler.total_iters, "warmup_start": scheduler.start_factor}
    if kind is lr_scheduler.LinearLR and scheduler.start_factor == 1:
        return {"kind": "linear", "total": scheduler.total_iters, "min_lr": lr * scheduler.end_factor}
    if kind is lr_scheduler.PolynomialLR:
        return {"kind": "polynomial", "total": scheduler.total_iters, "power": scheduler.power}
    if kind is lr_scheduler.OneCycleLR:
        return _one_cycle(scheduler)
    if kind is lr_scheduler.StepLR:
        return {"kind": "step", "step_size": scheduler.step_size, "gamma": scheduler.gamma}
    if kind is lr_scheduler.MultiStepLR and 0 not in scheduler.milestones:
        return {"kind": "step", "milestones": sorted(scheduler.milestones.elements()), "gamma": scheduler.gamma}
    if kind is lr_scheduler.ExponentialLR:
        return {"kind": "step", "step_size": 1, "gamma": scheduler.gamma}
    if kind is lr_scheduler.ConstantLR and scheduler.factor == 1:
        return {"kind": "constant"}
    if kind is lr_scheduler.LambdaLR:
        schedule = of_lambda(scheduler, lr)
        if schedule is not None:
            return schedule
    raise PartitaError(
        f"scheduler: {kind.__qualname__} has no counterpart as it stands; there are CosineAnnealingLR, LinearLR, PolynomialLR, OneCycleLR, StepLR, "
        "MultiStepLR, ExponentialLR, a LinearLR warm-up before them (SequentialLR), and what transformers' get_…_schedule make; or say schedule={…} in the keys of train.yaml")


def _one_cycle(scheduler: lr_scheduler.OneCycleLR) -> dict[str, Any]:
    if scheduler.cycle_momentum:
        raise PartitaError("scheduler: OneCycleLR cycles the learning rate alone here; say cycle_momentum=False")
    phases, group = scheduler._schedule_phases, scheduler.optimizer.param_groups[0]
    return {"kind": "one_cycle", "total": scheduler.total_steps, "pct_start": (phases[0]["end_step"] + 1) / scheduler.total_steps,
            "anneal_strategy": scheduler._anneal_func_type, "div_factor": group["max_lr"] / group["initial_lr"],
            "final_div_factor": group["initial_lr"] / group["min_lr"], "three_phase": len(phases) == 3}
