"""From a module and its loss to an ONNX file, and to the recipe that says what the file cannot."""

from __future__ import annotations

import inspect
import logging
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from glob import escape
from pathlib import Path
from typing import Any, Union

import torch
from torch import nn

from ..errors import PartitaError
from ..folders import TemporaryFolder
from ..recipe import Recipe
from .buffers import refuse_written_buffers, written_attributes_told
from .graph_names import divide_complex_weights, mark_batch_norms, mark_detached, mark_dropouts, name_weights, without_gradient
from .rewrites import capturable_experts, rewritten, translations
from .where import CallStack, place_of_node

__all__ = ["Example", "Exported", "export"]

Example = Union[torch.Tensor, Sequence[Any], Mapping[str, Any]]
Loss = Union[Callable[..., torch.Tensor], str]


@dataclass(frozen=True)
class Exported:
    """A module's training step as an ONNX file, and what `partita.compile` needs to know of the module beside it."""

    path: Path  # model.onnx; its weights lie beside it
    recipe: Recipe  # its loss, its trained parameters, the example's batch
    inputs: Sequence[str]  # names of what a step reads: the columns of the data
    facts: Mapping[str, Any] = field(default_factory=dict, repr=False)  # of the module, for the way back into it
    _owner: Any = field(default=None, repr=False)
    _trained: Mapping[str, weakref.ref[torch.Tensor]] = field(default_factory=dict, repr=False)
    _checked: Callable[[], tuple[nn.Module, list[torch.Tensor]] | None] = field(default=lambda: None, repr=False)

    def check_batch(self, recipe: Recipe) -> None:
        """PartitaError with code 4 where the program for `recipe`, whose steps take more samples than the example, has another loss than
        torch for twice the example; nothing where export(check=False) asked for no check, or the module is gone."""
        samples, asked = (r.keys.get("batch", {}).get("global") for r in (self.recipe, recipe))
        more = samples is not None and asked is not None and (isinstance(asked, list) or asked > samples)
        checked = self._checked() if more else None
        if checked is not None:
            from .check import check_twice

            check_twice(self, recipe, *checked)

    @property
    def trained(self) -> dict[str, torch.Tensor]:
        """The module's own parameters that are trained, by name, as far as the module is still there."""
        return {name: p for name, p in ((name, ref()) for name, ref in self._trained.items()) if p is not None}


def export(
    module: nn.Module,
    example: Example,
    loss: Loss = "output",
    path: str | Path | None = None,
    *,
    dynamic: Mapping[str, Mapping[int, str]] | None = None,
    check: bool = True,
) -> Exported:
    """Captures a module's training step, its loss included, as `path`/model.onnx.

    `example`: a batch; its first dimensions count samples. A mapping: what forward has parameters for goes there by
    name, and `loss(outputs, batch)` sees all of it. A tuple: the last element is the target, those before are forward's
    arguments, and `loss(outputs, target)` is called, as torch.nn.functional's losses are.
    `loss`: that function, of any torch code, with a scalar result and no parameters of its own to train; or "output": the module returns its loss (a scalar,
    or `.loss`, ["loss"] or the first element of what it returns), and all of the example goes to forward.
    `path`: a folder; by default a temporary one, gone with what is returned.
    `dynamic`: sizes to leave open, by input and dimension: {"x": {0: "batch", 1: "length"}}. The recipe's `batch.global`
    says the first dimension, its `bind` the others; the example's sizes are taken where it says nothing.
    `check`: compares loss and gradients on the example with torch's autograd, dropout off on both sides.

    The module is exported as it trains: dropout on, batch norms by the batch (parts that are in eval() stay so). What
    cannot be exported is a PartitaError with the module's path and the Python line.
    """
    names, values = _named(module, example, loss)
    _refuse_parameters_of(loss, module)
    step = _Step(module, names, loss, isinstance(example, Mapping))
    owner = TemporaryFolder() if path is None else None
    folder = owner.path if owner is not None else Path(path or "")
    folder.mkdir(parents=True, exist_ok=True)
    with _Training(module):
        with written_attributes_told(module):
            captured = _captured(step, values, names, dynamic)
        refuse_written_buffers(captured, module)
        graph = rewritten(captured)
        onnx = _translated(graph, names)
        trained, unused = name_weights(onnx.model, module, set(names))
        mark_detached(onnx.model)
        mark_dropouts(onnx.model)
        divide_complex_weights(onnx.model)
        variances = mark_batch_norms(onnx.model, module, values[0].shape[0] if values[0].ndim else 1)
        onnx.save(str(folder / "model.onnx"), external_data=True)
        keys: dict[str, Any] = {"loss": {"kind": "output"}, "trainable": [escape(name) for name in trained]}
        sizes = {v.shape[0] for v in values if v.ndim > 0}
        if len(sizes) == 1:
            keys["batch"] = {"global": sizes.pop()}
        shapes = dict(zip(names, (v.shape for v in values)))
        bound = {size: shapes[name][axis] for name, axes in (dynamic or {}).items() for axis, size in axes.items() if axis > 0}
        if bound:
            keys["bind"] = bound
        for name in unused:
            warnings.warn(f"{name} is trainable, and the loss does not depend on it: it is not trained", stacklevel=2)
        parameters = dict(module.named_parameters())
        alive = weakref.ref(module)

        def checked() -> tuple[nn.Module, list[torch.Tensor]] | None:
            there = alive()
            return None if there is None else (_Step(there, names, loss, isinstance(example, Mapping)), values)

        exported = Exported(folder / "model.onnx", Recipe(**keys), tuple(names), {"unused": unused, "variances": variances, "trained": trained}, owner,
                            {name: weakref.ref(parameters[name]) for name in trained}, checked if check and not dynamic else lambda: None)  # fmt: skip
        idle = without_gradient(onnx.model, trained)
        if check:
            from .check import check_export

            idle = check_export(exported, step, values)
    if idle:
        warnings.warn(f"{', '.join(idle)}: trainable, and no gradient of the loss reaches it: it is not trained", stacklevel=2)
        exported = replace(exported, recipe=exported.recipe.replaced(trainable=[escape(name) for name in trained if name not in idle]))
    return exported


class _Step(nn.Module):
    """A module together with its loss: positional tensors to a scalar."""

    def __init__(self, module: nn.Module, names: list[str], loss: Loss, mapping: bool):
        super().__init__()
        self.module, self._names, self._loss, self._mapping = module, names, loss, mapping
        self.training = module.training

    def forward(self, *batch: torch.Tensor) -> torch.Tensor:
        named = dict(zip(self._names, batch))
        if not self._mapping:
            if isinstance(self._loss, str):
                return _loss_in(self.module(*batch))
            return _scalar(self._loss(self.module(*batch[:-1]), batch[-1]))
        if isinstance(self._loss, str):
            return _loss_in(self.module(**named))
        return _scalar(self._loss(self.module(**{k: v for k, v in named.items() if k in _parameters(self.module, named)}), named))


class _Training:
    """The module in training mode for a while; where its root trains already, parts in eval() stay so."""

    def __init__(self, module: nn.Module):
        self._module, self._modes = module, {m: m.training for m in module.modules()}

    def __enter__(self) -> None:
        if not self._module.training:
            warnings.warn("the module is in eval() mode: it is exported as train() makes it", stacklevel=3)
            self._module.train()

    def __exit__(self, *_: object) -> None:
        for m, mode in self._modes.items():
            m.training = mode


def _refuse_parameters_of(loss: Loss, module: nn.Module) -> None:
    """PartitaError where the loss is a module with parameters that would be trained: all that is trained here is the module's."""
    ours = {id(p) for p in module.parameters()}
    own = [name for name, p in loss.named_parameters() if p.requires_grad and id(p) not in ours] if isinstance(loss, nn.Module) else []
    if own:
        raise PartitaError(f"loss: its {own[0]!r} is a trainable parameter, and what is trained are the module's. Make the loss a part of the module (a forward "
                           'that returns the loss, exported with loss="output"), or say requires_grad_(False) of it where it is not trained')  # fmt: skip


def _parameters(module: nn.Module, batch: Mapping[str, Any]) -> set[str]:
    """Names of the batch that forward takes."""
    parameters = inspect.signature(module.forward).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return set(batch)
    return set(parameters)


def _named(module: nn.Module, example: Example, loss: Loss) -> tuple[list[str], list[torch.Tensor]]:
    if isinstance(example, Mapping):
        names, values = list(example), list(example.values())
    else:
        values = [example] if isinstance(example, torch.Tensor) else list(example)
        arguments = len(values) if isinstance(loss, str) else len(values) - 1
        if arguments < 1:
            raise PartitaError("example: expected forward's arguments and then the target, or a mapping")
        taken = [p.name for p in inspect.signature(module.forward).parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        names = [taken[k] if k < len(taken) else f"input{k}" for k in range(arguments)]
        names += ["target" if "target" not in names else "loss_target"] * (len(values) - arguments)
    for name, value in zip(names, values):
        if not isinstance(value, torch.Tensor):
            raise PartitaError(f"example: {name!r} is a {type(value).__name__}; expected a tensor (constants belong into the module)")
    return names, values


def _loss_in(output: Any) -> torch.Tensor:
    """The loss in what a module returned."""
    if isinstance(output, torch.Tensor):
        return _scalar(output)
    found = getattr(output, "loss", None)
    if found is None and isinstance(output, Mapping):
        found = output.get("loss")
    if found is None and isinstance(output, (tuple, list)) and output:
        found = output[0]
    if found is None:
        raise PartitaError(f'loss="output": the module returned a {type(output).__name__} without a loss')
    return _scalar(found)


def _scalar(loss: Any) -> torch.Tensor:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        found = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else f"a {type(loss).__name__}"
        raise PartitaError(f"loss: expected a scalar, found {found}")
    return loss.reshape(())


def _captured(step: nn.Module, values: list[torch.Tensor], names: list[str], dynamic: Mapping[str, Mapping[int, str]] | None) -> Any:
    shapes = None
    if dynamic:
        unknown = [name for name in dynamic if name not in names]
        if unknown:
            raise PartitaError(f"dynamic: {unknown[0]!r} is no input; inputs: {', '.join(names)}")
        sizes = {size: torch.export.Dim(size) for axes in dynamic.values() for size in axes.values()}
        shapes = {"batch": tuple({axis: sizes[size] for axis, size in dynamic.get(name, {}).items()} for name in names)}
    with CallStack(step) as stack, capturable_experts(step), _unchecked_distributions():
        try:
            captured: Any = torch.export.export(step, tuple(values), dynamic_shapes=shapes, strict=False)
            if shapes is not None:
                captured._example_inputs = None  # by which PyTorch 2.9 would check open sizes, under names that it then does not find
            return captured
        except PartitaError:
            raise
        except Exception as error:
            said = str(error).strip().splitlines() or [type(error).__name__]
            if shapes is not None and said[0].startswith("Constraints violated"):
                closed = next((line.strip(" -") for line in said[1:] if line.strip().startswith("-")), said[0]).partition(". ")[0]
                raise PartitaError(f"dynamic: the module does not leave these sizes open: {closed}; "
                                   "a Python number that is made of a size, as in range(len(x)), fixes it") from error  # fmt: skip
            raise PartitaError(f"{stack.place(error)}: cannot be captured: {said[0]}") from error


@contextmanager
def _unchecked_distributions() -> Iterator[None]:
    """Has torch.distributions not look at its arguments, by default: before PyTorch 2.10 that is a branch that depends on data."""
    kind: Any = torch.distributions.Distribution
    before = kind._validate_args
    kind.set_default_validate_args(False)
    try:
        yield
    finally:
        kind.set_default_validate_args(before)


@contextmanager
def _silence() -> Iterator[None]:
    """Without the exporter's warnings: they are of its own parts, and of torchvision's operators where that is not installed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _translated(graph: Any, names: list[str]) -> Any:
    with _silence():
        try:
            onnx = torch.onnx.export(graph, (), dynamo=True, optimize=False, input_names=names, output_names=["loss"], verbose=False,
                                     custom_translation_table=translations())  # fmt: skip
        except ImportError as error:
            raise PartitaError(f"torch's exporter needs another package: {error}; pip install onnxscript") from error
        except Exception as error:
            raise PartitaError(place_of_node(graph, error)) from error
    if onnx is None:
        raise PartitaError("torch.onnx.export made nothing")
    return onnx
