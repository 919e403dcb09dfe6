"""Layouts of many ranks, by name and drawn at random, and the recipes that are trained in them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .case import BATCH

__all__ = ["LAYOUTS", "Layout", "drawn"]


@dataclass(frozen=True)
class Layout:
    """`pins`: of train.yaml. `recipe`: its other keys, over those of the export; the learning rate is the first that is calm. `target`: as `compile` takes it."""

    name: str
    ranks: int
    pins: Mapping[str, Any]
    recipe: Mapping[str, Any] = field(default_factory=lambda: _PLAIN)
    target: str = "cpu:host"

    def __str__(self) -> str:
        said = [f"{key}={_text(value)}" for key, value in {**self.pins, **self.recipe}.items()]
        return f"{self.target if self.ranks == 1 else f'{self.ranks} ranks'}, {', '.join(said)}"


_PLAIN = {"optimizer": {"kind": "momentum", "lr": 0.05, "momentum": 0.9}}


def _named(name: str, ranks: int, **pins: Any) -> tuple[str, Layout]:
    return name, Layout(name, ranks, pins)


def _on_gpu(name: str, **recipe: Any) -> tuple[str, Layout]:
    """Its PTX also runs on newer ones."""
    return name, Layout(name, 1, {}, _PLAIN | recipe, "cuda:sm_80")


LAYOUTS = dict([
    _named("ddp", 2, data=2),
    _named("zero3", 4, data=4, zero=3),
    _named("tensor", 4, tensor=2, data=2, sequence_parallel=True),
    _named("pipeline", 4, pipeline=2, tensor=2, micro_batch=2),
    _named("context", 2, context=2),
    _named("expert", 2, expert=2),
    _named("recompute", 2, data=2, recompute="full"),
    _named("zero_bubble", 4, pipeline=2, data=2, micro_batch=1, schedule="zero_bubble", zero=1),
    _on_gpu("gpu"),
    _on_gpu("gpu_bf16", precision="bf16"),
])  # fmt: skip

_OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.05}, "momentum": {"lr": 0.05, "nesterov": True}, "adam": {"lr": 2e-3}, "adamw": {"lr": 2e-3}, "adagrad": {"lr": 0.01}, "lamb": {"lr": 0.01},
    "lion": {"lr": 2e-4}, "rmsprop": {"lr": 1e-3}, "adafactor": {"lr": 0.01}, "muon": {"lr": 0.01}, "adamw_8bit": {"lr": 2e-3},
}  # fmt: skip


def drawn(architecture: str, seed: int, number: int, experts: bool) -> Layout:
    """The same for the same arguments: a layout on 2 to 8 ranks of all that pins allow, and a recipe, which is one for all numbers."""
    recipe = _recipe(random.Random(f"{seed} {architecture}"))
    samples: int = recipe["batch"]["global"]
    draw = random.Random(f"{seed} {number} {architecture}")
    sizes = _sizes(draw, samples, experts)
    pins: dict[str, Any] = dict(sizes)
    own = samples // sizes.get("data", 1)  # of a data-parallel rank
    pipeline = sizes.get("pipeline", 1)
    micro = draw.choice([n for n in ((2, 1) if pipeline > 1 else (own, own, 2, 1)) if own % n == 0])
    if micro < own:
        pins["micro_batch"] = micro
        pins.update(_some(draw, overlap_micro_batches=2))
    if sizes.get("data", 1) > 1:
        pins["zero"] = draw.choice((0, 1, 2, 3))
        pins.update(_some(draw, bucket_bytes=1000))
        if pins["zero"] == 3:
            pins.update(_some(draw, prefetch_blocks=draw.choice((0, 2, 3)), reshard_after_forward=False))
        if pins["zero"] and sizes["data"] % 4 == 0:
            pins.update(_some(draw, zero_group=2))
    if sizes.get("tensor", 1) > 1:
        pins["sequence_parallel"] = draw.choice((False, True))
        pins.update(_some(draw, overlap_products=2))
    if pipeline > 1:
        whole = own // micro % (pipeline * pins.get("overlap_micro_batches", 1)) == 0
        pins["schedule"] = draw.choice(("1f1b", "gpipe", "zero_bubble", *(["interleaved"] if whole else [])))
        if pins["schedule"] == "interleaved":
            pins["interleave"] = 2
    pins["recompute"] = draw.choice(("none", "none", "selective", "attention", "mlp", "all_but_attention", "full"))
    ranks = 1
    for size in sizes.values():
        ranks *= size
    return Layout(f"random {number}", ranks, pins, recipe)


def _sizes(draw: random.Random, samples: int, experts: bool) -> dict[str, int]:
    """Of the axes of a mesh: a number of ranks, whose prime factors go to axes."""
    sizes: dict[str, int] = {}
    for factor in draw.choice(((2,), (3,), (2, 2), (2, 2), (2, 3), (2, 2, 2), (2, 2, 2))):
        axes = ["tensor", "pipeline", "context", *(["expert"] if experts else [])]
        if samples % (sizes.get("data", 1) * factor) == 0:
            axes += ["data", "data"]
        axis = draw.choice(axes)
        sizes[axis] = sizes.get(axis, 1) * factor
    return sizes


def _recipe(draw: random.Random) -> dict[str, Any]:
    samples = draw.choice((BATCH, BATCH, 2 * BATCH))
    kind = draw.choice([*_OPTIMIZERS, "adamw", "adamw", "adamw", "sgd"])
    recipe: dict[str, Any] = {"optimizer": {"kind": kind, **_OPTIMIZERS[kind], **_some(draw, weight_decay=0.1)}, "batch": {"global": samples}}
    recipe.update(_some(draw, clip_grad_norm=0.5) or _some(draw, clip_grad_value=0.01))
    recipe.update(_some(draw, precision="bf16"))
    return recipe | _some(draw, 0.2, ema={"decay": 0.9})


def _some(draw: random.Random, chance: float = 0.4, **keys: Any) -> dict[str, Any]:
    """Each of the keys by chance."""
    return {key: value for key, value in keys.items() if draw.random() < chance}


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {_text(v)}" for k, v in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)
