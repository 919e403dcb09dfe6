"""Text to token files: the same ids as the tokenizer's own, in order, whatever the file and wherever it was interrupted."""

import gzip
import json
import subprocess
import sys

import numpy as np
import pytest

from partita import PartitaError
from partita.programs import run_partita

tokenizers = pytest.importorskip("tokenizers")

from partita import data  # noqa: E402
from partita.data import records  # noqa: E402

TEXTS = [f"the {word} of document {k}, and ünïcode" * (1 + k % 3) for k, word in enumerate(["first", "second", "third", "next", "last"] * 40)]
END = 0


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(TEXTS, tokenizers.trainers.BpeTrainer(vocab_size=300, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False))
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<end>"}}))
    return folder


@pytest.fixture(scope="module")
def expected(tokenizer):
    made = tokenizers.Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    return [[*made.encode(t).ids, END] for t in TEXTS]


def write_lines(path, texts=TEXTS):
    path.write_bytes("".join(json.dumps({"meta": {"body": t}}) + "\n" for t in texts).encode())
    return path


def documents(file):
    return [file.document(k).tolist() for k in range(len(file))]


def test_every_kind_of_file_gives_the_tokenizers_own_ids(tmp_path, tokenizer, expected):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    zstandard = pytest.importorskip("zstandard")
    sources = tmp_path / "sources"
    sources.mkdir()
    table = pyarrow.table({"n": range(len(TEXTS)), "text": TEXTS})
    parquet.write_table(table, sources / "a.parquet", row_group_size=30)
    with pyarrow.OSFile(str(sources / "b.arrow"), "wb") as out, pyarrow.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table, max_chunksize=30)
    lines = "".join(json.dumps({"text": t}) + "\n" for t in TEXTS).encode()
    (sources / "c.jsonl.gz").write_bytes(gzip.compress(lines))
    (sources / "d.jsonl.zst").write_bytes(zstandard.compress(lines[:100]) + zstandard.compress(lines[100:]))
    (sources / "e.txt").write_text("\n\n".join(TEXTS) + "\n")
    made = data.tokenize(sources, tokenizer, tmp_path / "out" / "all", documents="blank")
    assert documents(data.TokenFile(made.path)) == expected * 5
    assert [s["documents"] for s in made.manifest["sources"]] == [len(TEXTS)] * 5
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["all.bin", "all.idx", "all.json"]


@pytest.mark.parametrize("stop", [1, 4, 9])
def test_an_interrupted_one_goes_on_where_it_was(tmp_path, tokenizer, expected, monkeypatch, stop):
    monkeypatch.setattr(records, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(sys.modules["partita.data.tokenize"], "JOURNAL_BYTES", 2000)
    first, second = write_lines(tmp_path / "a.jsonl", TEXTS[:70]), write_lines(tmp_path / "b.jsonl", TEXTS[70:])
    blocks = 0

    def interrupt(tokens, done):
        nonlocal blocks
        blocks += 1
        if blocks == stop:
            raise KeyboardInterrupt

    arguments = dict(field="meta.body", workers=2)
    with pytest.raises(KeyboardInterrupt):
        data.tokenize([first, second], tokenizer, tmp_path / "out", progress=interrupt, **arguments)
    with (tmp_path / "out.bin").open("ab") as file:
        file.write(b"what was under way when the machine ended")
    with pytest.raises(PartitaError, match="made with other field"):
        data.tokenize([first, second], tokenizer, tmp_path / "out", field="text")
    made = data.tokenize([first, second], tokenizer, tmp_path / "out", **arguments)
    assert documents(data.TokenFile(made.path)) == expected
    assert [s["documents"] for s in made.manifest["sources"]] == [70, len(TEXTS) - 70]
    again = data.tokenize([first, second], tokenizer, tmp_path / "out", **arguments)
    assert again.manifest == made.manifest
    write_lines(second, TEXTS[71:])
    with pytest.raises(PartitaError, match="made with other sources"):
        data.tokenize([first, second], tokenizer, tmp_path / "out", **arguments)


def test_broken_records_are_named_or_counted(tmp_path, tokenizer):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "one"}\n\n{"text": "tw\n{"body": 1}\n{"text": "\xff"}\n{"text": ""}\n{"text": 3}\n{"text": "end"}\n')
    for line, message in [(3, "it is no JSON"), (4, "no field 'text', found body; say which with --field"), (5, "no UTF-8"), (7, "is int, expected text")]:
        with pytest.raises(PartitaError, match=f"a.jsonl: line {line}: .*{message}"):
            data.tokenize(path, tokenizer, tmp_path / f"{line}")
        path.write_bytes(b"\n".join(b"" if k == line - 1 else one for k, one in enumerate(path.read_bytes().split(b"\n"))))
    path.write_bytes(b'{"text": "one"}\n{"text": 3}\n\n{"text": "end"}\n')
    made = data.tokenize(path, tokenizer, tmp_path / "out", skip_bad=True)
    assert {k: made.manifest["sources"][0][k] for k in ("documents", "empty", "bad")} == {"documents": 2, "empty": 1, "bad": 1}
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"text": "one"}\n' * 1000)[:-9])
    with pytest.raises(PartitaError, match="cut.jsonl.gz: it cannot be read to its end"):
        data.tokenize(tmp_path / "cut.jsonl.gz", tokenizer, tmp_path / "cut")
    (tmp_path / "photo.png").write_bytes(b"")
    with pytest.raises(PartitaError, match="photo.png: expected .txt"):
        data.tokenize(tmp_path / "photo.png", tokenizer, tmp_path / "x")
    with pytest.raises(PartitaError, match="neither such a token nor such an id"):
        data.tokenize(path, tokenizer, tmp_path / "y", end_of_document="<eos>")


def test_lines_of_text_end_as_python_reads_them(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_bytes(b"one\r\ntwo\rthree\n")
    (tmp_path / "b.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "a\\r\\nb"}\r\n')
    made = tokenizers.Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    for how, texts in (("file", ["one\ntwo\nthree\n", "a\r\nb"]), ("line", ["one", "two", "three", "a\r\nb"])):
        out = data.tokenize([tmp_path / "a.txt", tmp_path / "b.jsonl"], tokenizer, tmp_path / how, documents=how)
        assert documents(data.TokenFile(out.path)) == [[*made.encode(t).ids, END] for t in texts]


def test_a_line_without_an_end_is_refused(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(records, "WHOLE_FILE_BYTES", 1 << 20)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"x" * (3 << 20)))
    with pytest.raises(PartitaError, match="a.jsonl.gz: a line has more than 1 MiB"):
        data.tokenize(tmp_path / "a.jsonl.gz", tokenizer, tmp_path / "out", workers=1)


def test_what_is_no_text_is_named_and_ends_no_process(tmp_path, tokenizer):
    path = tmp_path / "a.jsonl"
    deep = b"[" * 100000
    for k, (line, message) in enumerate(((b'{"text": "a\\ud83dz"}', r"line 1: 'text' holds .ud83d, half of a pair"), (b'{"text": "a", "d": ' + deep, "line 1: it is no JSON"))):
        path.write_bytes(line + b'\n{"text": "end"}\n')
        with pytest.raises(PartitaError, match=message):
            data.tokenize(path, tokenizer, tmp_path / f"{k}", workers=1)
    assert data.tokenize(path, tokenizer, tmp_path / "out", workers=1, skip_bad=True).documents == 1
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = tmp_path / "a.parquet"
    for k, (column, message) in enumerate((([1, 2], "column 'text' is int64"), ([["a"], ["b"]], "column 'text' is list"), (pyarrow.array([b"a", b"\xff"]).view(pyarrow.string()), "row 1: byte 0 is no UTF-8"))):
        parquet.write_table(pyarrow.table({"text": column}), table)
        with pytest.raises(PartitaError, match=message):
            data.tokenize(table, tokenizer, tmp_path / f"table{k}", workers=1)


def test_damaged_files_are_refused_by_name(tmp_path, tokenizer):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"text": ["ab" * k for k in range(40)]})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=10)
    with pyarrow.OSFile(str(tmp_path / "b.arrow"), "wb") as out, pyarrow.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table)
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(b"".join(b'{"text": "abc%d"}\n' % k for k in range(300))))
    for name in ("a.parquet", "b.arrow", "c.jsonl.gz"):
        whole, refused = (tmp_path / name).read_bytes(), 0
        for at in range(8, len(whole) - 8, len(whole) // 60):
            for spoiled in (bytes([whole[at] ^ 0x81]), b"\xff\xff\xff\x7f"):
                path = tmp_path / f"{at}-{len(spoiled)}-{name}"  # each its own: some are mapped
                path.write_bytes(whole[:at] + spoiled + whole[at + len(spoiled) :])
                source = records.find_sources([path])[0]
                try:
                    for block in records.blocks_of(source, "text", "file", 0):
                        list(records.texts_of(block, "text", skip_bad=True))
                except PartitaError as error:
                    assert path.name in str(error)
                    refused += 1
        assert refused > 20, name


def test_the_command_writes_what_training_reads(tmp_path, tokenizer):
    program = [sys.executable, "-c", "from partita.programs import main; main()", "data"]
    lines = write_lines(tmp_path / "a.jsonl")
    subprocess.run([*program, "tokenize", lines, "--field", "meta.body", "--tokenizer", tokenizer, "-o", tmp_path / "out", "--quiet"], check=True)
    shown = subprocess.run([*program, "inspect", tmp_path / "out.bin", "--document", "7"], check=True, capture_output=True, text=True).stdout
    assert f"document 7: {len(data.TokenFile(tmp_path / 'out').document(7))} tokens\n{TEXTS[7]}<end>\n" in shown
    model, recipe = tmp_path / "model.onnx", tmp_path / "train.yaml"
    run_partita("model", "gpt", "--layers", "1", "--hidden", "16", "--heads", "2", "--vocab", "300", "--seq", "16", "--batch", "4", "--with-weights", "-o", model)
    mixed = subprocess.run([*program, "mix", tmp_path / "out.bin", tmp_path / "out.idx", "--weights", "3", "1"], check=True, capture_output=True, text=True).stdout
    recipe.write_text("optimizer: {kind: adamw, lr: 0.01}\n" + mixed)
    run_partita("train", model, "--train", recipe, "--steps", "2")
    failed = subprocess.run([*program, "inspect", tmp_path / "out.bin", "--document", "700"], capture_output=True, text=True)
    assert failed.returncode == 2 and "there is no document 700; it has 200" in failed.stderr


def test_mixtures_weigh_by_size_temperature_or_as_said(tmp_path):
    from partita.data.indexed import write_index

    for name, count in (("a", 900), ("b", 100)):
        np.zeros(count, np.uint16).tofile(tmp_path / f"{name}.bin")
        write_index(tmp_path / f"{name}.idx", np.asarray([count], np.int32), np.dtype(np.uint16))
    paths = [tmp_path / "a", tmp_path / "b"]
    assert data.mix(paths).weights == pytest.approx([0.9, 0.1])
    assert data.mix(paths, temperature=2).weights == pytest.approx([0.75, 0.25])
    made = data.mix(paths, weights=[1, 1], total=2000)
    assert made.epochs == pytest.approx([1000 / 900, 10]) and len(made.warnings) == 1
    with pytest.raises(PartitaError, match="expected 2 numbers above 0"):
        data.mix(paths, weights=[1])
    odd = tmp_path / "it's \\ \"odd\""
    for end in (".bin", ".idx"):
        (tmp_path / f"a{end}").rename(f"{odd}{end}")
    said = data.mix([odd]).recipe.split("path: ")[1].split(", weight")[0]
    assert json.loads(said) == f"{odd}.bin"  # a text of JSON's is one of YAML's
