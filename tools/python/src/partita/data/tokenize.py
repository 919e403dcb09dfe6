"""Text to token files, on all cores; what is interrupted goes on where it was."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pickle
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..errors import PartitaError
from .indexed import dtype_for, write_index
from .records import Block, Source, blocks_of, find_sources
from .tokenizer import TextTokenizer
from .worker import Ids, Order

__all__ = ["Tokenized", "tokenize"]

FORMAT = "partita tokens 1"
JOURNAL_BYTES = 64 << 20  # of ids from one entry of the journal to the next


@dataclass
class Progress:
    """How far it is: kept in NAME.progress.json, and in the manifest at the end."""

    source: int = 0  # the one that is read
    records: int = 0  # of it that are done
    tokens: int = 0
    documents: int = 0
    per_source: list[dict[str, int]] = field(default_factory=list)  # of each begun: documents, tokens, empty, bad

    def take(self, ids: Ids) -> None:
        self.tokens += len(ids.ids)
        self.documents += len(ids.lengths)
        count = self.per_source[self.source]
        for key, number in (("documents", len(ids.lengths)), ("tokens", len(ids.ids)), ("empty", ids.empty), ("bad", ids.bad)):
            count[key] += number


@dataclass(frozen=True)
class Tokenized:
    """What `tokenize` made: `path` is NAME.bin, `manifest` what NAME.json says of it."""

    path: Path
    manifest: dict[str, Any]

    @property
    def tokens(self) -> int:
        return self.manifest["tokens"]

    @property
    def documents(self) -> int:
        return self.manifest["documents"]


def tokenize(
    sources: Sequence[str | Path] | str | Path,
    tokenizer: str | Path,
    output: str | Path,
    *,
    field: str = "text",
    documents: str = "file",
    end_of_document: str | None = None,
    skip_bad: bool = False,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Tokenized:
    """Tokenizes text, JSON lines (both also .gz, .zst), parquet, arrow, or folders of them into OUTPUT.bin and OUTPUT.idx.

    Documents keep their order, whatever the number of `workers` (processes; default: the cores). OUTPUT.json says what it
    was made of: hashes of sources and tokenizer, counts. Where it was interrupted, the same call goes on.

    `field`: of JSON (dots lead inside) and of tables. `documents`: what is one in a text file: "file", "line", or "blank"
    (blank lines divide them). `end_of_document`: token or id after each, "none"; default: the tokenizer's eos_token.
    `progress` gets the tokens and documents done.

    PartitaError with file and line where something is broken (`skip_bad` leaves it out and counts it), and where OUTPUT is
    already there and was made of something else.
    """
    if documents not in ("file", "line", "blank"):
        raise PartitaError(f"documents: expected file, line or blank, found {documents!r}")
    found = find_sources([sources] if isinstance(sources, (str, Path)) else sources)
    text = TextTokenizer(tokenizer)
    stem = Path(str(output).removesuffix(".bin"))
    about = {
        "format": FORMAT,
        "tokenizer": {"path": str(text.path), "sha256": text.sha256, "vocabulary": text.vocabulary},
        "end_of_document": text.end_of_document(end_of_document),
        "dtype": dtype_for(text.vocabulary).name,
        "field": field,
        "text_documents": documents,
        "sources": [{"path": str(s.path), "bytes": s.path.stat().st_size, "sha256": _hash(s.path)} for s in found],
    }
    stem.parent.mkdir(parents=True, exist_ok=True)
    done = _finished(stem, about)
    if done is not None:
        return done
    order = Order(text.path, field, skip_bad, about["end_of_document"], np.dtype(about["dtype"]))
    with Path(f"{stem}.bin").open("a+b") as ids, Path(f"{stem}.lengths").open("a+b") as lengths, Workers(order, workers) as team:
        _lock(ids)
        state = _begin(stem, about)
        _truncate(ids, state.tokens * order.dtype.itemsize)
        _truncate(lengths, state.documents * 4)
        noted = state.tokens
        for source, end, block in team.encode(_blocks(found, state.source, state.records, field, documents)):
            while len(state.per_source) <= source:
                state.per_source.append({"documents": 0, "tokens": 0, "empty": 0, "bad": 0})
            block.ids.tofile(ids)
            block.lengths.tofile(lengths)
            state.source, state.records = source, end
            state.take(block)
            if (state.tokens - noted) * order.dtype.itemsize >= JOURNAL_BYTES:
                _note(stem, about, state, ids, lengths)
                noted = state.tokens
            if progress is not None:
                progress(state.tokens, state.documents)
        _note(stem, about, state, ids, lengths)
        return _end(stem, about, state, order.dtype)


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 22):
            digest.update(piece)
    return digest.hexdigest()


def _write_json(path: Path, value: dict[str, Any]) -> None:
    """All of it or nothing, whenever the machine ends."""
    temporary = path.with_name(path.name + ".new")
    with temporary.open("w") as out:
        json.dump(value, out, indent=1)
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(path)


def _differs(stem: Path, name: str, there: dict[str, Any], about: dict[str, Any]) -> None:
    other = [k for k in about if there.get(k) != about[k]]
    if other:
        shown = other[0] if other[0] != "sources" else "sources (files, their order or what is in them)"
        raise PartitaError(f"{stem}{name} is there, made with other {shown}; name another --output, or remove it")


def _finished(stem: Path, about: dict[str, Any]) -> Tokenized | None:
    """What an earlier call made of the very same."""
    path = Path(f"{stem}.json")
    if not path.is_file():
        if Path(f"{stem}.bin").exists() and not Path(f"{stem}.progress.json").exists():
            raise PartitaError(f"{stem}.bin is there already, of unknown sources; name another --output, or remove it")
        return None
    manifest = json.loads(path.read_text())
    _differs(stem, ".json", {**manifest, "sources": [{k: s[k] for k in ("path", "bytes", "sha256")} for s in manifest.get("sources", [])]}, about)
    return Tokenized(Path(f"{stem}.bin"), manifest)


def _lock(file: IO[bytes]) -> None:
    """Until it is closed."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise PartitaError(f"{file.name}: another process is writing it") from None


def _begin(stem: Path, about: dict[str, Any]) -> Progress:
    journal = Path(f"{stem}.progress.json")
    if not journal.is_file():
        state = Progress()
        _write_json(journal, {**about, "progress": asdict(state)})
        return state
    there = json.loads(journal.read_text())
    _differs(stem, ".progress.json", there, about)
    return Progress(**there["progress"])


def _truncate(file: IO[bytes], size: int) -> None:
    if os.fstat(file.fileno()).st_size < size:
        raise PartitaError(f"{file.name}: expected {size} bytes or more, as the journal says, found fewer; remove it and its .progress.json to begin anew")
    file.truncate(size)  # what is written goes to its end


def _note(stem: Path, about: dict[str, Any], state: Progress, *files: IO[bytes]) -> None:
    for file in files:
        file.flush()
        os.fsync(file.fileno())
    _write_json(Path(f"{stem}.progress.json"), {**about, "progress": asdict(state)})


def _blocks(sources: list[Source], first: int, done: int, field: str, documents: str) -> Iterator[tuple[int, Block]]:
    """From record `done` of source `first` on."""
    for k in range(first, len(sources)):
        for block in blocks_of(sources[k], field, documents, done if k == first else 0):
            yield k, block


def _end(stem: Path, about: dict[str, Any], state: Progress, dtype: np.dtype) -> Tokenized:
    lengths = Path(f"{stem}.lengths")
    write_index(Path(f"{stem}.idx"), np.fromfile(lengths, np.int32), dtype)
    counts = state.per_source + [{"documents": 0, "tokens": 0, "empty": 0, "bad": 0}] * (len(about["sources"]) - len(state.per_source))
    manifest = {**about, "tokens": state.tokens, "documents": state.documents, "sources": [{**s, **c} for s, c in zip(about["sources"], counts)]}
    _write_json(Path(f"{stem}.json"), manifest)
    lengths.unlink()
    Path(f"{stem}.progress.json").unlink()
    return Tokenized(Path(f"{stem}.bin"), manifest)


class Workers:
    """Processes that tokenize, a thread for each to talk to it. Processes, as ids become numbers under Python's lock; and of
    our own, as multiprocessing's would run the caller's script anew."""

    def __init__(self, order: Order, count: int | None):
        self.order, self.count = order, max(count or len(os.sched_getaffinity(0)), 1)
        self.mine = threading.local()
        self.processes: list[subprocess.Popen[bytes]] = []
        self.pool = ThreadPoolExecutor(self.count)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)
        for process in self.processes:
            process.kill()
            process.wait()
        self.pool.shutdown()

    def encode(self, blocks: Iterator[tuple[int, Block]]) -> Iterator[tuple[int, int, Ids]]:
        """Each block's source, its end in it, and its ids, in order; a few blocks are under way."""
        waiting: deque[tuple[int, int, Future[Ids]]] = deque()
        for source, block in blocks:
            waiting.append((source, block.first + len(block.records), self.pool.submit(self._ask, block)))
            while len(waiting) > 2 * self.count:
                yield self._next(waiting)
        while waiting:
            yield self._next(waiting)

    @staticmethod
    def _next(waiting: deque[tuple[int, int, Future[Ids]]]) -> tuple[int, int, Ids]:
        source, end, future = waiting.popleft()
        return source, end, future.result()

    def _ask(self, block: Block) -> Ids:
        process = getattr(self.mine, "process", None)
        if process is None:
            process = self.mine.process = self._start()
        inputs, outputs = process.stdin, process.stdout
        assert inputs is not None and outputs is not None
        try:
            pickle.dump(block, inputs, protocol=pickle.HIGHEST_PROTOCOL)
            inputs.flush()
            answer = pickle.load(outputs)
        except (EOFError, BrokenPipeError):
            raise PartitaError(f"{block.source}: the process that tokenized it ended with code {process.wait()}; what was done is kept, the same command goes on", 1) from None
        if isinstance(answer, PartitaError):
            raise answer
        return answer

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", "from partita.data.worker import main; main()"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "TOKENIZERS_PARALLELISM": "false"})
        self.processes.append(process)
        assert process.stdin is not None
        pickle.dump(self.order, process.stdin)
        return process
