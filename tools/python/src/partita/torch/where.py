"""Where in a module something cannot be exported: its path and the Python line."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

__all__ = ["CallStack", "place_in", "place_of_node"]

_TORCH = str(Path(torch.__file__).parent)


class CallStack:
    """Which modules are being called, while a graph is captured."""

    def __init__(self, root: nn.Module):
        self._names = {id(m): name for name, m in root.named_modules()}
        self._called: list[str] = []

    def __enter__(self) -> CallStack:
        self._hooks = [register_module_forward_pre_hook(self._enter), register_module_forward_hook(self._leave)]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def place(self, error: BaseException) -> str:
        """"encoder.layers.0 (model.py:12, `x = y[mask]`)" of what was called last and did not return."""
        frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_TORCH) and "/partita/torch/" not in f.filename]
        line = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno}, `{(frames[-1].line or '').strip()}`)" if frames else ""
        return _path(self._called[-1] if self._called else "") + line

    def _enter(self, module: nn.Module, _: Any) -> None:
        if id(module) in self._names:
            self._called.append(self._names[id(module)])

    def _leave(self, module: nn.Module, _: Any, __: Any) -> None:
        if id(module) in self._names and self._called:
            self._called.pop()


def place_in(node: Any) -> str:
    """"encoder.layers.0 (model.py:12, `x = y[mask]`)" of a node of a captured graph."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    path = re.sub(r"^L\['self'\]\.?", "", stack[-1][0]) if stack else ""
    lines = re.findall(r'File "([^"]+)", line (\d+), in \S+\n\s*(.*)', node.meta.get("stack_trace") or "")
    lines = [line for line in lines if "/partita/torch/" not in line[0]]
    own = [line for line in lines if not line[0].startswith(_TORCH)] or lines
    line = f" ({Path(own[-1][0]).name}:{own[-1][1]}, `{own[-1][2].strip()}`)" if own else ""
    return _path(path) + line


def place_of_node(graph: Any, error: BaseException) -> str:
    """The same of the node of a captured graph that the exporter failed at, and why."""
    reasons, cause = [], error
    while cause is not None:
        reasons.append(str(cause).strip())
        cause = cause.__cause__
    text = "\n".join(reasons)
    reason = next((line.strip() for line in reasons[-1].splitlines() if line.strip()), type(error).__name__)
    nodes = {n.name: n for n in graph.graph.nodes}
    failed = re.search(r"translating node %(\w+)[^\n]*?target=torch\.ops\.([\w.]+)\]", text)
    made = failed is not None and failed[1] not in nodes  # by the exporter, of what no node says; its operands do
    for name in re.findall(r"%(\w+)", text):
        if name not in nodes or nodes[name].op != "call_function":
            continue
        node = nodes[name]
        what = f"what reads this, {failed[2]}," if failed is not None and made else str(node.target)
        return f"{place_in(node)}: {what} has no ONNX form: {reason}"
    return f"cannot be written as ONNX: {reason}"


def _path(name: str) -> str:
    return name.removeprefix("module.") if name not in ("", "module") else "the module"
