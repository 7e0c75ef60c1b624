"""``draftwise datastore build``: builds a retrieval file from text files or json lines."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

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


def documents(file: Path) -> Iterator[Iterable[str]]:
    """The documents of a file: all of a text file, in pieces to save memory, or each json line.

    Errors: DraftwiseError for a json line without ``text`` or ``prompt`` and ``completion``,
    UnicodeDecodeError for a file that is not UTF-8.
    """
    with file.open(encoding="utf-8-sig") as lines:
        if file.suffix.lower() not in JSON_LINES:
            yield iter(lambda: "".join(lines.readlines(_CHUNK)), "")
            return
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield _texts_of(line, file, number)


def _texts_of(line: str, file: Path, number: int) -> list[str]:
    found = json_line(line, file, number)
    given = found if isinstance(found, dict) else {}
    names = ["text"] if "text" in given else ["prompt", "completion"]
    if all(isinstance(given.get(name), str) for name in names):
        return ["".join(given[name] for name in names)]
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
            tokens = _read(files, encode)
        with waiting("sorting"):
            write(file, tokens, vocab_size)
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

    def tokens(text: str) -> NDArray[np.uint32]:
        ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return np.array(ids, dtype=np.uint32)

    found: list[NDArray[np.uint32]] = []
    left_out = 0
    with Bars("tokenizing") as progress:
        for file in progress.track(files):
            try:
                of_file = [list(map(tokens, pieces)) for pieces in documents(file)]
            except UnicodeDecodeError as error:
                if len(files) == 1:
                    raise not_text(file, error) from error
                left_out += 1
                continue
            found += [np.concatenate(parts) for parts in of_file if parts]
    if left_out:
        say(f"{left_out} of {len(files)} files are not UTF-8 text and were left out", "yellow")
    return found
