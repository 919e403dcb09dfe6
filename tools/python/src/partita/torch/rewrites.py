"""What torch's ONNX exporter would change without a word or fails at, written out in operators that it has."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["capturable_experts", "rewritten", "translations"]

_CROSS_ENTROPY = torch.ops.aten.cross_entropy_loss.default


@contextmanager
def capturable_experts(module: nn.Module) -> Iterator[None]:
    """Has transformers' expert layers choose weights by each token's experts for a while.

    That is the one of its forms that ONNX has and whose tokens do not meet; the others sort all tokens by expert, or ask which
    experts have any. The compiler makes a grouped product of it that copies no weights.
    """
    key = "_experts_implementation"
    configs = {id(c): c for m in module.modules() if getattr(c := getattr(m, "config", None), key, None) is not None}
    before = [(c, getattr(c, key)) for c in configs.values()]
    try:
        for config, _ in before:
            setattr(config, key, "batched_mm")
        yield
    finally:
        for config, form in before:
            setattr(config, key, form)


def translations() -> dict[Any, Any]:
    """Operators that Partita writes as ONNX itself: batch norms with running statistics, at which PyTorch 2.6's exporter fails."""
    from onnxscript import opset18

    op: Any = opset18

    def normalized(results: int, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, momentum: float, eps: float) -> tuple[Any, ...]:
        """As for inference; mark_batch_norms says which ones train, and nothing reads the other results."""
        channels = op.Shape(x, start=1, end=2)
        weight = op.Expand(op.Constant(value_floats=[1.0]), channels) if weight is None else weight
        bias = op.Expand(op.Constant(value_floats=[0.0]), channels) if bias is None else bias
        made = op.BatchNormalization(x, weight, bias, mean, variance, epsilon=eps, momentum=1.0 - momentum)
        y = made[0] if isinstance(made, (tuple, list)) else made  # PyTorch 2.6 makes all results that the operator may have
        return (y, *(op.Identity(mean if k % 2 == 0 else variance) for k in range(results - 1)))

    # Parameters are called as those of the operators: the exporter tells by their names whether a function fits.
    def batch_norm(input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool, momentum: float, eps: float) -> tuple[Any, ...]:
        return normalized(5, input, weight, bias, running_mean, running_var, momentum, eps)

    def inference(input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: float, eps: float) -> tuple[Any, ...]:
        return normalized(3, input, weight, bias, running_mean, running_var, momentum, eps)

    aten = torch.ops.aten
    return {aten._native_batch_norm_legit_functional.default: batch_norm, aten._native_batch_norm_legit_no_training.default: inference}


def rewritten(graph: Any) -> Any:
    """The captured program with such operators written out."""
    _stop_without_gradients(graph.graph_module)
    _hide_all(graph.graph)
    _fix_strides(graph.graph)
    _stop_at_padding(graph.graph)
    _divide_complex(graph.graph)
    _drop_assertions(graph.graph)
    _drop_idle_squeezes(graph.graph)
    _pool_adaptively(graph.graph)
    _convolve_without_bias(graph.graph)
    table = {
        torch.ops.aten.log_sigmoid.default: _log_sigmoid,
        torch.ops.aten.cdist.default: _cdist,
        torch.ops.aten.binary_cross_entropy_with_logits.default: _binary_cross_entropy,
    }
    if any(n.target is _CROSS_ENTROPY and _loses(n) for n in graph.graph.nodes):
        table[_CROSS_ENTROPY] = _cross_entropy
    if any(n.target in table for n in graph.graph.nodes):
        return graph.run_decompositions(table)
    return graph


def _stop_without_gradients(module: Any) -> None:
    """Has no gradient flow through what runs under torch.no_grad(), which the exporter forgets."""
    graph = module.graph
    stopped: set[Any] = set()
    while _write_out(module, stopped):
        pass
    for node in [n for n in graph.nodes if n in stopped]:
        value = node.meta.get("val")
        outside = [user for user in node.users if user not in stopped]
        if outside and isinstance(value, torch.Tensor) and value.is_floating_point():
            with graph.inserting_after(node):
                constant = graph.call_function(torch.ops.aten.detach.default, (node,))
            constant.meta = dict(node.meta)
            for user in outside:
                user.replace_input_with(node, constant)
    module.recompile()


def _write_out(module: Any, stopped: set[Any]) -> bool:
    """Writes parts that switch gradients on or off into the graph itself. Adds to `stopped` what runs without. False: there are none."""
    graph = module.graph
    found = [n for n in graph.nodes if n.target is torch.ops.higher_order.wrap_with_set_grad_enabled]
    for node in found:
        on, part, *operands = node.args
        inner = getattr(module, str(part.target))
        places = [n for n in inner.graph.nodes if n.op == "placeholder"]
        made: dict[Any, Any] = dict(zip(places, operands))
        results: Any = ()
        with graph.inserting_before(node):
            for step in inner.graph.nodes:
                if step.op == "output":
                    results = [made.get(r, r) for r in step.args[0]]
                elif step.op != "placeholder":
                    made[step] = graph.node_copy(step, lambda n: made[n])
                    if step.op == "get_attr":
                        made[step].target = f"{part.target}_{step.target}"
                        setattr(module, made[step].target, getattr(inner, str(step.target)))
                    if not on:
                        stopped.add(made[step])
        for user in list(node.users):  # each takes one of its results
            user.replace_all_uses_with(results[user.args[1]])
            graph.erase_node(user)
        graph.erase_node(node)
        if not part.users:
            graph.erase_node(part)
    return bool(found)


def _fix_strides(graph: Any) -> None:
    """Has no view depend on how attention's result lies in memory: the exporter decomposes it into what lies otherwise."""
    for node in list(graph.nodes):
        if node.target is torch.ops.aten.view.default:
            node.target = torch.ops.aten.reshape.default
        elif node.target is torch.ops.aten.scaled_dot_product_attention.default:
            with graph.inserting_after(node):
                copy = graph.call_function(torch.ops.aten.clone.default, (node,), {"memory_format": torch.contiguous_format})
            copy.meta = dict(node.meta)
            node.replace_all_uses_with(copy, delete_user_cb=lambda user: user is not copy)


def _origin_of(node: Any) -> dict[str, Any]:
    """Where in the module what is made in a node's place comes from."""
    return {key: value for key, value in node.meta.items() if key in ("nn_module_stack", "stack_trace")}


def _hide_all(graph: Any) -> None:
    """Has attention's masks of booleans be sums with minus infinity: a query that may see no key gives 0 in torch. The exporter adds the
    type's lowest number in their place, with which all keys of such a query count alike."""
    aten = torch.ops.aten
    for node in list(graph.nodes):
        mask = node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")
        if node.target is not aten.scaled_dot_product_attention.default or mask is None or mask.meta["val"].dtype != torch.bool:
            continue
        seen, dtype = mask.meta["val"], node.meta["val"].dtype
        with graph.inserting_before(node):
            hidden = graph.call_function(aten.logical_not.default, (mask,))
            zeros = graph.call_function(aten.zeros_like.default, (mask,), {"dtype": dtype})
            added = graph.call_function(aten.masked_fill.Scalar, (zeros, hidden, -math.inf))
        number = torch.zeros_like(seen, dtype=dtype)
        for new, value in ((hidden, seen), (zeros, number), (added, number)):
            new.meta = _origin_of(node) | {"val": value}
        if len(node.args) > 3:
            node.update_arg(3, added)
        else:
            node.update_kwarg("attn_mask", added)


def _stop_at_padding(graph: Any) -> None:
    """Has embeddings with a padding_idx leave its row without a gradient, as torch does: ONNX's Gather knows of none."""
    aten = torch.ops.aten
    for node in list(graph.nodes):
        padding = node.args[2] if len(node.args) > 2 else node.kwargs.get("padding_idx", -1)
        if node.target is not aten.embedding.default or padding < 0:
            continue
        with graph.inserting_after(node):
            constant = graph.call_function(aten.detach.default, (node,))
        with graph.inserting_after(constant):
            here = graph.call_function(aten.eq.Scalar, (node.args[1], padding))
        with graph.inserting_after(here):
            rows = graph.call_function(aten.unsqueeze.default, (here, -1))
        with graph.inserting_after(rows):
            found = graph.call_function(aten.where.self, (rows, constant, node))
        for made in (constant, here, rows, found):
            made.meta = _origin_of(node)
        found.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(found, delete_user_cb=lambda user: user not in (constant, found))


def _drop_assertions(graph: Any) -> None:
    """Leaves out what only checks values, as torch.distributions does with its arguments: ONNX has no form for it."""
    aten = torch.ops.aten
    checks = (aten._assert_async.msg, aten._assert_async.default, aten._assert_tensor_metadata.default)
    found = [n for n in graph.nodes if n.target in checks]
    for node in found:
        graph.erase_node(node)
    if found:
        graph.eliminate_dead_code()


def _drop_idle_squeezes(graph: Any) -> None:
    """Leaves out a squeeze of a dimension that is not 1, which does nothing in torch and is wrong in ONNX."""
    for node in list(graph.nodes):
        if node.target is torch.ops.aten.squeeze.dim:
            size = node.args[0].meta["val"].shape[node.args[1]] if node.args[0].meta["val"].dim() > 0 else 1
            if isinstance(size, int) and size != 1:
                node.replace_all_uses_with(node.args[0])
                graph.erase_node(node)


def _pool_adaptively(graph: Any) -> None:
    """Writes adaptive maxima as those of windows, where all windows are of one size: the exporter has no form for them."""
    aten = torch.ops.aten
    windows = {aten.adaptive_max_pool1d.default: aten.max_pool1d.default, aten.adaptive_max_pool2d.default: aten.max_pool2d.default,
               aten.adaptive_max_pool3d.default: aten.max_pool3d.default}  # fmt: skip
    for node in list(graph.nodes):
        if node.target not in windows or any(user.args[1] != 0 and user.users for user in node.users):  # else it is asked where the maxima are
            continue
        size = node.args[1]
        planes = list(node.args[0].meta["val"].shape[-len(size) :])
        if not all(isinstance(have, int) and have % want == 0 for have, want in zip(planes, size)):
            continue
        window = [have // want for have, want in zip(planes, size)]
        with graph.inserting_before(node):
            found = graph.call_function(windows[node.target], (node.args[0], window, window))
        found.meta = {**node.meta, "val": node.meta["val"][0]}
        for user in list(node.users):
            user.replace_all_uses_with(found)
            graph.erase_node(user)
        graph.erase_node(node)


def _convolve_without_bias(graph: Any) -> None:
    """Has convolutions of volumes without a bias be what the exporter writes without one: to these it adds one of a wrong shape."""
    aten = torch.ops.aten
    defaults = {"bias": None, "stride": [1, 1, 1], "padding": [0, 0, 0], "dilation": [1, 1, 1], "groups": 1}
    for node in graph.nodes:
        if node.target is aten.conv3d.default:
            said = {**defaults, **dict(zip(list(defaults), node.args[2:])), **node.kwargs}
            if said["bias"] is None:
                node.target = aten.convolution.default
                node.args = (*node.args[:2], None, said["stride"], said["padding"], said["dilation"], False, [0, 0, 0], said["groups"])
                node.kwargs = {}


def _divide_complex(graph: Any) -> None:
    """Writes what moves complex numbers or scales them as the same of their two parts, a last dimension; the exporter has it for real ones alone."""
    aten = torch.ops.aten
    for node in list(graph.nodes):
        if node.op != "call_function" or not _is_complex(node):
            continue
        x, *rest = node.args
        if node.target is aten.mul.Tensor and not _is_complex(x):
            x, rest = rest[0], [x]
        rank = x.meta["val"].dim() if _is_complex(x) else 0
        if node.target is aten.unsqueeze.default:
            rest = [rest[0] % (rank + 1)]
        elif node.target is aten.select.int:
            rest = [rest[0] % rank, rest[1]]
        elif node.target is aten.expand.default:
            rest = [[*rest[0], 2]]
        elif node.target is aten.repeat.default:
            rest = [[*rest[0], 1]]
        elif node.target not in (aten.mul.Tensor, aten.div.Tensor) or _is_complex(rest[0]) or not _is_complex(x):
            continue
        made = []
        with graph.inserting_before(node):

            def call(target: Any, *arguments: Any) -> Any:
                made.append(graph.call_function(target, arguments))
                return made[-1]

            if node.target in (aten.mul.Tensor, aten.div.Tensor) and isinstance(rest[0], torch.fx.Node):
                rest = [call(aten.unsqueeze.default, rest[0], -1)]
            call(aten.view_as_complex.default, call(node.target, call(aten.view_as_real.default, x), *rest))
        for one in made:
            one.meta = _origin_of(node)
        made[-1].meta["val"] = node.meta["val"]
        node.replace_all_uses_with(made[-1])
        graph.erase_node(node)


def _is_complex(of: Any) -> bool:
    """Whether it is a node whose value is a complex tensor."""
    value = of.meta.get("val") if isinstance(of, torch.fx.Node) else None
    return isinstance(value, torch.Tensor) and value.is_complex()


def _log_sigmoid(self: torch.Tensor) -> torch.Tensor:
    """Without the exporter's log(sigmoid(x)), which is -inf from x = -104 on."""
    return torch.minimum(self, torch.zeros_like(self)) - torch.log(torch.exp(-torch.abs(self)) + 1)


def _cdist(x1: torch.Tensor, x2: torch.Tensor, p: float = 2.0, compute_mode: Optional[int] = None) -> torch.Tensor:
    """Distances of all pairs of rows; where they are 0, so is the gradient, as in torch."""
    apart = torch.abs(x1.unsqueeze(-2) - x2.unsqueeze(-3))
    if p == 1:
        return apart.sum(-1)
    powers = apart.pow(p).sum(-1)
    equal = powers == 0
    return torch.where(equal, torch.zeros_like(powers), torch.where(equal, torch.ones_like(powers), powers).pow(1 / p))


def _binary_cross_entropy(
    self: torch.Tensor, target: torch.Tensor, weight: Optional[torch.Tensor] = None, pos_weight: Optional[torch.Tensor] = None,
    reduction: int = 1,
) -> torch.Tensor:
    log_p = _log_sigmoid(self)
    positive = log_p if pos_weight is None else log_p * pos_weight
    terms = -(target * positive + (1 - target) * (log_p - self))  # log(1 - sigmoid(x)) = log(sigmoid(x)) - x
    terms = terms if weight is None else terms * weight
    return terms if reduction == 0 else terms.sum() if reduction == 2 else terms.mean()


def _loses(node: Any) -> bool:
    """Whether ONNX's loss has no place for what the node does: smoothing, and targets that are probabilities."""
    smoothing = node.args[5] if len(node.args) > 5 else node.kwargs.get("label_smoothing", 0.0)
    return smoothing != 0.0 or node.args[1].meta["val"].is_floating_point()


def _cross_entropy(
    self: torch.Tensor, target: torch.Tensor, weight: Optional[torch.Tensor] = None, reduction: int = 1, ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """torch.nn.functional.cross_entropy, by its documentation's formulas; classes are dimension 1, or 0 of a vector."""
    axis = 1 if self.dim() > 1 else 0
    classes = self.shape[axis]
    log_p = F.log_softmax(self, axis)
    scale = weight.reshape([classes if d == axis else 1 for d in range(self.dim())]) if weight is not None else None
    if target.is_floating_point():
        smoothed = target * (1 - label_smoothing) + label_smoothing / classes
        terms = -(log_p * smoothed * scale if scale is not None else log_p * smoothed).sum(axis)
        return _reduced(terms, torch.full((), float(terms.numel())), reduction)
    counts = (target != ignore_index).to(self.dtype)
    place = torch.where(target == ignore_index, torch.zeros_like(target), target).unsqueeze(axis)
    weights = counts if weight is None else counts * torch.gather(scale.expand_as(self), axis, place).squeeze(axis)  # pyright: ignore[reportOptionalMemberAccess]
    likelihood = -torch.gather(log_p, axis, place).squeeze(axis) * weights
    uniform = -(log_p if scale is None else log_p * scale).sum(axis) * counts
    return _reduced((1 - label_smoothing) * likelihood + label_smoothing / classes * uniform, weights.sum(), reduction)


def _reduced(terms: torch.Tensor, divisor: torch.Tensor, reduction: int) -> torch.Tensor:
    return terms if reduction == 0 else terms.sum() if reduction == 2 else terms.sum() / divisor
