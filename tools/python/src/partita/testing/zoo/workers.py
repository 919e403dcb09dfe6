"""Architectures judged in processes of their own, each with one thread: what brings one down costs one row."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from .case import Case

__all__ = ["outcomes"]

Outcome = TypeVar("Outcome")
_PYTHON = multiprocessing.get_context("spawn")


def outcomes(names: list[str], jobs: int, judge: Callable[[Case], Outcome], lost: Callable[[str, str], Outcome]) -> Iterator[Outcome]:
    """Of `judge`, as they are done, `jobs` at a time; of `lost`, of a name and a reason, where a process ended instead."""
    left = list(reversed(names))
    busy: dict[Connection, tuple[Any, str]] = {}
    for _ in range(min(jobs, len(left))):
        _ask(*_started(judge), left.pop(), busy)
    while busy:
        for pipe in multiprocessing.connection.wait(list(busy)):
            assert isinstance(pipe, Connection)
            worker, name = busy.pop(pipe)
            try:
                yield pipe.recv()
            except EOFError:
                worker.join()
                yield lost(name, f"its process ended with {worker.exitcode}")
                worker, pipe = _started(judge) if left else (worker, pipe)
            if left:
                _ask(worker, pipe, left.pop(), busy)
            else:
                pipe.close()


def _started(judge: Callable[[Case], Any]) -> tuple[Any, Connection]:
    here, there = _PYTHON.Pipe()
    worker = _PYTHON.Process(target=_work, args=(there, judge), daemon=True)
    worker.start()
    there.close()
    return worker, here


def _ask(worker: Any, pipe: Connection, name: str, busy: dict[Connection, tuple[Any, str]]) -> None:
    pipe.send(name)
    busy[pipe] = worker, name


def _work(pipe: Connection, judge: Callable[[Case], Any]) -> None:
    import torch

    from .catalog import catalog

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    cases = catalog()
    while True:
        try:
            name = pipe.recv()
        except EOFError:
            return
        pipe.send(judge(cases[name]))
