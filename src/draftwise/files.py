"""File access: bounded and strict reads, atomic writes, locks."""

from __future__ import annotations

import errno
import json
import math
import os
import platform
import secrets
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from draftwise.errors import DraftwiseError

STATE_BYTES = 64 << 20  # limit for saved states, cost tables and lists of shards
CACHE_VARIABLE = "DRAFTWISE_CACHE"  # overrides the platform's cache folder, for unpacked models
TRACE_BYTES = 1 << 30  # limit for traces and files of prompts or texts, which are read whole


def cache_folder() -> Path:
    """The folder of unpacked models; DraftwiseError without a home and ``DRAFTWISE_CACHE``."""
    from platformdirs import user_cache_path  # `import draftwise` loads no other package

    if given := os.environ.get(CACHE_VARIABLE):
        return local_path(given)
    try:
        return user_cache_path("draftwise")
    except (RuntimeError, KeyError, OSError) as error:  # a container's user without name and HOME
        raise DraftwiseError(
            f"set {CACHE_VARIABLE}=FOLDER: there is no home folder, and so no place to unpack a "
            f"GGUF file ({error})"
        ) from error


def local_path(text: str | Path) -> Path:
    """A path as typed; ``~`` is the home folder unless something of this very name exists.

    An unknown home leaves ``~`` as it is, where ``Path.expanduser`` would raise.
    """
    path = Path(text)
    return path if _exists(path) else Path(os.path.expanduser(path))


def looks_local(text: str) -> bool:
    """Whether a text that names nothing here is a path with a fault, and no ``org/model``.

    >>> looks_local("./model"), looks_local("C:/models"), looks_local("org/model")
    (True, True, False)
    """
    starts = text.startswith((".", "/", "~")) or text[1:3] in {":/", ":\\"}
    return starts or text.count("/") > 1 or "\\" in text


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # no path at all: too long, or with a null byte
        return False


def read_text(file: Path, most: int | None = None, *, pipes: bool = False) -> str:
    """Read a whole UTF-8 file, without the byte order mark that some editors write.

    pipes: whether ``file`` may be a pipe, such as ``<(...)``. Raises OSError that names the file,
    and ValueError for text that is not UTF-8. With ``most``, also ValueError for a file of more
    bytes and, without ``pipes``, for anything but a plain file: a pipe or a device may never end.
    """
    if most is not None and not pipes:
        check_size(file, most)
    try:
        with file.open("rb") as opened:
            data = opened.read() if most is None else opened.read(most + 1)
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(file)) from error
    if most is not None and len(data) > most:
        raise ValueError(f"{file} has more than {most:,} bytes, which are the most that is read")
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise not_text(file, error) from error


def not_text(what: str | Path, error: UnicodeDecodeError) -> ValueError:
    """The error for a file or input that is not UTF-8, with the command that converts it."""
    at, file = f"byte 0x{error.object[error.start]:02X}", ""
    if isinstance(what, Path):
        line = error.object.count(b"\n", 0, error.start) + 1
        at, file = f"line {line}, {at}", f" {what}"
    return ValueError(
        f"{what} is not UTF-8 text ({at}); if it is Latin-1, convert it: "
        f"iconv -f latin1 -t utf-8{file}"
    )


def check_size(file: Path, most: int) -> None:
    """ValueError for more than ``most`` bytes or for no plain file; OSError as ``stat``."""
    size = file.stat().st_size
    if not file.is_file():
        raise ValueError("it is no plain file")
    if size > most:
        raise ValueError(f"it has {size:,} bytes, and {most:,} are the most that is read")


def numbered_lines(
    file: Path, most: int | None = None, *, pipes: bool = False
) -> list[tuple[int, str]]:
    """The lines that are not blank, numbered from 1; errors as ``read_text``.

    Only a line feed ends a line (``str.splitlines`` also cuts at U+2028 and U+0085, which JSON
    allows inside a string).
    """
    lines = read_text(file, most, pipes=pipes).split("\n")
    return [(number, line) for number, line in enumerate(lines, 1) if line.strip()]


def prompt_lines(file: Path) -> list[tuple[int, Any]]:
    """Numbered prompts, or values of a .jsonl file; DraftwiseError if empty or invalid."""
    numbered = numbered_lines(file, TRACE_BYTES, pipes=True)
    if not numbered:
        raise DraftwiseError(f"{file} has no prompts: write one a line")
    if file.suffix not in {".jsonl", ".json", ".ndjson"}:
        return list(numbered)
    return [(number, json_line(line, file, number)) for number, line in numbered]


def json_line(line: str, file: Path, number: int) -> Any:
    """Parse a line of JSON, with NaN; DraftwiseError if invalid, huge or deeply nested."""
    try:
        return _decoded(line, parse_int=_finite_int)
    except ValueError as error:
        raise DraftwiseError(f"{file}, line {number}: this is not JSON ({error})") from error


def strict_json(text: str) -> Any:
    """Parse one JSON value; ValueError also for numbers that are not finite (NaN, Infinity, 1e999,
    400 digits), duplicate names and excessive nesting.

    >>> strict_json('{"a": 1}')
    {'a': 1}
    """
    return _decoded(
        text, parse_constant=_refuse, parse_float=_finite, parse_int=_finite_int,
        object_pairs_hook=_unique,
    )  # fmt: skip


def _decoded(text: str, **hooks: Any) -> Any:
    try:
        return json.loads(text, **hooks)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a new, empty file, which replaces ``path`` atomically when the block succeeds.

    Readers see the old file or the new one, and a crash or a full disk leaves the old file intact:
    the new file is synced before it is renamed, and deleted if the block raises. If ``path`` is a
    link, the file that it points to is replaced. Raises OSError that names ``path``, also if it is
    no plain file: as root, ``/dev/null`` would be replaced for the whole machine.
    """
    final = Path(os.path.realpath(path))
    _check_plain(final)
    part = final.with_name(f".{final.name}.{secrets.token_hex(8)}.part")
    try:
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        try:
            yield part
            with part.open("rb+") as file:
                os.fsync(file.fileno())
            os.replace(part, final)
        finally:
            part.unlink(missing_ok=True)
        _sync_folder(final.parent)
    except OSError as error:
        if error.filename is None or Path(error.filename).name == part.name:
            raise type(error)(error.errno, error.strerror or str(error), str(path)) from error
        raise


def write_text(path: Path, text: str) -> None:
    with replacing(path) as part:
        part.write_text(text, "utf-8")


def set_aside(path: Path) -> Path:
    """Rename a plain file to an unused name in its folder; return that path. Raises OSError."""
    _check_plain(path)
    stamp, number = f"{path.name}.unused-{int(time.time())}", 0
    while (aside := path.with_name(stamp + (f"-{number}" if number else ""))).exists():
        number += 1
    return path.replace(aside)


@contextmanager
def holding(lock: Path, taken: str, wait_s: float = 0.0) -> Iterator[None]:
    """Hold a lock that the system releases however the process ends.

    lock: path of the lock file, which is created and kept. taken: error text if another process
    still holds the lock after ``wait_s`` seconds. Raises DraftwiseError; OSError if the file cannot
    be created. Without file locks (Windows, some network disks) nothing is held.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    deadline = time.monotonic() + wait_s
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise DraftwiseError(taken) from None
                time.sleep(0.01)
                continue
            except OSError:
                pass
            break
        yield
    finally:
        os.close(descriptor)


def _check_plain(path: Path) -> None:
    if os.path.lexists(path) and not path.is_file():
        raise OSError(errno.EINVAL, "it is no plain file, and is left as it is", str(path))


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):  # Windows cannot open folders: there the rename may be written late
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:30]} is too large a number")
    return number


def _finite_int(text: str) -> int:
    if len(text) > 308:
        raise ValueError(f"{text[:30]}… is too large a number")
    return int(text)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number of JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"it has {twice!r} twice")
    return found


def cpu_name() -> str:
    """The processor's model name, read from ``/proc/cpuinfo`` if that exists."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        return next(n for n in lines if n.startswith("model name")).partition(":")[2].strip()
    return platform.processor() or platform.machine()
