"""Whether an exported step has the module's loss and gradients."""

from __future__ import annotations

import math
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode

from ..errors import PartitaError
from ..program import compile
from ..recipe import Recipe
from ..session import as_array

if TYPE_CHECKING:
    from .export import Exported

__all__ = ["check_export", "check_twice", "without_dropout"]

LOSS_TOLERANCE = 1e-4  # relative
GRADIENT_TOLERANCE = 1e-3  # of a gradient's norm, and
NOISE = 1e-5  # of the norm of all gradients: what is zero but for rounding
ROUNDINGS = 8  # of a module in 16 bits, which either side rounds at other places
_DROPOUTS = {F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout, torch.dropout, torch.feature_dropout}


def check_export(exported: Exported, step: nn.Module, values: list[torch.Tensor]) -> list[str]:
    """Raises PartitaError with code 4 where the serial program of the exported file differs on the batch from torch's
    autograd, dropout off on both sides. Warns of what it cannot compare: other random numbers, backwards that are torch's alone.
    Returns which of the trained parameters torch has no gradient of: its optimizers pass them over."""
    dropout = _NoDropout()
    with _torch_loss(step, values, dropout) as computed:
        _warn_of_backwards(step, computed, dropout.hooked)
        loss, gradients = float(computed.detach()), _gradients(step, computed)
    idle = [name for name in exported.trained if name not in gradients]
    if drawn := _random_nodes(exported.path):
        warnings.warn(f"{drawn[0]} draws random numbers, anew in each step: loss and gradients are not compared with torch's", stacklevel=3)
        return idle
    rounding = _rounding(step, values)
    with tempfile.TemporaryDirectory(prefix="partita-") as folder:
        source = without_dropout(exported.path, Path(folder))
        trained = [escape(name) for name in exported.trained if name in gradients]
        recipe = Recipe(**{**exported.recipe.keys, "trainable": trained, "optimizer": {"kind": "sgd", "lr": 0}})
        program = compile(source, recipe, path=Path(folder) / "program", keep_gradients=True)
        data = {name: as_array(value) for name, value in zip(exported.inputs, values)}
        found = program.train(data, 1, progress=False, save_gradients=Path(folder) / "gradients.safetensors")[0].loss
        ours = load_file(Path(folder) / "gradients.safetensors")
    if not abs(found - loss) <= max(LOSS_TOLERANCE, rounding) * max(abs(loss), 1e-6):
        raise PartitaError(f"the exported loss is {found:.7g}, torch's is {loss:.7g}: the export is not the module", 4)
    norm = math.sqrt(sum(float(g.double().square().sum()) for g in gradients.values()))
    for name, gradient in gradients.items():
        if name not in ours:
            raise PartitaError(f"{name}: torch has a gradient of it, the exported step has none", 4)
        difference = float((ours[name].double() - gradient.double()).norm())
        if not difference <= max(GRADIENT_TOLERANCE, ROUNDINGS * rounding) * float(gradient.double().norm()) + NOISE * norm:
            raise PartitaError(f"{name}: its gradient differs from torch's by {difference:.3g}, of a norm of {float(gradient.norm()):.3g}", 4)
    return idle


def _rounding(step: nn.Module, values: list[torch.Tensor]) -> float:
    """Of the coarsest 16-bit type among parameters and inputs; 0 where there is none."""
    return max([torch.finfo(t.dtype).eps for t in (*step.parameters(), *values) if t.dtype in (torch.bfloat16, torch.float16)], default=0)


def _warn_of_backwards(step: nn.Module, loss: torch.Tensor, tensor_hooks: bool) -> None:
    """Of what torch runs in its backward pass, and a capture of the forward one does not see; `tensor_hooks`: forward hung hooks on tensors."""
    module: nn.Module = step.module  # pyright: ignore[reportAssignmentType]
    hooked = [name for name, p in module.named_parameters() if p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None)]
    hooked += [name or "the module" for name, m in module.named_modules() if m._backward_hooks or m._backward_pre_hooks]
    hooked += ["a tensor made in forward"] * tensor_hooks
    if hooked:
        warnings.warn(f"{hooked[0]} has hooks on its gradient, which the program does not run", stacklevel=4)
    left, seen = [loss.grad_fn], set[Any]()
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            left += [below for below, _ in node.next_functions]
    ours = {id(p) for p in step.parameters()}
    others = [tuple(leaf.shape) for leaf in (getattr(node, "variable", None) for node in seen) if leaf is not None and id(leaf) not in ours]
    if others:
        warnings.warn(f"a tensor of shape {others[0]} that is no parameter of the module requires a gradient: it is not trained", stacklevel=4)
    own = sorted({type(node).__name__.removesuffix("Backward") for node in seen if isinstance(node, BackwardCFunction)})
    if own:
        warnings.warn(f"{own[0]}: a torch.autograd.Function is exported by its forward, with the gradient of that; the backward that it "
                      f"defines is not run, and is compared on the example alone", stacklevel=4)  # fmt: skip


def _random_nodes(model: Path) -> list[str]:
    import onnx

    graph = onnx.load(str(model), load_external_data=False).graph
    return [f"{node.op_type} {node.name!r}" for node in graph.node if node.op_type.startswith("Random") or node.op_type in ("Bernoulli", "Multinomial")]


def check_twice(exported: Exported, recipe: Recipe, step: nn.Module, values: list[torch.Tensor]) -> None:
    """Raises PartitaError with code 4 where the program of the exported file has another loss than torch on twice its samples, dropout off
    on both sides: numbers that the capture made of their number (1 / len(x), positions 0, 1, …) are what they were.

    Says nothing of a module that does not take so many, nor of one with batch norms, of which it warns.
    """
    samples: int = exported.recipe.keys["batch"]["global"]
    norms = [name for name, m in step.module.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training]  # pyright: ignore
    if norms:
        warnings.warn(f"{norms[0]}: batch norms take the statistics of {samples} samples, as many as the example has, and a step has "
                      f"{recipe.keys['batch']['global']}; an example of a step's samples, or dynamic=, has theirs", stacklevel=4)  # fmt: skip
        return
    if _random_nodes(exported.path):
        return
    twice = [torch.cat([v, v.roll(1, 0)]) if v.ndim > 0 else v for v in values]
    try:
        with _torch_loss(step, twice, _NoDropout()) as computed:
            loss = float(computed.detach())
    except Exception:
        return
    keys = {key: recipe.keys[key] for key in ("loss", "semantics", "trainable", "bind") if key in recipe.keys}
    with tempfile.TemporaryDirectory(prefix="partita-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        source = without_dropout(exported.path, Path(folder))
        try:
            program = compile(source, Recipe(**{**keys, "batch": {"global": 2 * samples}, "optimizer": {"kind": "sgd", "lr": 0}}), path=Path(folder) / "program")
        except PartitaError:  # which the recipe's own batch meets as well
            return
        data = {name: as_array(value) for name, value in zip(exported.inputs, twice)}
        found = program.train(data, 1, progress=False)[0].loss
    if not abs(found - loss) <= max(LOSS_TOLERANCE, _rounding(step, values)) * max(abs(loss), 1e-6):
        raise PartitaError(f"batch.global: the example has {samples} samples, and twice as many have a loss of {found:.7g} in the program, {loss:.7g} in "
                           f"torch: the export has numbers that were made of the number of samples, or their order (1 / len(x), torch.arange(len(x))); "
                           f"export with as many samples as a step has, or with dynamic= for the first dimension", 4)  # fmt: skip


def without_dropout(model: Path, folder: Path) -> Path:
    """A copy of an exported file whose dropouts keep everything; its weights stay where they are. The file itself where
    it has none."""
    import onnx

    proto = onnx.load(str(model), load_external_data=False)
    dropouts = [n for n in proto.graph.node if n.op_type == "Dropout"]
    if not dropouts:
        return model
    for node in dropouts:
        node.CopyFrom(onnx.helper.make_node("Identity", node.input[:1], node.output[:1], node.name))
    for tensor in proto.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                (folder / entry.value).unlink(missing_ok=True)
                (folder / entry.value).hardlink_to((model.parent / entry.value).resolve())
    onnx.save(proto, str(folder / "model.onnx"))
    return folder / "model.onnx"


class _NoDropout(TorchFunctionMode):
    """Sees, too, whether anybody hangs a hook on a tensor."""

    hooked = False

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = dict(kwargs or {})
        self.hooked |= func is torch.Tensor.register_hook
        if func in _DROPOUTS:
            return args[0] if args else kwargs["input"]
        if func is F.scaled_dot_product_attention:
            args = (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args
            kwargs.pop("dropout_p", None)
        if func is F.multi_head_attention_forward:
            args = (*args[:10], 0.0, *args[11:])
        return func(*args, **kwargs)


@contextmanager
def _torch_loss(step: nn.Module, values: list[torch.Tensor], dropout: _NoDropout) -> Iterator[torch.Tensor]:
    """With its graph, dropout off; the module's buffers are what they were when it was used."""
    module: nn.Module = step.module  # pyright: ignore[reportAssignmentType]
    buffers = {name: b.clone() for name, b in module.named_buffers()}
    recurrent = {m: m.dropout for m in module.modules() if isinstance(m, nn.RNNBase)}
    for m in recurrent:
        m.dropout = 0.0
    try:
        with torch.enable_grad(), dropout:
            loss = step(*values)
        yield loss
    finally:
        with torch.no_grad():
            for name, b in module.named_buffers():
                b.copy_(buffers[name])
        for m, p in recurrent.items():
            m.dropout = p


def _gradients(step: nn.Module, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    """By autograd; the module's own stay as they were."""
    module: nn.Module = step.module  # pyright: ignore[reportAssignmentType]
    parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    return {name: g.detach().cpu() for name, g in zip(parameters, found) if g is not None}
