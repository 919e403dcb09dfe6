"""Training step by step, in this process: batches from any loop, tokenizer or augmentation."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .errors import PartitaError
from .folders import TemporaryFolder
from .programs import partita_program

__all__ = ["Session", "as_array"]

_ERROR_BYTES = 4096
_DTYPES = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "i64": np.int64, "i32": np.int32, "i16": np.int16, "i8": np.int8,
           "u64": np.uint64, "u32": np.uint32, "u16": np.uint16, "u8": np.uint8, "bool": np.bool_,
           "bf16": np.float32}  # fmt: skip


class Session:
    """All ranks of a program as threads of this process; under torchrun or mpirun, the rank that this process is.

        with program.session() as session:
            for batch in loader:
                loss = session.step(batch)
        program.load_into(module)

    A session goes on where the program's training ended, and leaves a checkpoint when it is closed. The loop and what makes
    the batches are Python; a step is not, and other Python threads run meanwhile.
    """

    def __init__(self, bundle: Path, inputs: Mapping[str, tuple[str, tuple[int, ...]]], samples: int, flags: Sequence[str],
                 owner: TemporaryFolder | None = None):  # fmt: skip
        self._handle = ctypes.c_void_p()
        self._library = _library()
        self._lock = threading.Lock()
        self._owner = owner  # of the program's folder, where it is a temporary one: it stays while the ranks run
        self._names = list(inputs)
        self._specs = [(_DTYPES.get(dtype), (samples, *shape[1:]) if shape else (), dtype) for dtype, shape in inputs.values()]
        self._pointers = (ctypes.c_void_p * len(inputs))()
        self._bytes = (ctypes.c_int64 * len(inputs))()
        self._error = ctypes.create_string_buffer(_ERROR_BYTES)
        self._loss = ctypes.c_double()
        self._last: dict[str, float] = {}  # metrics of a session that is closed
        words, names = _strings(flags), _strings(self._names)
        self._check(self._library.partita_session_open(
            str(bundle).encode(), words, len(flags), names, len(self._names), ctypes.byref(self._handle), self._error, _ERROR_BYTES))  # fmt: skip
        weakref.finalize(self, _close, self._library, self._handle, os.getpid())  # at the latest when Python ends

    def step(self, batch: Mapping[str, Any] | Sequence[Any]) -> float:
        """One optimizer step on a global batch; returns its loss.

        `batch`: an array or tensor for each of the program's inputs, by name, or in the inputs' order: NumPy's, torch's, or
        anything that speaks DLPack. One of the input's own dtype, contiguous and on the CPU, is read where it lies; others
        are copied. Every process of a launcher's gives the same global batch, and its rank reads its own part; a rank that
        does not know the loss returns nan. An error of the program's ends the session, without a checkpoint.
        """
        with self._lock:  # threads step one after the other
            return self._step(batch)

    def _step(self, batch: Mapping[str, Any] | Sequence[Any]) -> float:
        if not self._handle:
            raise PartitaError("the session is closed")
        held = [self._array(k, value) for k, value in enumerate(self._in_order(batch))]
        for k, array in enumerate(held):
            self._pointers[k], self._bytes[k] = array.ctypes.data, array.nbytes
        code = self._library.partita_session_step(
            self._handle, self._pointers, self._bytes, len(held), ctypes.byref(self._loss), self._error, _ERROR_BYTES)  # fmt: skip
        if code:  # the ranks have ended
            said, self._last = self._error.value, self.metrics
            self._library.partita_session_close(self._handle, self._error, _ERROR_BYTES)
            self._handle.value, self._error.value, self._owner = None, said, None
        self._check(code)
        return self._loss.value

    @property
    def metrics(self) -> dict[str, float]:
        """What the last step reported, under the names of a run's metrics file: step (from 0), loss, lr, grad_norm, seconds, …, the
        recipe's own metrics; only what was measured. Empty before the first step."""
        if not self._handle:
            return dict(self._last)
        found: dict[str, float] = {}
        name, value, k = ctypes.c_char_p(), ctypes.c_double(), 0
        while self._library.partita_session_metric(self._handle, k, ctypes.byref(name), ctypes.byref(value)):
            found[(name.value or b"").decode()], k = value.value, k + 1
        return found

    def close(self) -> None:
        """Ends training, with a checkpoint."""
        with self._lock:
            if not self._handle:
                return
            self._last = self.metrics
            handle, self._handle.value = ctypes.c_void_p(self._handle.value), None
            code = self._library.partita_session_close(handle, self._error, _ERROR_BYTES)
            self._owner = None
            self._check(code)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except PartitaError:
            if kind is None:  # else what went wrong first is told
                raise

    def _in_order(self, batch: Mapping[str, Any] | Sequence[Any]) -> list[Any]:
        if isinstance(batch, Mapping):
            missing = [name for name in self._names if name not in batch]
            if missing:
                raise PartitaError(f"batch: nothing for the input {missing[0]!r}; found {', '.join(map(repr, batch)) or 'nothing'}")
            return [batch[name] for name in self._names]
        if len(batch) != len(self._names):
            raise PartitaError(f"batch: {len(batch)} arrays for {len(self._names)} inputs: {', '.join(self._names)}")
        return list(batch)

    def _array(self, k: int, value: Any) -> np.ndarray:
        dtype, shape, said = self._specs[k]
        if dtype is None:
            raise PartitaError(f"batch: {self._names[k]!r} is {said}, which a session does not take")
        array = as_array(value)
        if array.shape != shape:
            raise PartitaError(f"batch: {self._names[k]!r} has shape {array.shape}, expected {shape}")
        integers = array.dtype.kind in "iu" and np.dtype(dtype).kind in "iu"
        if array.dtype.kind != np.dtype(dtype).kind and not integers:
            raise PartitaError(f"batch: {self._names[k]!r} is {array.dtype}, expected {np.dtype(dtype)}")
        if integers and not np.can_cast(array.dtype, dtype):
            held = np.iinfo(dtype)
            for value in map(int, (array.min(), array.max())):
                if not held.min <= value <= held.max:
                    raise PartitaError(f"batch: {self._names[k]!r} holds {value}, which {np.dtype(dtype)} cannot hold")
        array = np.ascontiguousarray(array, dtype)
        return _bf16_bits(array) if said == "bf16" else array

    def _check(self, code: int) -> None:
        if code:
            raise PartitaError(self._error.value.decode(errors="replace"), code)


def as_array(value: Any) -> np.ndarray:
    """The array itself where it lies in host memory. bfloat16, torch's or ml_dtypes', becomes float32: NumPy has none."""
    if isinstance(value, np.ndarray):
        return value.astype(np.float32) if value.dtype.name == "bfloat16" else value
    if hasattr(value, "detach"):  # torch's
        value = value.detach().cpu().resolve_conj().resolve_neg()
        return (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
    return np.from_dlpack(value) if hasattr(value, "__dlpack__") else np.asarray(value)


def _bf16_bits(array: np.ndarray) -> np.ndarray:
    """Of float32 numbers, rounded to the nearest, of two equally near to the even one; uint16."""
    bits = array.view(np.uint32)
    rounded = bits + (0x7FFF + (bits >> 16 & 1))
    return np.asarray(np.where(np.isnan(array), bits | 1 << 22, rounded) >> 16, np.uint16)


def _close(library: ctypes.CDLL, handle: ctypes.c_void_p, process: int) -> None:
    """Ends a session that nobody closed, with a checkpoint; a forked process has none of its threads."""
    if handle and os.getpid() == process:
        library.partita_session_close(handle, ctypes.create_string_buffer(_ERROR_BYTES), _ERROR_BYTES)


def _strings(words: Sequence[str]) -> Any:
    return (ctypes.c_char_p * len(words))(*(w.encode() for w in words))


def _library() -> ctypes.CDLL:
    program = partita_program().resolve()
    places = [program.parent.parent / "lib" / "partita", program.parent.parent / "runtime"]  # installed; in a build tree
    for place in places:
        if (place / "libpartita_session.so").is_file():
            library = ctypes.CDLL(str(place / "libpartita_session.so"))
            library.partita_session_metric.restype = ctypes.c_bool
            return library
    raise PartitaError(f"libpartita_session.so is not in {places[0]}; `pip install CHECKOUT/tools/python` brings it")
