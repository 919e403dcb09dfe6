"""The compiler's programs, which lie in the package, and how they are called."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import NoReturn

from .errors import PartitaError

DATA_VERBS = ("tokenize", "inspect", "mix")
__all__ = ["main", "partita_program", "run_partita"]


def partita_program() -> Path:
    """The program `partita`: of $PARTITA where that is set, else the one that came with this package."""
    said = os.environ.get("PARTITA")
    path = Path(said) if said else Path(__file__).parent / "installed" / "bin" / "partita"
    if not path.is_file():
        where = "$PARTITA names" if said else "this package lies without it:"
        raise PartitaError(f"there is no compiler: {where} {path}; `pip install CHECKOUT/tools/python` brings it", 2)
    return path


def run_partita(*arguments: str | Path) -> str:
    """Runs `partita ARGUMENTS` to its end and returns its standard output.

    Raises PartitaError with what it said on standard error; its warnings and notes become Python's.
    """
    done = subprocess.run([partita_program(), *map(str, arguments)], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise error_of(done.returncode, done.stderr)
    tell(done.stderr)
    return done.stdout


def tell(said: str) -> None:
    """Warns of what a program that did its work said on standard error."""
    for line in said.splitlines():
        if line.startswith(("warning: ", "note: ")):
            warnings.warn(line.partition(": ")[2], stacklevel=4)


def error_of(code: int, said: str) -> PartitaError:
    """What a program that left with `code` said on standard error."""
    lines = [line.removeprefix("partita: ") for line in said.strip().splitlines()]
    text = "\n".join(lines) or f"partita left with code {code}" + (f" (signal {-code})" if code < 0 else "")
    return PartitaError(text, code if code > 0 else 1)


def main() -> NoReturn:
    """The console script: becomes the program, but for what the package itself adds to it."""
    if sys.argv[1:2] == ["data"] and (sys.argv[2:3] or [""])[0] in DATA_VERBS:
        from .data.command import data_command

        sys.exit(data_command(sys.argv[2:]))
    try:
        program = partita_program()
    except PartitaError as error:
        sys.exit(f"partita: {error}")
    os.execv(program, [str(program), *sys.argv[1:]])
