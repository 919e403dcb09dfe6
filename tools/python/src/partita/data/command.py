"""`partita data tokenize|inspect|mix`: the part of the command line that this package adds to the compiler's."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from ..errors import PartitaError

__all__ = ["data_command"]


def data_command(arguments: list[str]) -> int:
    """Runs `partita data ARGUMENTS`; the exit code."""
    parser = argparse.ArgumentParser(prog="partita data")
    verbs = parser.add_subparsers(dest="verb", required=True)

    add = verbs.add_parser("tokenize", help="text, JSON lines (both also .gz, .zst), parquet, arrow or folders of them into a token file: NAME.bin, NAME.idx")
    add.add_argument("sources", nargs="+", help="files and folders, in this order")
    add.add_argument("--tokenizer", required=True, help="Hugging Face's tokenizer.json, or its folder")
    add.add_argument("-o", "--output", required=True, help="NAME of the token file")
    add.add_argument("--field", default="text", help="of JSON and tables; dots lead inside (default: %(default)s)")
    add.add_argument("--documents", choices=("file", "line", "blank"), default="file", help="what is one document in a text file; blank: blank lines divide them (default: %(default)s)")
    add.add_argument("--end-of-document", metavar="TOKEN", help="token or id after each document, or none (default: the tokenizer's eos_token)")
    add.add_argument("--skip-bad", action="store_true", help="leave broken records out and count them")
    add.add_argument("--workers", type=int, help="processes (default: the cores)")
    add.add_argument("--quiet", action="store_true")
    add.set_defaults(run=_tokenize)

    add = verbs.add_parser("inspect", help="documents of a token file, or what one is made of")
    add.add_argument("file", help="NAME.bin or NAME.idx")
    add.add_argument("--tokenizer", help="to read the ids as text (default: the one that made it, where it is still there)")
    add.add_argument("--document", type=int, action="append", help="show this one, counted from 0; may be repeated (default: the first three)")
    add.add_argument("--ids", action="store_true", help="ids and tokens instead of text")
    add.add_argument("--length", type=int, default=256, help="ids to show of each (default: %(default)s)")
    add.set_defaults(run=_inspect)

    add = verbs.add_parser("mix", help="weigh token files: prints the section `data` of train.yaml")
    add.add_argument("files", nargs="+")
    add.add_argument("--weights", type=float, nargs="+", help="one for each file (default: by their tokens)")
    add.add_argument("--temperature", type=float, default=1.0, help="weights are tokens to the power 1/T (default: %(default)s)")
    add.add_argument("--tokens", type=float, help="of the whole training, such as 3e11 (default: all files once)")
    add.set_defaults(run=_mix)

    flags = parser.parse_args(arguments)
    try:
        flags.run(flags)
    except PartitaError as error:
        print(f"partita: {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        print("partita: interrupted; the same command goes on where this one was", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    return 0


def _tokenize(flags: argparse.Namespace) -> None:
    from .tokenize import tokenize

    began = last = time.monotonic()

    def tell(tokens: int, documents: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= 1 and not flags.quiet:
            end = "\r" if sys.stderr.isatty() else "\n"
            if sys.stderr.isatty() or now - last >= 10:
                print(f"{documents:,} documents, {tokens:,} tokens, {tokens / (now - began):,.0f} tokens/s", end=end, file=sys.stderr, flush=True)
                last = now

    made = tokenize(
        flags.sources, flags.tokenizer, flags.output, field=flags.field, documents=flags.documents, end_of_document=flags.end_of_document, skip_bad=flags.skip_bad, workers=flags.workers, progress=tell
    )
    if flags.quiet:
        return
    left = {key: sum(s[key] for s in made.manifest["sources"]) for key in ("empty", "bad")}
    print(f"{made.path}: {made.documents:,} documents, {made.tokens:,} tokens of {made.manifest['dtype']}")
    for key, word in (("empty", "empty"), ("bad", "broken")):
        if left[key]:
            print(f"left out: {left[key]:,} {word} documents")
    print(f"train on it with: --data {made.path}")


def _inspect(flags: argparse.Namespace) -> None:
    from .indexed import TokenFile
    from .tokenizer import TextTokenizer

    file = TokenFile(flags.file)
    manifest = Path(str(file.bin)[:-4] + ".json")
    about = json.loads(manifest.read_text()) if manifest.is_file() else {}
    print(f"{file.bin}: {len(file):,} documents, {len(file.tokens):,} tokens of {file.dtype}, {len(file.tokens) / max(len(file), 1):.1f} a document")
    for source in about.get("sources", []):
        print(f"  of {source['path']}: {source['documents']:,} documents, {source['tokens']:,} tokens")
    tokenizer = None
    if flags.tokenizer:
        tokenizer = TextTokenizer(flags.tokenizer)
    elif about and Path(about["tokenizer"]["path"]).is_file():
        tokenizer = TextTokenizer(about["tokenizer"]["path"])
        if tokenizer.sha256 != about["tokenizer"]["sha256"]:
            raise PartitaError(f"{tokenizer.path}: it is no longer the tokenizer that made {file.bin}; say --tokenizer to read with it all the same")
    for k in flags.document or range(min(3, len(file))):
        ids = file.document(k)
        shown = [int(i) for i in ids[: flags.length]]
        print(f"\ndocument {k}: {len(ids):,} tokens" + (f", the first {len(shown)}" if len(shown) < len(ids) else ""))
        if tokenizer is None or flags.ids:
            print(" ".join(str(i) if tokenizer is None else f"{i}:{tokenizer.token(i)!r}" for i in shown))
        else:
            print(tokenizer.decode(shown))


def _mix(flags: argparse.Namespace) -> None:
    from .mix import mix

    made = mix(flags.files, weights=flags.weights, temperature=flags.temperature, total=int(flags.tokens) if flags.tokens else None)
    print(made.table + made.recipe, end="")
    for warning in made.warnings:
        print(f"warning: {warning}", file=sys.stderr)
