"""A program's layout, and what is predicted of it."""

from __future__ import annotations

import html
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .folders import TemporaryFolder
from .programs import run_partita

__all__ = ["Alternative", "Plan"]


@dataclass(frozen=True)
class Alternative:
    """A layout that was looked at and not taken."""

    layout: str
    step_seconds: float  # predicted, of one optimizer step
    memory_bytes: float  # of a rank of the stage with least room
    fits: bool
    reason: str  # why it is not the plan


@dataclass(frozen=True)
class Plan:
    """How a program is divided. What was not searched for a cluster has no predictions: they are None then."""

    layout: str  # in words, or the axes of the mesh
    ranks: int
    samples_per_step: int
    memory_bytes: int  # of one rank: states and the step's values; of a searched plan the whole prediction
    step_seconds: float | None = None  # predicted, of one optimizer step
    tokens_per_second: float | None = None
    mfu: float | None = None  # model FLOP utilization, 0 to 1
    price_per_hour: float | None = None  # dollars, of all devices
    why_not: Sequence[Alternative] = ()
    path: Path | None = field(default=None, repr=False)  # plan.json
    owner: TemporaryFolder | None = field(default=None, repr=False, compare=False)  # of a temporary folder where that lies

    def html(self) -> str:
        """The plan's report, a page by itself; a searched plan's alone."""
        if self.path is None:
            return f"<pre>{html.escape(str(self))}</pre>"
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "report.html"
            run_partita("report", self.path, "-o", page)
            return page.read_text(encoding="utf-8")

    def _repr_html_(self) -> str:
        if self.path is None:
            return self.html()
        return f'<iframe style="width:100%;height:640px;border:0" srcdoc="{html.escape(self.html(), quote=True)}"></iframe>'


def plan_of(manifest: Mapping[str, Any], path: Path, owner: TemporaryFolder | None = None) -> Plan:
    """The plan of a bundle: of its manifest, and of plan.json at `path` where the layout was searched."""
    ranks, samples = int(manifest["ranks"]), int(manifest["samples_per_step"])
    if not path.is_file():
        axes = " x ".join(f"{name} {size}" for name, size in manifest["mesh"].items() if size > 1)
        return Plan(axes or "one device", ranks, samples, sum(manifest["memory_bytes"].values()))
    found = json.loads(path.read_text(encoding="utf-8"))
    predicted = found["predicted"]
    others = [Alternative(c["layout"], c["step_seconds"], c["memory_bytes"], c["fits"], c["reason"]) for c in found["candidates"]]
    return Plan(found["layout"], ranks, samples, max(predicted["memory_bytes"]), predicted["step_seconds"],
                predicted["tokens_per_second"], predicted["mfu"], predicted["price_per_hour"], tuple(others), path, owner)
