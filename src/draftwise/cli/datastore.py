"""``draftwise datastore build``: builds a retrieval file from text files or json lines."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.progress import TaskProgressColumn, TimeElapsedColumn

from draftwise.checks import option
from draftwise.cli.failures import refused_values, say, waiting
from draftwise.cli.load import check_target, loading
from draftwise.cli.options import command
from draftwise.cli.show import Bars
from draftwise.files import json_line, not_text
from draftwise.types import DraftwiseError

JSON_LINES = {".jsonl", ".ndjson"}
_CHUNK = 1 << 20


def corpus_files(path: Path) -> list[Path]:
    """The file, or all non-hidden files below a folder; DraftwiseError if there are none."""
    if path.is_dir():
        names = (file.relative_to(path) for file in sorted(path.rglob("*")) if file.is_file())
        found = [path / name for name in names if not any(p[0] == "." for p in name.parts)]
        if not found:
            raise DraftwiseError(f"{path} has no files: a corpus needs some text")
        return found
    if not path.exists():
        raise DraftwiseError(f"there is no corpus {path}")
    if path.is_char_device():
        raise DraftwiseError(f"{path} is a device, which may never end: give a file or a folder")
    return [path]


def pieces(file: Path) -> Iterator[tuple[bool, str, int]]:
    """The documents of a file: all of a text file, or each json line.

    Yields whether a document begins, its text, and the number of bytes read. A text file is read in
    pieces of whole lines, to save memory. Errors: DraftwiseError for a json line without ``text``
    or ``prompt`` and ``completion``, UnicodeDecodeError for a file that is not UTF-8.
    """
    with file.open(encoding="utf-8-sig") as lines:
        if file.suffix.lower() in JSON_LINES:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield True, _text_of(line, file, number), len(line.encode())
            return
        is_first = True
        while text := "".join(lines.readlines(_CHUNK)):
            yield is_first, text, len(text.encode())
            is_first = False


def _text_of(line: str, file: Path, number: int) -> str:
    found = json_line(line, file, number)
    if isinstance(found, dict):
        for keys in (["text"], ["prompt", "completion"]):
            parts = [found.get(key) for key in keys]
            if all(isinstance(part, str) for part in parts):
                return "".join(map(str, parts))
    raise DraftwiseError(
        f"{file}, line {number}: write an object with a string `text`, or `prompt` and `completion`"
    )


app = typer.Typer(no_args_is_help=True, help="Datastores to draft from: build.")


@app.callback()
def datastore() -> None:
    """A callback makes ``build`` a subcommand, although it is the only one."""


@app.command()
@command
def build(
    *,
    corpus: Annotated[Path, typer.Argument(
        help="A text file, a folder of them, or .jsonl (`text`, or `prompt` and `completion`)."
    )],
    tokenizer: str = option(
        ..., "The target: a model folder, a hub id, or `zoo`.",
        "--tokenizer", "--target", "--model", "-m", metavar="MODEL",
    ),
    out: Path = option(..., "The file to write.", "--out", "-o"),
) -> None:  # fmt: skip
    """Tokenize a corpus as the target does, sort its suffixes, and write both to one file."""
    start = time.perf_counter()
    with refused_values():
        files = corpus_files(corpus)
        if not out.parent.is_dir():
            raise DraftwiseError(f"cannot write {out}: there is no folder {out.parent}")
        check_target(tokenizer)
    from draftwise.retrieval.corpus import Store, replacing, write

    with replacing(out) as file:
        with refused_values():
            with loading(tokenizer, threads=1):
                encode, vocab_size = _load(tokenizer)
            documents = _read(files, encode)
        with waiting("sorting"):
            write(file, documents, vocab_size)
    made, seconds = Store(out), time.perf_counter() - start
    typer.echo(
        f"{out}: {made.num_tokens:,} tokens of {made.num_documents:,} documents, vocabulary "
        f"{made.vocab_size:,}, {out.stat().st_size / 1e6:.1f} MB, {seconds:.1f} s"
    )


def _load(source: str) -> tuple[Any, int]:
    from transformers import AutoConfig

    from draftwise.nn.load import load_tokenizer
    from draftwise.pool import resolve_target

    path, _ = resolve_target(source)
    tokenizer = load_tokenizer(path)
    config = AutoConfig.from_pretrained(path, trust_remote_code=False)
    return tokenizer, int(config.get_text_config().vocab_size)


def _read(files: Sequence[Path], tokenizer: Any) -> list[NDArray[np.uint32]]:
    """The tokens of each document, without special ones; ValueError if no file is UTF-8."""
    documents: list[NDArray[np.uint32]] = []
    left_out = 0
    with Bars("tokenizing", TaskProgressColumn(), TimeElapsedColumn()) as progress:
        task = progress.add_task("", total=sum(file.stat().st_size for file in files))
        for file in files:
            of_file: list[list[NDArray[np.uint32]]] = []
            try:
                for is_first, text, num_bytes in pieces(file):
                    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
                    if is_first:
                        of_file.append([])
                    of_file[-1].append(np.array(ids, dtype=np.uint32))
                    progress.advance(task, num_bytes)
            except UnicodeDecodeError as error:
                if len(files) == 1:
                    raise not_text(file, error) from error
                left_out += 1
                continue
            documents += [np.concatenate(parts) for parts in of_file]
    if left_out:
        say(f"{left_out} of {len(files)} files are not UTF-8 text and were left out", "yellow")
    return documents
