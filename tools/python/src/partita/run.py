"""A run of a program: its metrics while it goes on."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .folders import TemporaryFolder
from .programs import error_of, tell

__all__ = ["Callback", "Metrics", "Run"]

_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Metrics:
    """What one optimizer step reports. NaN where a loss or norm is not finite, None where it was not measured."""

    step: int  # from 0, counted from the start of training
    loss: float
    lr: float | None  # learning rate of the step
    grad_norm: float | None  # of all gradients, before clipping
    seconds: float  # wall time of the step
    samples_per_second: float | None
    evaluation_loss: float | None  # after this step, where it evaluated
    values: dict[str, Any]  # all of them, by their names in metrics files


Callback = Callable[[Metrics], object]


class Run:
    """Training that goes on in a process of its own. Iterating yields the Metrics of each step as it is done.

    No Python takes part in a step: the process goes on whether or not anybody iterates. `wait` returns at its end.
    """

    def __init__(self, command: Sequence[str | Path], metrics: Path, steps: int | None, callbacks: Sequence[Callback], progress: bool | None,
                 owner: TemporaryFolder | None = None):  # fmt: skip
        self._owner = owner  # of the program's folder, where it is a temporary one: it stays while the process runs
        self._path, self._callbacks, self._steps = metrics, callbacks, steps
        self._said = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        self._process = subprocess.Popen([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._said)
        self._steps_seen = self._read(progress)
        self.history: list[Metrics] = []  # of the steps that have been iterated over

    def __iter__(self) -> Iterator[Metrics]:
        return self._steps_seen

    def wait(self) -> list[Metrics]:
        """Runs to the end and returns the metrics of all steps. Raises PartitaError where the run failed."""
        for _ in self:
            pass
        return self.history

    @property
    def is_on(self) -> bool:
        """Whether its process has not ended."""
        return self._process.poll() is None

    def stop(self) -> None:
        """Ends the run after the step at hand; its checkpoint is written."""
        self._process.terminate()

    def _read(self, progress: bool | None) -> Iterator[Metrics]:
        bar = _bar(self._steps, progress)
        try:
            for line in self._lines():
                m = _metrics(json.loads(line))
                self.history.append(m)
                for callback in self._callbacks:
                    callback(m)
                if bar is not None:
                    bar.set_postfix(loss=f"{m.loss:.4f}", refresh=False)
                    bar.update(1)
                yield m
            self._finish()
        finally:
            if bar is not None:
                bar.close()
            if self._process.poll() is None:  # a callback or the loop's body failed
                self._process.terminate()
                self._process.wait()
            self._owner = None

    def _lines(self) -> Iterator[str]:
        """Whole lines of the metrics file, until the process has ended and all is read."""
        part = ""
        while not self._path.exists():
            if self._process.poll() is not None:
                return
            time.sleep(_POLL_SECONDS)
        with open(self._path, encoding="utf-8") as file:
            while True:
                ended = self._process.poll() is not None
                part += file.read()
                *lines, part = part.split("\n")
                yield from lines
                if ended:
                    return
                if not lines:
                    time.sleep(_POLL_SECONDS)

    def _finish(self) -> None:
        code = self._process.wait()
        self._said.seek(0)
        said = self._said.read()
        for callback in self._callbacks:
            close = getattr(callback, "close", None)
            if close is not None:
                close()
        if code == 143:  # stopped, with its checkpoint written
            return
        if code != 0:
            raise error_of(code, said)
        tell(said)


def _metrics(values: dict[str, Any]) -> Metrics:
    nan = float("nan")
    loss, norm = values.get("loss"), values.get("grad_norm")
    return Metrics(values["step"], nan if loss is None else loss, values.get("lr"), nan if norm is None else norm, values["seconds"],
                   values.get("samples_per_second"), values.get("evaluation_loss"), values)


def _bar(steps: int | None, progress: bool | None) -> Any:
    """tqdm's bar, in a terminal or a notebook; None where it is not wanted or not installed."""
    if progress is False or (progress is None and not sys.stderr.isatty() and "ipykernel" not in sys.modules):
        return None
    try:
        from tqdm.auto import tqdm  # pyright: ignore[reportMissingModuleSource, reportMissingImports]
    except ImportError:
        if progress:
            raise ImportError("progress=True needs tqdm: pip install tqdm") from None
        return None
    return tqdm(total=steps, unit="step")
