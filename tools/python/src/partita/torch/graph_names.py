"""Names and modes of a module, in the ONNX graph that torch's exporter made of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ..errors import PartitaError

__all__ = ["divide_complex_weights", "mark_batch_norms", "mark_detached", "mark_dropouts", "name_weights", "without_gradient"]

_PREFIX = "module."  # of the module within the step that is exported


def name_weights(model: Any, module: nn.Module, inputs: set[str]) -> tuple[list[str], list[str]]:
    """Gives initializers the names that named_parameters() and named_buffers() have.

    Of tied weights the first of its names. Returns the trained parameters, and those that the graph does without.
    """
    first = {id(p): name for name, p in module.named_parameters()}
    tied = {name: first[id(p)] for name, p in module.named_parameters(remove_duplicate=False)}
    graph, new = model.graph, {}
    for old in list(graph.initializers):
        plain = old.removeprefix(_PREFIX)
        new[old] = tied.get(plain, plain)
    names = set(new.values())
    clash = names & inputs
    if clash:
        raise PartitaError(f"the example's {clash.pop()!r} is called like a parameter of the module; rename one of them")
    _rename_values(graph, names | inputs)
    for old, name in new.items():
        value = graph.initializers.pop(old)
        value.name = name
        graph.initializers[name] = value
    parameters = dict(module.named_parameters())
    trained = [name for name, p in parameters.items() if p.requires_grad and name in names]
    unused = [name for name, p in parameters.items() if p.requires_grad and name not in names]
    if not trained:
        raise PartitaError("nothing to train: no parameter with requires_grad that the loss depends on")
    return trained, unused


def _rename_values(graph: Any, kept: set[str]) -> None:
    """Gives values that are called like a weight or an input names of their own: the exporter calls a value by its
    operator (`t`, `mul`), and inputs are named after the values are."""
    taken = {value.name for node in graph for value in node.outputs} | kept
    for node in graph:
        for value in node.outputs:
            if value.name in kept:
                while value.name in taken:
                    value.name += "_value"
                taken.add(value.name)


def divide_complex_weights(model: Any) -> None:
    """Writes complex initializers as their two parts, a last dimension: the exporter does so with values, and with these since PyTorch 2.10."""
    for value in model.graph.initializers.values():
        tensor = value.const_value
        raw = getattr(tensor, "raw", None)
        if isinstance(raw, torch.Tensor) and raw.is_complex():
            value.const_value = type(tensor)(torch.view_as_real(raw).contiguous(), name=tensor.name)


def mark_batch_norms(model: Any, module: nn.Module, samples: int) -> dict[str, dict[str, float]]:
    """Has the batch norms that train normalize by the batch and update their statistics, as torch does: the exporter
    writes all of them as for inference.

    `samples`: of the example. Returns, of each running variance, how many values a sample has ("values"), the share
    that an update keeps ("keeps"), how often a step updates it ("times"), and how many batches it has seen ("batches").
    """
    variances: dict[str, dict[str, float]] = {}
    for node in model.graph:
        if node.op_type != "BatchNormalization" or node.inputs[3] is None:
            continue
        node.resize_outputs(1)
        name = str(_source(node.inputs[3]).name)
        norm = _owner(module, name)
        if norm is None or not norm.training:
            continue
        path = name.rpartition(".")[0]
        momentum = getattr(norm, "momentum", 0.1)
        if momentum is None:
            raise PartitaError(f"{path}: momentum=None (a running mean of all batches) has no counterpart; give it a number")
        node.attributes["momentum"] = _attribute(node.attributes["epsilon"], "momentum", 1.0 - float(momentum))
        node.attributes["training_mode"] = _attribute(node.attributes["epsilon"], "training_mode", 1)
        node.resize_outputs(3)
        for k, what in ((1, "mean"), (2, "variance")):
            node.outputs[k].name = f"{node.outputs[0].name}_next_{what}"
        rows, _, *rest = node.inputs[0].shape
        values = (rows / samples if isinstance(rows, int) else 1) * math.prod(int(d) for d in rest)  # rows: of a sample there may be several
        about = variances.setdefault(str(_source(node.inputs[4]).name), {"values": values, "keeps": 1.0 - float(momentum), "times": 0, "batches": _batches(norm)})
        about["times"] += 1
        if about["values"] != values:
            raise PartitaError(
                f"{path}: this batch norm is called more than once in a step, on batches of different sizes, and how its running variance would come back to "
                "torch is not known then. Call it once on the concatenated batches, give each place one of its own, or set track_running_stats=False")
    return variances


def mark_detached(model: Any) -> None:
    """Has detach() end the gradient: the exporter writes it as the Identity, through which one flows."""
    for node in model.graph:
        if node.op_type == "Identity" and "aten.detach" in node.metadata_props.get("pkg.torch.onnx.fx_node", ""):
            node.domain, node.op_type = "partita", "StopGradient"
            model.opset_imports["partita"] = 1


def mark_dropouts(model: Any) -> None:
    """Has the dropout within scaled_dot_product_attention be one that trains: the exporter leaves out the input that says so, which means
    inference. That of modules has it, and those in eval() have none."""
    from onnxscript import ir

    for node in [n for n in model.graph if n.op_type == "Dropout" and len(n.inputs) == 2]:
        training = ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.tensor(True))], name=f"{node.name}_training")
        training.outputs[0].name = f"{node.outputs[0].name}_training"
        model.graph.insert_before(node, training)
        node.resize_inputs(3)
        node.replace_input_with(2, training.outputs[0])


def without_gradient(model: Any, names: Sequence[str]) -> list[str]:
    """Of initializers by name, those that the loss depends on through detach() alone: torch's gradient of them is None, and its optimizers
    pass them over, where one of zeros would have them decay."""
    ahead, seen = [value.producer() for value in model.graph.outputs], set[Any]()
    reached = set[str]()
    while ahead:
        node = ahead.pop()
        if node is not None and node not in seen and node.op_type != "StopGradient":
            seen.add(node)
            reached.update(value.name for value in node.inputs if value is not None)
            ahead += [value.producer() for value in node.inputs if value is not None]
    return [name for name in names if name not in reached]


def _batches(norm: nn.Module) -> int:
    counted = getattr(norm, "num_batches_tracked", None)
    return int(counted) if isinstance(counted, torch.Tensor) else 0


def _source(value: Any) -> Any:
    """What a value is a copy of."""
    while (node := value.producer()) is not None and node.op_type == "Identity":
        value = node.inputs[0]
    return value


def _attribute(like: Any, name: str, value: float | int) -> Any:
    kind = type(like.type)  # onnx_ir's AttributeType, which comes with torch's exporter
    return type(like)(name, kind.INT if isinstance(value, int) else kind.FLOAT, value)


def _owner(module: nn.Module, buffer: str) -> nn.Module | None:
    path, _, name = buffer.rpartition(".")
    try:
        owner = module.get_submodule(path)
    except AttributeError:
        return None
    return owner if isinstance(getattr(owner, name, None), torch.Tensor) else None
