"""Megatron's pair of files: NAME.bin with the ids of all documents in a row, NAME.idx with their lengths."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from ..errors import PartitaError

__all__ = ["TokenFile", "dtype_for", "write_index"]

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")  # magic, version 1, element type, sequences, entries of the document index
CODES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}
BLOCK = 1 << 20  # documents whose offsets are written at a time


def dtype_for(vocabulary: int) -> np.dtype:
    """The smallest type of Megatron's that holds ids below `vocabulary`: uint16 or int32."""
    return np.dtype(np.uint16 if vocabulary <= 1 << 16 else np.int32)


def write_index(path: Path, lengths: np.ndarray, dtype: np.dtype) -> None:
    """Writes NAME.idx: `lengths` (int32) is how many ids each document has, in order; each is one sequence."""
    code = next(c for c, t in CODES.items() if np.dtype(t) == dtype)
    with path.open("wb") as out:
        out.write(HEADER.pack(MAGIC, 1, code, len(lengths), len(lengths) + 1))
        lengths.astype("<i4", copy=False).tofile(out)
        first = 0
        for begin in range(0, len(lengths), BLOCK):
            ends = first + np.cumsum(lengths[begin : begin + BLOCK], dtype=np.int64)
            (np.concatenate([[first], ends[:-1]]) * dtype.itemsize).astype("<i8").tofile(out)
            first = int(ends[-1])
        for begin in range(0, len(lengths) + 1, BLOCK):
            np.arange(begin, min(begin + BLOCK, len(lengths) + 1), dtype="<i8").tofile(out)


class TokenFile:
    """A token file with its documents, mapped: NAME.bin and NAME.idx, by either name."""

    def __init__(self, path: str | Path):
        stem = Path(path).with_suffix("") if str(path).endswith((".bin", ".idx")) else Path(path)
        self.bin, self.idx = Path(f"{stem}.bin"), Path(f"{stem}.idx")
        for file in (self.bin, self.idx):
            if not file.is_file():
                raise PartitaError(f"{file}: there is no such file; a token file is a pair, NAME.bin and NAME.idx (`partita data tokenize` writes one)")
        index = np.memmap(self.idx, np.uint8, "r")
        if len(index) < HEADER.size or bytes(index[:9]) != MAGIC:
            raise PartitaError(f"{self.idx}: expected Megatron's index of a token file, found something else")
        _, version, code, sequences, documents = HEADER.unpack(bytes(index[: HEADER.size]))
        if version != 1 or code not in CODES or len(index) != HEADER.size + 12 * sequences + 8 * documents:
            raise PartitaError(f"{self.idx}: it is damaged or cut short: version {version}, element type {code}, {sequences} sequences, {documents} documents in {len(index)} bytes")
        self.dtype = np.dtype(CODES[code])
        lengths = index[HEADER.size : HEADER.size + 4 * sequences].view("<i4")
        firsts = index[HEADER.size + 12 * sequences :].view("<i8")
        begins = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        if len(firsts) and (firsts.min() < 0 or firsts.max() > sequences):
            raise PartitaError(f"{self.idx}: it is damaged: a document begins at sequence {firsts.max()} of {sequences}")
        starts = begins[np.unique(np.concatenate([[0], firsts]))]
        self.starts: np.ndarray = np.unique(starts[starts < begins[-1]])  # first token of each document that has any
        found = self.bin.stat().st_size
        if found != begins[-1] * self.dtype.itemsize:
            raise PartitaError(f"{self.bin}: expected {begins[-1]} ids of {self.dtype} as its index says, found {found} bytes")
        self.tokens: np.ndarray = np.memmap(self.bin, self.dtype, "r") if found else np.empty(0, self.dtype)

    def __len__(self) -> int:
        """Documents."""
        return len(self.starts)

    def document(self, k: int) -> np.ndarray:
        """The ids of document `k`."""
        if not 0 <= k < len(self):
            raise PartitaError(f"{self.bin}: there is no document {k}; it has {len(self)}, counted from 0")
        end = self.starts[k + 1] if k + 1 < len(self) else len(self.tokens)
        return self.tokens[self.starts[k] : end]
