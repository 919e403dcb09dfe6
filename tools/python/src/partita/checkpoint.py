"""Checkpoints: what training left, whole tensors whatever the layout was."""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import load_file

from .folders import TemporaryFolder
from .programs import run_partita

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

__all__ = ["Checkpoint"]


class Checkpoint:
    """A checkpoint in a folder that a run wrote; of a folder of checkpoints, the newest."""

    def __init__(self, path: Path, owner: TemporaryFolder | None = None):
        self.path, self._owner = path, owner  # of a program in a temporary folder, which stays while this does
        self._about: dict[str, Any] = json.loads(run_partita("checkpoint", "inspect", path, "--no-verify", "--json"))

    @property
    def step(self) -> int:
        """Optimizer steps taken."""
        return int(self._about["step"])

    def parameters(self, *, ema: bool = False) -> dict[str, np.ndarray]:
        """Trained parameters and running statistics, by name. Every tensor's checksum is compared.

        `ema`: the moving averages of the parameters, of a run whose recipe has `ema`, in their place.
        """
        return self._export(ema=ema)[0]

    def optimizer_states(self) -> dict[str, np.ndarray]:
        """The optimizer's states under torch's names: `fc.weight.exp_avg`, …; `step` counts the updates."""
        return {name: value for name, value in self._export(optimizer=True)[1].items() if not name.startswith("ema/")}

    def load_into(self, module: nn.Module, *, ema: bool = False) -> None:
        """Writes what was trained (`ema`: the averages) into the module: parameters, tied ones too, and buffers of batch norms.

        Strict: a trained tensor without a place in the module, a trainable parameter that was not trained, or a shape that
        differs is a PartitaError, and the module stays as it was. Trainable parameters that no gradient of the exported loss
        reaches, and those that were frozen, stay as they are.
        Running variances become those of the sample, as torch keeps them; ONNX's, and so a checkpoint's, are the population's.
        That needs the program of an export: a checkpoint that does not lie in its folder is loaded as it is, with a warning.
        """
        from .torch.states import load_parameters, sample_variances

        tensors, runs, facts = self.parameters(ema=ema), self.step, self._facts()
        if facts:
            runs *= facts["runs"]
            sample_variances(tensors, facts["first"], facts["variances"], facts["samples"], runs)
        elif any(name.endswith(".running_var") for name in tensors):
            warnings.warn("running variances are loaded as ONNX keeps them, of the population: no program of an export lies beside this checkpoint, "
                          "which would know how many values a batch had", stacklevel=2)  # fmt: skip
        idle = [name for name in facts.get("trained", []) if name not in tensors]
        if idle:
            warnings.warn(f"{', '.join(idle)}: frozen, or no gradient reaches it: it stays as it is", stacklevel=2)
        load_parameters(module, tensors, runs, [*facts.get("unused", []), *idle], facts.get("variances", {}))

    def save_pretrained(self, folder: str | Path, like: str | Path, *, ema: bool = False) -> None:
        """A folder that from_pretrained() loads: shards, names, dtypes, config.json and tokenizer as in `like`, a folder that
        transformers, peft or diffusers wrote for this model."""
        run_partita("checkpoint", "export", self.path, "--hf", folder, "--like", like, *(["--ema"] if ema else []))

    def optimizer_state_into(self, optimizer: Optimizer | Sequence[Optimizer], module: nn.Module) -> None:
        """Writes moments and step counts into torch's optimizer, over the module's parameters. Strict as `load_into`."""
        from .torch.states import load_optimizer_states

        load_optimizer_states(optimizer, module, self.optimizer_states())

    def _facts(self) -> dict[str, Any]:
        """What an export found in the module, of the program in whose folder this lies, and how the program runs its graph; else nothing."""
        folder = next((f for f in list(self.path.absolute().parents)[:2] if (f / "module.json").is_file()), None)
        if folder is None:
            return {}
        facts = json.loads((folder / "module.json").read_text(encoding="utf-8"))
        manifest = json.loads((folder / "bundle" / "manifest.json").read_text(encoding="utf-8"))
        form, first = manifest["form"], load_file(folder / "bundle" / "initial.safetensors") if facts["variances"] else {}
        runs = max(1, manifest["samples_per_step"] // form["graph_batch"])  # of a step: each moves the statistics
        return {**facts, "first": first, "samples": form["graph_batch"] // form["sample_groups"], "runs": runs}

    def _export(self, optimizer: bool = False, ema: bool = False) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        with tempfile.TemporaryDirectory(prefix="partita-") as folder:
            parameters, states = Path(folder) / "parameters.safetensors", Path(folder) / "optimizer.safetensors"
            flags = [*(["--optimizer", states] if optimizer else []), *(["--ema"] if ema else [])]
            run_partita("checkpoint", "export", self.path, "-o", parameters, *flags)
            return load_file(parameters), load_file(states) if optimizer else {}

    def __repr__(self) -> str:
        return f"Checkpoint({str(self.path)!r}, step {self.step})"
