"""Buffers and attributes that forward writes: only batch norms' statistics are part of training here."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from ..errors import PartitaError
from .where import place_in

__all__ = ["refuse_written_buffers", "written_attributes_told"]

_PLAIN = (bool, int, float, str)


def refuse_written_buffers(graph: Any, module: nn.Module) -> None:
    """PartitaError where the loss depends on a buffer that forward writes: every step would read what it was at first.

    A warning where it does not, but for batch norms' counters: training is the same, and the buffer stays as it was.
    `graph`: the module's step as it was captured, with its writes in place.
    """
    buffers = {name: buffer.split(".", 1)[-1] for name, buffer in graph.graph_signature.inputs_to_buffers.items()}
    modules = dict(module.named_modules(remove_duplicate=False))
    roots = {node: buffers[node.name] for node in graph.graph.nodes if node.op == "placeholder" and node.name in buffers}
    written: dict[str, Any] = {}
    _follow(graph.graph_module, roots, written)
    read = _read(graph.graph, roots) if written else set()
    for name, place in written.items():
        owner = modules.get(name.rpartition(".")[0])
        if isinstance(owner, nn.modules.batchnorm._NormBase):
            continue
        if name in read:
            raise PartitaError(
                f"{place_in(place)}: forward writes the buffer {name!r}, on which the loss depends. Training here writes parameters and the statistics of "
                "batch norms alone, and would go on with what the buffer is now. Put that part into eval() (the module in train()), take it away "
                "(torch.nn.utils.parametrize.remove_parametrizations takes spectral_norm away), or compute the value from the batch")
        warnings.warn(f"{name} is written by forward, and the loss does not depend on it: it stays as it is", stacklevel=3)
    for name, owner in modules.items():
        if isinstance(owner, nn.modules.instancenorm._InstanceNorm) and owner.training and owner.running_mean is not None:
            warnings.warn(f"{name}: running statistics of an instance norm are not updated: in eval() it would normalize by those that it has now", stacklevel=3)


@contextmanager
def written_attributes_told(module: nn.Module) -> Iterator[None]:
    """Warns where the module's forward changes numbers or strings of it, as a counter of steps: a capture has one value of each, and
    torch.export puts them back."""
    before: dict[str, Any] = {}
    changed: dict[str, tuple[Any, Any]] = {}

    def compare(*_: Any) -> None:
        changed.update({name: (before[name], value) for name, value in _attributes(module).items() if name in before and value != before[name]})

    hooks = [module.register_forward_pre_hook(lambda *_: before.update(_attributes(module))), module.register_forward_hook(compare)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
    for name, (was, value) in changed.items():
        warnings.warn(f"{name} is changed by forward ({was!r} to {value!r}): every step of the program has the value with which it was captured; "
                      "what follows the step is a schedule, or an input", stacklevel=4)  # fmt: skip


def _attributes(module: nn.Module) -> dict[str, Any]:
    """Numbers, strings and tuples of these, of a module and its parts, by name."""
    return {f"{path}.{name}".lstrip("."): value for path, part in module.named_modules() for name, value in vars(part).items()
            if isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(isinstance(v, _PLAIN) for v in value))}  # fmt: skip


def _follow(graph: Any, roots: dict[Any, str], written: dict[str, Any]) -> list[Any]:
    """Adds to `roots` the nodes that are a buffer, whole or in part, and to `written` the first node that writes each.
    Returns which buffers the graph's results are."""
    results: dict[Any, list[Any]] = {}  # of a node with several
    for node in graph.graph.nodes:
        if node.op == "output":
            return [roots.get(a) if isinstance(a, torch.fx.Node) else None for a in tree_leaves(node.args)]
        if node.op != "call_function":
            continue
        if node.target is operator.getitem and node.args[0] in results:
            found = results[node.args[0]]
            if node.args[1] < len(found) and found[node.args[1]] is not None:
                roots[node] = found[node.args[1]]
        elif isinstance(node.target, torch._ops.OpOverload):
            _of_operator(node, roots, written)
        elif isinstance(node.target, torch._ops.HigherOrderOperator):
            results[node] = _of_parts(graph, node, roots, written)
    return []


def _of_operator(node: Any, roots: dict[Any, str], written: dict[str, Any]) -> None:
    schema = node.target._schema
    given = [*zip(schema.arguments, node.args), *((a, node.kwargs[a.name]) for a in schema.arguments if a.name in node.kwargs)]
    aliases = [r.alias_info.before_set for r in schema.returns if r.alias_info is not None]
    for argument, value in given:
        if argument.alias_info is None or not isinstance(value, torch.fx.Node) or value not in roots:
            continue
        if argument.alias_info.is_write:
            written.setdefault(roots[value], node)
        if any(argument.alias_info.before_set & a for a in aliases):
            roots[node] = roots[value]


def _of_parts(graph: Any, node: Any, roots: dict[Any, str], written: dict[str, Any]) -> list[Any]:
    """Of graphs within the graph: what runs without gradients, under autocast, or by a condition."""
    arguments = tree_leaves([node.args, node.kwargs])
    parts = [a for a in arguments if isinstance(a, torch.fx.Node) and a.op == "get_attr" and isinstance(getattr(graph, str(a.target), None), torch.fx.GraphModule)]
    found: list[Any] = []
    for part in parts:
        inner = getattr(graph, str(part.target))
        places = [n for n in inner.graph.nodes if n.op == "placeholder"]
        operands: Sequence[Any] = [a for a in arguments if isinstance(a, torch.fx.Node) and a not in parts][-len(places) or len(arguments) :]
        found = _follow(inner, {place: roots[value] for place, value in zip(places, operands) if value in roots}, written)
    return found


def _read(graph: torch.fx.Graph, roots: dict[Any, str]) -> set[str]:
    """Buffers that what the graph returns depends on."""
    seen: set[Any] = set()
    ahead = [n for n in graph.nodes if n.op == "output"]
    while ahead:
        node = ahead.pop()
        if node not in seen:
            seen.add(node)
            ahead += node.all_input_nodes
    return {name for node, name in roots.items() if node in seen}
