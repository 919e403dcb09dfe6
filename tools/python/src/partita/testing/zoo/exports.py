"""Exports of architectures in a folder, with the samples that they train on: torch.export is asked once."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...torch.export import export
from .case import BATCH, Case, without_dropout
from .versions import versions

__all__ = ["STEPS", "Kept", "kept"]

STEPS = 3  # that are trained in a layout
_BATCHES = 2 * STEPS  # a step of a drawn recipe may take two


@dataclass(frozen=True)
class Kept:
    """`model`, `data`: files. `recipe`: what the export found in the module. `experts`: some weights are of experts."""

    model: Path
    data: Path
    recipe: Mapping[str, Any]
    parameters: int
    experts: bool


def kept(case: Case, folder: Path) -> Kept:
    """That of the folder; made where it is not there, or other versions of torch and its kin made it. What export raises."""
    place = folder / re.sub(r"[^A-Za-z0-9._-]+", "_", case.name)
    about = place / "about.json"
    if about.is_file():
        said = json.loads(about.read_text(encoding="utf-8"))
        if said["versions"] == versions():
            return Kept(place / "model.onnx", place / "data.npz", said["recipe"], said["parameters"], said["experts"])
    shutil.rmtree(place, ignore_errors=True)
    torch.manual_seed(0)
    module = without_dropout(case.make())
    batches = [case.batch(BATCH) for _ in range(_BATCHES)]
    exported = export(module, batches[0], case.loss, place, check=False)
    arrays: dict[str, Any] = {name: torch.cat([b[name] for b in batches]).numpy() for name in exported.inputs}
    np.savez(place / "data.npz", **arrays)
    said = {"versions": versions(), "recipe": exported.recipe.keys, "parameters": sum(p.numel() for p in module.parameters()),
            "experts": any("expert" in name for name, _ in module.named_parameters())}  # fmt: skip
    about.write_text(json.dumps(said), encoding="utf-8")  # last: a folder without it is made anew
    return kept(case, folder)
