"""A process that tokenizes blocks: pickles on standard input and output, in turn. Started by tokenize.py."""

from __future__ import annotations

import pickle
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import PartitaError
from .records import Block, texts_of
from .tokenizer import TextTokenizer


@dataclass(frozen=True)
class Order:
    """What all blocks have in common."""

    tokenizer: Path
    field: str
    skip_bad: bool
    end: int | None  # id after each document
    dtype: np.dtype


@dataclass(frozen=True)
class Ids:
    """A block as ids: those of all its documents in a row, and how many each has."""

    ids: np.ndarray
    lengths: np.ndarray
    empty: int  # documents without text, left out
    bad: int  # broken ones, left out


def encode(order: Order, tokenizer: TextTokenizer, block: Block) -> Ids:
    texts = list(texts_of(block, order.field, order.skip_bad))
    bad = sum(t is None for t in texts)
    full = [t for t in texts if t]
    end = [] if order.end is None else [order.end]
    documents = [np.asarray(ids + end, order.dtype) for ids in tokenizer.encode(full)]
    documents = [d for d in documents if len(d)]
    ids = np.concatenate(documents) if documents else np.empty(0, order.dtype)
    return Ids(ids, np.asarray([len(d) for d in documents], np.int32), len(texts) - bad - len(documents), bad)


def main() -> None:
    inputs, outputs = sys.stdin.buffer, sys.stdout.buffer
    order: Order = pickle.load(inputs)
    tokenizer = TextTokenizer(order.tokenizer)
    while True:
        try:
            block = pickle.load(inputs)
        except EOFError:
            return
        try:
            answer: Ids | PartitaError = encode(order, tokenizer, block)
        except PartitaError as error:
            answer = error
        pickle.dump(answer, outputs, protocol=pickle.HIGHEST_PROTOCOL)
        outputs.flush()

