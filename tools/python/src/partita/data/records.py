"""Documents out of the files that people keep text in, a block at a time."""

from __future__ import annotations

import codecs
import gzip
import io
import itertools
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import PartitaError

__all__ = ["Block", "Source", "blocks_of", "find_sources", "texts_of"]

BLOCK_BYTES = 4 << 20  # of text that a process tokenizes at a time
WHOLE_FILE_BYTES = 256 << 20  # the largest text file that may be one document
TEXT = (".txt", ".md", ".text")
LINES = (".jsonl", ".ndjson", ".json")
TABLES = (".parquet", ".arrow")
PACKED = (".gz", ".zst")


@dataclass(frozen=True)
class Source:
    path: Path
    kind: str  # "text", "json", "parquet", "arrow"
    packed: str  # "", ".gz", ".zst"


@dataclass(frozen=True)
class Block:
    """Records that follow one another in a source. Lines of JSON are parsed by who tokenizes them."""

    source: Path
    kind: str
    first: int  # number of the first, counted from 0
    records: Sequence[bytes | None]


def find_sources(paths: Sequence[str | Path]) -> list[Source]:
    """The files that `paths` name, a folder's sorted by name. PartitaError where one is missing or of no kind known here."""
    found: list[Source] = []
    for path in map(Path, paths):
        if path.is_dir():
            found += _of_folder(path)
        elif path.is_file():
            source = _kind_of(path)
            if source is None:
                raise PartitaError(f"{path}: expected {', '.join((*TEXT, *LINES, *TABLES))}, the first two kinds also as {' or '.join(PACKED)}; rename it, or convert it")
            found.append(source)
        else:
            raise PartitaError(f"{path}: there is no such file or folder")
    return found


def _kind_of(path: Path) -> Source | None:
    packed = path.suffix if path.suffix in PACKED else ""
    suffix = path.with_suffix("").suffix if packed else path.suffix
    if suffix in TEXT:
        return Source(path, "text", packed)
    if suffix in LINES:
        return Source(path, "json", packed)
    return Source(path, suffix[1:], "") if suffix in TABLES and not packed else None


def _of_folder(folder: Path) -> list[Source]:
    if (folder / "dataset_dict.json").is_file():
        splits = ", ".join(str(folder / s) for s in json.loads((folder / "dataset_dict.json").read_text())["splits"])
        raise PartitaError(f"{folder} holds several splits of a dataset; name one: {splits}")
    state = folder / "state.json"  # of what datasets' save_to_disk writes
    if (folder / "dataset_info.json").is_file() and state.is_file():
        return [Source(folder / f["filename"], "arrow", "") for f in json.loads(state.read_text())["_data_files"]]
    found = [s for p in sorted(folder.rglob("*")) if p.is_file() and (s := _kind_of(p)) is not None]
    if not found:
        raise PartitaError(f"{folder}: it holds no file that ends in {', '.join((*TEXT, *LINES, *TABLES))}")
    return found


def blocks_of(source: Source, field: str, documents: str, skip: int) -> Iterator[Block]:
    """The source's records but for the first `skip`. `documents`: what is one in a text file: "file", "line" or "blank"."""
    read = {"text": _text, "json": _lines, "parquet": _parquet, "arrow": _arrow}[source.kind]
    first, size = skip, 0
    records: list[bytes | None] = []
    for record in read(source, field, documents, skip):
        records.append(record)
        size += len(record or "")
        if size >= BLOCK_BYTES or len(records) >= 16384:
            yield Block(source.path, source.kind, first, records)
            first, size, records = first + len(records), 0, []
    if records:
        yield Block(source.path, source.kind, first, records)


def texts_of(block: Block, field: str, skip_bad: bool) -> Iterator[str | None]:
    """The block's documents; None for one that is broken, where `skip_bad` lets it pass. PartitaError elsewhere."""
    for k, record in enumerate(block.records, block.first):
        try:
            yield _text_of(record, block.kind, field)
        except ValueError as error:
            if not skip_bad:
                place = f"line {k + 1}" if block.kind == "json" else f"document {k}" if block.kind == "text" else f"row {k}"
                raise PartitaError(f"{block.source}: {place}: {error}; --skip-bad leaves such ones out") from None
            yield None


def _text_of(record: bytes | None, kind: str, field: str) -> str:
    if record is None:
        raise ValueError(f"{field!r} is null, expected text")
    try:
        text = record.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is no UTF-8") from None
    if kind != "json" or not text.strip():
        return text if kind != "json" else ""
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no JSON ({error})") from None
    for part in field.split("."):
        if not isinstance(value, dict) or part not in value:
            keys = ", ".join(sorted(value)[:8]) if isinstance(value, dict) else type(value).__name__
            raise ValueError(f"there is no field {field!r}, found {keys}; say which with --field")
        value = value[part]
    if not isinstance(value, str):
        raise ValueError(f"{field!r} is {type(value).__name__}, expected text")
    if lone := re.search("[\ud800-\udfff]", value):
        raise ValueError(f"{field!r} holds \\u{ord(lone[0]):x}, half of a pair that makes one character")
    return value


def _opened(source: Source) -> BinaryIO:
    if source.packed == ".gz":
        return gzip.open(source.path, "rb")  # type: ignore[return-value]
    if source.packed == ".zst":
        try:
            import zstandard
        except ImportError:
            raise PartitaError(f"{source.path}: reading .zst needs `pip install zstandard`") from None
        return io.BufferedReader(zstandard.ZstdDecompressor(max_window_size=1 << 31).stream_reader(source.path.open("rb"), read_across_frames=True), 1 << 20)  # type: ignore[arg-type]
    return source.path.open("rb")


def _lines(source: Source, field: str, documents: str, skip: int) -> Iterator[bytes]:
    with _opened(source) as file:
        for k, line in enumerate(_told(source, file)):
            if k >= skip:
                yield line if k else line.removeprefix(codecs.BOM_UTF8)


def _text(source: Source, field: str, documents: str, skip: int) -> Iterator[bytes]:
    with _opened(source) as file:
        if documents == "line":
            yield from (line.removesuffix(b"\n") for line in itertools.islice(_told(source, file), skip, None))
            return
        if documents == "file":
            whole = b"".join(_bounded(source, file))
            if not skip:
                yield whole
            return
        k, lines = 0, []
        for line in _told(source, file):
            if line.strip():
                lines.append(line)
            elif lines:
                if k >= skip:
                    yield b"".join(lines).rstrip(b"\n")
                k, lines = k + 1, []
        if lines and k >= skip:
            yield b"".join(lines).rstrip(b"\n")


def _told(source: Source, file: BinaryIO) -> Iterator[bytes]:
    """The lines, with the file's name where its compression is broken. Those of text end as Python's own files of text
    have them, whatever ends them in the file."""
    try:
        while line := file.readline(WHOLE_FILE_BYTES + 1):
            if len(line) > WHOLE_FILE_BYTES:  # and what unpacks to no end
                raise PartitaError(f"{source.path}: a line has more than {WHOLE_FILE_BYTES >> 20} MiB; divide it")
            if source.kind != "text" or b"\r" not in line:
                yield line
            else:
                yield from line.replace(b"\r\n", b"\n").replace(b"\r", b"\n").splitlines(keepends=True)
    except (EOFError, OSError, zlib.error) as error:
        raise PartitaError(f"{source.path}: it cannot be read to its end: {error}") from None
    except Exception as error:
        if type(error).__name__ != "ZstdError":
            raise
        raise PartitaError(f"{source.path}: it cannot be read to its end: {error}") from None


def _bounded(source: Source, file: BinaryIO) -> Iterator[bytes]:
    size = 0
    for line in _told(source, file):
        size += len(line)
        if size > WHOLE_FILE_BYTES:
            raise PartitaError(f"{source.path}: more than {WHOLE_FILE_BYTES >> 20} MiB would be one document; say what one is: --documents line, or blank (blank lines divide them)")
        yield line


def _pyarrow(source: Source) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise PartitaError(f"{source.path}: reading .{source.kind} needs `pip install pyarrow`") from None
    return pyarrow


def _column(source: Source, schema: Any, field: str) -> None:
    """PartitaError unless there is one column of that name, and it holds text, or bytes that may be text."""
    names, types = schema.names, _pyarrow(source).types
    if names.count(field) != 1:
        found = f"there is no column {field!r}, found {', '.join(names[:8])}" if field not in names else f"{names.count(field)} columns are called {field!r}"
        raise PartitaError(f"{source.path}: {found}; say which with --field")
    held = schema.types[names.index(field)]
    value = held.value_type if types.is_dictionary(held) else held
    if not any(of(value) for of in (types.is_string, types.is_large_string, types.is_string_view, types.is_binary, types.is_large_binary, types.is_binary_view)):
        raise PartitaError(f"{source.path}: column {field!r} is {held}, expected text; say which with --field")


def _values(columns: Iterator[Any], skip: int) -> Iterator[bytes | None]:
    """As bytes: text that is no UTF-8 is then found where its row is known. What a damaged file says of where values lie
    is checked before they are looked at, which pyarrow by itself does not do."""
    for column in columns:
        if skip >= len(column):
            skip -= len(column)
            continue
        packed = hasattr(column, "dictionary_decode")
        column.validate(full=packed)
        plain = (column.dictionary_decode() if packed else column).cast("large_binary")
        plain.validate(full=True)
        yield from plain[skip:].to_pylist()
        skip = 0


def _parquet(source: Source, field: str, documents: str, skip: int) -> Iterator[bytes | None]:
    pyarrow = _pyarrow(source)
    try:
        with pyarrow.parquet.ParquetFile(source.path) as file:
            _column(source, file.schema_arrow, field)
            yield from _values((batch.column(field) for batch in file.iter_batches(batch_size=4096, columns=[field])), skip)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise PartitaError(f"{source.path}: it is damaged, or no .{source.kind}: {str(error).strip()}") from None


def _arrow(source: Source, field: str, documents: str, skip: int) -> Iterator[bytes | None]:
    pyarrow = _pyarrow(source)
    try:
        with pyarrow.memory_map(str(source.path)) as file:
            if file.read(6) == b"ARROW1":
                reader = pyarrow.ipc.open_file(file)
                batches = (reader.get_batch(k) for k in range(reader.num_record_batches))
            else:
                file.seek(0)
                reader = pyarrow.ipc.open_stream(file)
                batches = iter(reader)
            _column(source, reader.schema, field)
            yield from _values((batch.column(field) for batch in batches), skip)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise PartitaError(f"{source.path}: it is damaged, or no .{source.kind}: {str(error).strip()}") from None
