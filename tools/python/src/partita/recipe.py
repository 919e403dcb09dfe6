"""The recipe of a training run: train.yaml's keys, as Python values."""

from __future__ import annotations

import json
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import PartitaError
from .programs import run_partita

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

__all__ = ["Recipe", "layer_decay"]


class Recipe:
    """What is minimized, how, and on which data: the keys of train.yaml (docs/train_yaml.md).

        Recipe(optimizer={"kind": "adamw", "lr": 3e-4}, batch={"global": 512}, precision="bf16")

    The compiler itself checks keys and values when the recipe is made: PartitaError names the key and the nearest one.
    A recipe never changes; `replaced` makes another one.
    """

    def __init__(self, **keys: Any):
        self._keys: dict[str, Any] = _plain(keys)
        self._resolved = self._ask()

    @classmethod
    def read(cls, path: str | Path) -> Recipe:
        """The recipe of a train.yaml, with all that is default there said out."""
        recipe = cls.__new__(cls)
        recipe._keys = {}
        recipe._resolved = run_partita("train", "model.onnx", "--train", path, "--print-config")
        recipe._file_text = Path(path).read_text(encoding="utf-8")
        return recipe

    @classmethod
    def from_torch(cls, optimizer: Optimizer | Sequence[Optimizer], scheduler: LRScheduler | None = None, *, module: nn.Module | None = None,
                   clip: float | None = None, autocast: Any = None, steps: int | None = None, **keys: Any) -> Recipe:
        """The recipe that does what torch's optimizer and scheduler do; what has no counterpart is refused by name.

        `optimizer`: of torch.optim; or Muon and AdamW. Where parameters are treated differently they need names: those of `module`, the one
        that is trained, or its groups are made of (name, parameter) pairs. `clip`: the norm of `clip_grad_norm_`. `autocast`: torch.bfloat16 or torch.float16, the dtype of autocast; of the
        latter the loss is scaled as GradScaler does.
        `steps`: of the training; with it any scheduler whose rates follow from the step is taken: they are tried, and stay at the last one afterwards. Other keys are those of train.yaml.
        """
        from .torch.optimizers import recipe_keys
        from .torch.sampled_schedules import steps_taken

        found = recipe_keys(optimizer, scheduler, clip, autocast, module, steps, "schedule" in keys)
        if "loss_scale" in keys:
            found.pop("loss_scale", None)
        recipe = cls(**found, **keys)
        said: Any = optimizer
        optimizers: list[Any] = [said] if hasattr(said, "param_groups") else list(said)
        groups = [group for o in optimizers for group in o.param_groups]
        recipe._optimized = [weakref.ref(p) for group in groups for p in group["params"]]
        named = module.named_parameters() if module is not None else [pair for g in groups for pair in zip(g.get("param_names", ()), g["params"])]
        recipe._named = {name: weakref.ref(p) for name, p in named}
        optimized = {id(p) for group in groups for p in group["params"]}
        recipe._held_names = {name: id(ref()) in optimized for name, ref in recipe._named.items()}
        recipe._steps_taken = steps_taken(scheduler) if scheduler is not None else None
        return recipe

    _file_text: str | None = None
    _steps_taken: int | None = None  # of torch's scheduler, when `from_torch` read it
    _optimized: Sequence[weakref.ref[Any]] = ()  # torch's parameters that `from_torch` found in the optimizer
    _named: Mapping[str, weakref.ref[Any]] = {}  # those that have names, there or in `module`
    _held_names: Mapping[str, bool] = {}  # of those names, whether the optimizer holds the parameter

    @property
    def steps_taken(self) -> int | None:
        """Of torch's scheduler, when `from_torch` read it: where a run goes on that takes up the optimizer's states. None: there was none."""
        return self._steps_taken

    def left_out(self, parameters: Mapping[str, Any]) -> list[str]:
        """Of a module's parameters by name, those that torch's optimizer leaves as they are: that it holds some others of them says
        that it is about this module. Of another instance of the module (a copy, or one that was made anew) it holds none: there names say it."""
        held = {id(p) for p in (ref() for ref in self._optimized) if p is not None}
        others = [name for name, p in parameters.items() if id(p) not in held]
        if len(others) < len(parameters):
            return others
        if not any(self._held_names.get(name, False) for name in parameters):
            return []
        return [name for name in parameters if not self._held_names.get(name, True)]

    def called_as(self, parameters: Mapping[str, Any]) -> Recipe:
        """The same, where torch's optimizer has a module's parameters under other names, as of a module that is wrapped: under the module's."""
        ours = {id(p): name for name, p in parameters.items()}
        other = {name: ours[id(p)] for name, p in ((name, ref()) for name, ref in self._named.items()) if p is not None and ours.get(id(p), name) != name}
        globs = {escape(name): escape(our) for name, our in other.items()}
        return self.replaced(optimizer=_renamed(self.keys["optimizer"], globs)) if other else self

    @property
    def keys(self) -> dict[str, Any]:
        """The keys that were said, a copy. Of a recipe that was read from a file: none."""
        return json.loads(json.dumps(self._keys))

    @property
    def resolved(self) -> str:
        """The whole recipe as train.yaml's text, defaults said out."""
        return self._resolved

    def replaced(self, **keys: Any) -> Recipe:
        """Another recipe, in which these keys have these values."""
        if self._file_text is not None:
            raise PartitaError("a recipe that was read from a file is taken as it is; say its keys with Recipe(…) to change some")
        recipe = Recipe(**{**self._keys, **keys})
        recipe._optimized, recipe._named, recipe._held_names = self._optimized, self._named, self._held_names
        recipe._steps_taken = self._steps_taken if "schedule" not in keys else None
        return recipe

    def text(self) -> str:
        """What train.yaml would say: JSON, which is YAML too."""
        return self._file_text if self._file_text is not None else json.dumps(self._keys, indent=1, ensure_ascii=False) + "\n"

    def _ask(self) -> str:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "recipe"
            path.write_text(self.text(), encoding="utf-8")
            try:
                return run_partita("train", "model.onnx", "--train", path, "--print-config")
            except PartitaError as error:
                raise PartitaError(str(error).replace(f"{path}:", "recipe:"), error.code) from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recipe) and self._resolved == other._resolved

    def __hash__(self) -> int:
        return hash(self._resolved)

    def __repr__(self) -> str:
        return "Recipe(\n" + self._resolved + ")"


def layer_decay(layers: Sequence[str | Sequence[str]], lr: float, factor: float) -> list[dict[str, Any]]:
    """Groups of an optimizer by layer, the last with rate `lr`, each before it with `factor` times the rate of the next.

        Recipe(optimizer={"kind": "adamw", "lr": 1e-3, "groups": layer_decay(["embed*", "layers.0.*", "layers.1.*", "head*"], 1e-3, 0.75)})

    `layers`: globs over parameter names, from the input to the output.
    """
    return [{"match": _plain(match), "lr": lr * factor ** (len(layers) - 1 - k)} for k, match in enumerate(layers)]


def _renamed(optimizer: Any, other: Mapping[str, str]) -> Any:
    """An optimizer's keys with other names of parameters, wherever it lists some."""
    if isinstance(optimizer, dict):
        return {key: _renamed(value, other) for key, value in optimizer.items()}
    return [_renamed(value, other) for value in optimizer] if isinstance(optimizer, list) else other.get(optimizer, optimizer)


def _plain(value: Any) -> Any:
    """Mappings, sequences, paths and NumPy's scalars as what JSON has."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(v) for v in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        return value.item()
    return value
