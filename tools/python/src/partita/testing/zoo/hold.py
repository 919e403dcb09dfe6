"""An architecture in layouts of many ranks: each compiled, proved, and trained beside one rank.

A layout holds where `partita verify` proves the program and its weights after some steps are those of one rank. How near
is said by one rank's own noise: the largest distance of its weights from those of runs that begin a rounding (2^-24 of
each weight) away, in bf16 also from those of fp32. What lies further is judged by `partita compare`: so few
runs may not show the kinks of norms over four numbers. The learning rate is the first at which that noise is small.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from ...errors import PartitaError
from ...programs import error_of, partita_program
from .case import CALM, LIMIT, ROUNDING, Case, line
from .exports import STEPS, Kept, kept
from .layouts import LAYOUTS, Layout, drawn

__all__ = ["Cell", "Held", "hold"]

NEIGHBOURS = 2  # runs from weights that lie within a rounding of the first
SLOWER = (1, 0.2, 0.04)  # times a recipe's learning rate
PATIENCE = 600  # seconds that a program may take, beside others on a busy machine
_IDLE = "the ranks of this axis do the same work"  # among the compiler's warnings
_REFUSALS = (2, 3)  # exit codes of the compiler

Weights = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Cell:
    """`error`: the distance from one rank's weights as a share of their norm, `own`: that of one rank's noise."""

    layout: str
    about: str  # the layout in words
    error: float = math.nan
    own: float = math.nan
    idle: bool = False  # an axis found nothing that its ranks could divide, so that they did the same work
    refused: str = ""  # by the compiler, and why
    fault: str = ""

    @property
    def held(self) -> bool:
        return not self.refused and not self.fault


@dataclass(frozen=True)
class Held:
    name: str
    parameters: int = 0
    cells: Sequence[Cell] = field(default_factory=list)
    refused: str = ""  # no export


def hold(case: Case, names: Sequence[str], random: int, seed: int, exports: Path) -> Held:
    """In the layouts of those names, and in so many drawn ones. Raises nothing."""
    try:
        model = kept(case, exports)
    except Exception as error:
        return Held(case.name, refused=line(error))
    layouts = [LAYOUTS[name] for name in names] + [drawn(case.name, seed, k + 1, model.experts) for k in range(random)]
    references: dict[str, _Reference | Cell] = {}
    cells: list[Cell] = []
    for layout in layouts:
        key = json.dumps(layout.recipe)
        if key not in references:
            references[key] = _reference(model, layout.recipe)
        cells.append(_cell(model, layout, references[key]))
    return Held(case.name, model.parameters, cells)


class _Fault(Exception):
    """What no user should see."""


@dataclass(frozen=True)
class _Reference:
    """One rank's weights, how far its neighbours' are, and the recipe."""

    recipe: Mapping[str, Any]
    weights: Weights
    own: float


def _cell(model: Kept, layout: Layout, reference: _Reference | Cell) -> Cell:
    cell = Cell(layout.name, str(layout))
    if isinstance(reference, Cell):
        return replace(cell, refused=reference.refused, fault=reference.fault)
    cell = replace(cell, own=reference.own)
    try:
        with tempfile.TemporaryDirectory(prefix="partita-") as text:
            folder = Path(text)
            pins = [f"--pin={key}={json.dumps(value)}" for key, value in layout.pins.items()]
            _compile(model, reference.recipe, folder, "--ranks", str(layout.ranks), "--target", layout.target, *pins)
            _call("verify", folder / "bundle", "--quiet")
            cell = replace(cell, idle=_IDLE in (folder / "bundle" / "manifest.json").read_text(encoding="utf-8"))
            error = _distance(_train(model, folder), reference.weights)
            far = not error <= LIMIT * max(reference.own, ROUNDING)
            # In 16 bits partial sums are rounded too, once on each rank, and norms over four numbers have kinks: value by
            # value, then, but for what is another program by what it says itself.
            if far and "compress" not in layout.pins:
                with tempfile.TemporaryDirectory(prefix="partita-") as one:
                    _compile(model, reference.recipe, Path(one))
                    _compare(Path(one) / "bundle", folder / "bundle", model.data)
                far = False
    except PartitaError as refusal:
        return replace(cell, refused=line(refusal))
    except _Fault as fault:
        return replace(cell, fault=line(fault))
    return replace(cell, error=error, fault=f"{error:.1e} from one rank, whose own noise is {reference.own:.1e}" if far else "")


def _reference(model: Kept, recipe: Mapping[str, Any]) -> _Reference | Cell:
    """A Cell says why there is none."""
    full = {key: value for key, value in recipe.items() if key != "precision"}
    try:
        found = _one_rank(model, _at(full, SLOWER[0]))
        for slower in SLOWER[1:]:
            if found.own <= CALM:
                break
            found = _one_rank(model, _at(full, slower))
        if "precision" not in recipe:
            return found
        rounded = _one_rank(model, {**found.recipe, "precision": recipe["precision"]})
        return replace(rounded, own=max(rounded.own, _distance(rounded.weights, found.weights)))
    except PartitaError as refusal:
        return Cell("", "", refused=f"one rank: {line(refusal)}")
    except _Fault as fault:
        return Cell("", "", fault=f"one rank: {line(fault)}")


def _at(recipe: Mapping[str, Any], slower: float) -> dict[str, Any]:
    optimizer = recipe["optimizer"]
    return {**recipe, "optimizer": {**optimizer, "lr": optimizer["lr"] * slower}}


def _one_rank(model: Kept, recipe: Mapping[str, Any]) -> _Reference:
    with tempfile.TemporaryDirectory(prefix="partita-") as text:
        folder = Path(text)
        _compile(model, recipe, folder)
        weights = _train(model, folder)
        if not all(np.isfinite(w).all() for w in weights.values()):
            raise _Fault("its weights are not finite")
        own = 0.0
        for n in range(NEIGHBOURS):
            save_file(_moved(load_file(folder / "bundle" / "initial.safetensors"), n), folder / "moved.safetensors")
            own = max(own, _distance(_train(model, folder, "--init", folder / "moved.safetensors"), weights))
        return _Reference(recipe, weights, own)


def _moved(weights: Weights, number: int) -> dict[str, np.ndarray]:
    """Each weight by up to a rounding."""
    draw = np.random.default_rng(number)
    return {name: np.asarray(w * (1 + draw.uniform(-ROUNDING, ROUNDING, w.shape)), w.dtype) if w.dtype == np.float32 else w for name, w in weights.items()}


def _distance(a: Weights, b: Weights) -> float:
    if a.keys() != b.keys():
        raise _Fault(f"other tensors were trained: {sorted(a.keys() ^ b.keys())[:3]}")
    difference = sum(float(np.square(a[name].astype(np.float64) - b[name]).sum()) for name in b)
    return math.sqrt(difference / sum(float(np.square(b[name].astype(np.float64)).sum()) for name in b))


def _compile(model: Kept, recipe: Mapping[str, Any], folder: Path, *layout: str) -> None:
    """Into folder/bundle. PartitaError where the compiler refuses."""
    (folder / "train.yaml").write_text(json.dumps({**model.recipe, **recipe}), encoding="utf-8")
    _call("compile", model.model, "--train", folder / "train.yaml", "-o", folder / "bundle", "--quiet", *layout)


def _train(model: Kept, folder: Path, *flags: str | Path) -> Weights:
    with tempfile.TemporaryDirectory(prefix="partita-", dir=folder) as text:
        checkpoint, weights = Path(text) / "checkpoint", Path(text) / "weights.safetensors"
        _call("run", folder / "bundle", "--data", model.data, "--steps", str(STEPS), "--quiet", "--threads", "1", "--checkpoint", checkpoint, *flags)
        _call("checkpoint", "export", checkpoint, "-o", weights)
        return load_file(weights)


def _compare(one: Path, many: Path, data: Path) -> None:
    try:
        _call("compare", one, many, "--data", data)
    except _Fault as fault:
        if "signal 9" in str(fault):  # of the system, which has no more
            raise PartitaError("further from one rank than its noise, and `partita compare` would need more memory") from None
        raise


def _call(verb: str, *arguments: str | Path) -> None:
    """PartitaError where the compiler refuses, _Fault at any other end but a good one, and at none."""
    process = subprocess.Popen([str(partita_program()), verb, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                               text=True, start_new_session=True)  # fmt: skip
    try:
        said = process.communicate(timeout=PATIENCE)[1]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise _Fault(f"{verb}: no end within {PATIENCE} s") from None
    if process.returncode == 0:
        return
    error = error_of(process.returncode, said)
    if verb == "compile" and process.returncode in _REFUSALS:
        raise error
    raise _Fault(f"{verb} left with {process.returncode}: {line(error)}")
