"""Metrics of a run to the trackers people use, by their own libraries.

    program.train(data, steps=1000, callbacks=[partita.callbacks.WandB(project="gpt2")])

Each takes `every`: the steps from one that is written to the next. A tracker's library is imported when its callback is made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from .errors import PartitaError
from .run import Metrics

__all__ = ["MLflow", "TensorBoard", "WandB"]


class _Tracker:
    """A callback of `Program.start`: writes the numbers of every so many steps, and of all that evaluate."""

    def __init__(self, every: int):
        if every < 1:
            raise PartitaError(f"every: expected at least 1, found {every}")
        self._every = every

    def __call__(self, metrics: Metrics) -> None:
        if metrics.step % self._every == 0 or metrics.evaluation_loss is not None:
            self._write(_numbers(metrics.values), metrics.step)

    def _write(self, numbers: dict[str, float], step: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Called when the run has ended."""


class TensorBoard(_Tracker):
    """Event files in `folder`, by torch.utils.tensorboard (`pip install tensorboard`)."""

    def __init__(self, folder: str | Path, *, every: int = 1):
        super().__init__(every)
        self._writer: Any = _library("torch.utils.tensorboard", "torch tensorboard").SummaryWriter(str(folder))

    def _write(self, numbers: dict[str, float], step: int) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WandB(_Tracker):
    """A run of Weights & Biases (`pip install wandb`): `run`, or a new one that wandb.init(**init) makes and `close` finishes.

    mode="offline" writes without a connection.
    """

    def __init__(self, run: Any = None, *, every: int = 1, **init: Any):
        super().__init__(every)
        if run is not None and init:
            raise PartitaError(f"run is there already; {', '.join(init)} would be of a new one")
        self._own = run is None
        self._run: Any = _library("wandb", "wandb").init(**init) if run is None else run

    def _write(self, numbers: dict[str, float], step: int) -> None:
        self._run.log(numbers, step=step)

    def close(self) -> None:
        if self._own:
            self._run.finish()


class MLflow(_Tracker):
    """A run of MLflow (`pip install mlflow`), of the experiment and at the store that are named; by default those of its own settings."""

    def __init__(self, experiment: str | None = None, *, tracking_uri: str | None = None, run_name: str | None = None, every: int = 1):
        super().__init__(every)
        self._client: Any = _library("mlflow", "mlflow").MlflowClient(tracking_uri)
        name = experiment or "Default"
        found = self._client.get_experiment_by_name(name)
        self._run = self._client.create_run(found.experiment_id if found else self._client.create_experiment(name), run_name=run_name).info.run_id

    def _write(self, numbers: dict[str, float], step: int) -> None:
        for name, value in numbers.items():
            self._client.log_metric(self._run, name, value, step=step)

    def close(self) -> None:
        self._client.set_terminated(self._run)


def _numbers(values: Mapping[str, Any], front: str = "") -> dict[str, float]:
    """All numbers, those within a mapping under `mapping/name`; nothing that is not finite, which some trackers refuse."""
    found: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found.update(_numbers(value, f"{front}{name}/"))
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and name != "step":
            found[front + name] = float(value)
    return found


def _library(name: str, packages: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise PartitaError(f"this callback needs another package: {error}; pip install {packages}", 2) from error
