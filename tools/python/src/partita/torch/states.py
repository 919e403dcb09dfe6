"""Between checkpoints and torch: parameters, buffers, optimizer states."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from torch.optim import Optimizer

from ..errors import PartitaError

__all__ = ["load_optimizer_states", "load_parameters", "sample_variances", "save_optimizer_states"]


def load_parameters(
    module: nn.Module, trained: Mapping[str, np.ndarray], runs: int, unused: Collection[str], variances: Mapping[str, Mapping[str, float]]
) -> None:
    """Writes tensors by name into parameters and buffers; nothing is written where one has no place.

    `runs`: of the graph, each of which was a batch for batch norms, after the "batches" of `variances`. `unused`: trainable parameters that
    need not have been trained.
    """
    names = dict(module.named_parameters(remove_duplicate=False))
    places: dict[str, torch.Tensor] = {**names, **dict(module.named_buffers())}
    for name, value in trained.items():
        if name not in places:
            raise PartitaError(f"{name} was trained, and the module has no parameter or buffer of that name")
        _check_shape(name, places[name].shape, value)
    written = {id(places[name]) for name in trained}
    for name, parameter in names.items():
        if parameter.requires_grad and id(parameter) not in written and name not in unused:
            raise PartitaError(f"{name} of the module is trainable, and was not trained")
    with torch.no_grad():
        for name, value in trained.items():
            places[name].copy_(_tensor(value))
        for name, buffer in module.named_buffers():
            variance = name.replace("num_batches_tracked", "running_var")
            if variance != name and variance in trained:
                about = variances.get(variance, {})
                buffer.fill_(runs * about.get("times", 1) + about.get("batches", 0))


def _tensor(value: np.ndarray) -> torch.Tensor:
    """torch takes no arrays of numpy's bfloat16, which is another package's."""
    return torch.from_numpy(value.view(np.int16)).view(torch.bfloat16) if value.dtype.name == "bfloat16" else torch.from_numpy(value)


def sample_variances(
    tensors: dict[str, np.ndarray], first: Mapping[str, np.ndarray], variances: Mapping[str, Mapping[str, float]], samples: int, runs: int
) -> None:
    """Running variances of the population as those of the sample, n / (n - 1) times what each run has added.

    `variances`: of each, the "values" of a sample, and how many "times" a run updates it and then "keeps" which share; `samples` of a run, `runs` so far.
    """
    for name, about in variances.items():
        n = samples * about["values"]
        kept = about["keeps"] ** (runs * about["times"]) * first[name]
        if n > 1:
            tensors[name] = (kept + (tensors[name] - kept) * (n / (n - 1))).astype(tensors[name].dtype)


def load_optimizer_states(optimizer: Optimizer | Sequence[Optimizer], module: nn.Module, states: Mapping[str, np.ndarray]) -> None:
    """Writes moments and the step into an optimizer, or several, over the module's parameters."""
    places = _optimized(optimizer, module)
    found: dict[str, dict[str, np.ndarray]] = {}
    for name, value in states.items():
        if name != "step":
            parameter, _, state = name.rpartition(".")
            found.setdefault(parameter, {})[state] = value
    for parameter, values in found.items():
        if parameter not in places:
            raise PartitaError(f"{parameter} has optimizer states, and the optimizer has no such parameter")
        for state, value in values.items():
            _check_shape(f"{parameter}.{state}", _state_shape(places[parameter][1], state), value)
    with torch.no_grad():
        for parameter, values in found.items():
            owner, tensor = places[parameter]
            _begin(owner, tensor)
            state = owner.state[tensor]
            for key, value in values.items():
                dtype = torch.uint8 if value.dtype == np.uint8 else torch.float32 if key.startswith("absmax") else tensor.dtype
                state[key] = _tensor(value.copy()).to(tensor.device, dtype)
                if key.startswith("absmax"):
                    state[key] = state[key].flatten()
            if not isinstance(owner, (torch.optim.SGD, getattr(torch.optim, "Muon", torch.optim.SGD))):  # they count no steps
                state["step"] = int(states["step"]) if _is_of_bitsandbytes(owner) else torch.tensor(float(states["step"]))


def save_optimizer_states(optimizer: Optimizer | Sequence[Optimizer], module: nn.Module, path: Path, steps_taken: int | None) -> None:
    """Writes the states of an optimizer, or of several, under the names that `--init-optimizer` reads.

    `steps_taken`: by the scheduler, where there is one: they count where the optimizer counts none; at least one, since the first of all makes a
    momentum of its gradient.
    """
    tensors: dict[str, torch.Tensor] = {}
    steps: set[float] = set()
    for name, (owner, parameter) in _optimized(optimizer, module).items():
        for key, value in owner.state.get(parameter, {}).items():
            if key == "step":
                steps.add(float(value))
            elif isinstance(value, torch.Tensor) and not key.startswith("qmap"):
                tensors[f"{name}.{key}"] = value.detach().cpu().contiguous().clone().reshape(_state_shape(parameter, key))
    if not tensors and not steps_taken:
        raise PartitaError("the optimizer has no states: it has taken no step, or keeps none")
    if len(steps) > 1:
        raise PartitaError(f"parameters of the optimizer have taken different numbers of steps: {sorted(steps)}")
    tensors["step"] = torch.tensor(steps.pop() if steps else float(max(1, steps_taken or 0)))
    if steps_taken is not None and tensors["step"] != max(1, steps_taken):
        warnings.warn(f"the optimizer has taken {int(tensors['step'])} steps and the scheduler {steps_taken}: a program has one count of both, and begins "
                      f"with the schedule's rate of step {int(tensors['step'])}", stacklevel=3)  # fmt: skip
    save_file(tensors, path)


def _is_of_bitsandbytes(optimizer: Optimizer) -> bool:
    return type(optimizer).__module__.startswith("bitsandbytes.")


def _begin(optimizer: Any, parameter: torch.Tensor) -> None:
    """bitsandbytes makes tables of its own where a state begins."""
    if not _is_of_bitsandbytes(optimizer) or optimizer.state[parameter]:
        return
    for g, group in enumerate(optimizer.param_groups):
        for k, p in enumerate(group["params"]):
            if p is parameter:
                optimizer.init_state(group, p, g, k)


def _optimized(optimizer: Optimizer | Sequence[Optimizer], module: nn.Module) -> dict[str, tuple[Optimizer, torch.Tensor]]:
    optimizers = [optimizer] if isinstance(optimizer, Optimizer) else optimizer
    owners = {id(p): owner for owner in optimizers for group in owner.param_groups for p in group["params"]}
    return {name: (owners[id(p)], p) for name, p in module.named_parameters() if id(p) in owners}


def _state_shape(parameter: torch.Tensor, state: str) -> tuple[int, ...]:
    """Adafactor's means of a matrix have a row or a column, AdamW8bit's scales one for each block; other states are as the parameter."""
    shape = tuple(parameter.shape)
    if state.startswith("absmax"):
        return (*shape[:-1], shape[-1] // 256) if shape[-1] % 256 == 0 else (-(-parameter.numel() // 256),)
    return {"row_var": (*shape[:-1], 1), "col_var": (*shape[:-2], 1, *shape[-1:])}.get(state, shape)


def _check_shape(name: str, shape: tuple[int, ...], value: np.ndarray) -> None:
    if tuple(shape) != value.shape:
        raise PartitaError(f"{name}: the module has shape {tuple(shape)}, trained was {value.shape}")
