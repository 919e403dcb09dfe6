"""From a PyTorch module to a trained model, in any layout over any number of ranks.

    exported = partita.export(module, (x, target), loss=torch.nn.functional.cross_entropy)
    recipe = partita.Recipe(optimizer={"kind": "adamw", "lr": 1e-3})
    program = partita.compile(exported, recipe, ranks=2)
    program.train({"x": all_x, "target": all_targets}, steps=1000)
    program.load_into(module)

Importing this package does not import torch; what needs it says so.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from .errors import PartitaError
from .plan import Alternative, Plan
from .program import Program, compile, from_checkpoint
from .recipe import Recipe, layer_decay
from .run import Metrics, Run
from .session import Session

if TYPE_CHECKING:
    from .torch.export import Exported, export

try:
    __version__ = version("partita")
except PackageNotFoundError:  # the sources themselves, not installed
    __version__ = "0"

__all__ = ["Alternative", "Exported", "Metrics", "PartitaError", "Plan", "Program", "Recipe", "Run", "Session", "compile", "export", "from_checkpoint",
           "layer_decay"]


def __getattr__(name: str) -> Any:
    if name in ("Exported", "export"):
        return getattr(import_module(".torch.export", __name__), name)
    raise AttributeError(f"module 'partita' has no attribute {name!r}")
