"""Counts the files and lines of each folder, and the files on four paths through the code.

    python scripts/count.py           # files and lines of each folder
    python scripts/count.py paths     # the files of each path

Each path runs once to load its code and once more to be counted. The count is of files of
``src/draftwise`` in which a function is called, compiled functions excepted. For a policy's spec
these are the files whose functions receive it, or are on the stack when the policy is made or
chooses.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import signal
import socket
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ROOT / "src" / "draftwise"
LAB, ZOO, TESTS = ROOT / "packages" / "lab", ROOT / "packages" / "zoo", ROOT / "tests"
SPEC = "ucbspec"
CHOOSING = ("controller/", "bandits/")


def lines() -> None:
    """Print files and lines of each folder of the product, and of the packages."""
    rows: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for root, name in ((PRODUCT, "product"), (LAB, "lab"), (ZOO, "zoo"), (TESTS, "tests")):
        for file in sorted(root.rglob("*.py")):
            parts = file.relative_to(root).parts
            keys = {"tests" if parts[0] == "tests" else name}
            keys |= {f"product, {parts[0]}"} if root == PRODUCT and parts[1:] else set()
            num = len(file.read_text("utf-8").splitlines())
            for key in keys:
                rows[key] = [rows[key][0] + 1, rows[key][1] + num]
    for key, (files, num) in sorted(rows.items()):
        print(f"{key:24} {files:4} files {num:7,} lines")


class Touched:
    """While on, records the product's files in which functions run, in all threads but one."""

    def __init__(self, wanted: Callable[[FrameType], bool] = lambda frame: True) -> None:
        self.files, self.is_on, self.besides = set[str](), False, -1
        self._wanted = wanted

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        if not self.is_on or event != "call" or threading.get_ident() == self.besides:
            return
        name, code = frame.f_code.co_filename, frame.f_code
        if "__name__" not in frame.f_globals:  # a call of a compiled function, as numba shows it
            return
        if not name.startswith(str(PRODUCT)) or code.co_name == "<module>":
            return
        if self._wanted(frame):
            self.files.add(name)
        is_policy = hasattr(frame.f_locals.get("self"), "choose")
        if code.co_name in {"__init__", "choose"} and "/bandits/" in name and is_policy:
            self.stack(frame)

    def stack(self, frame: FrameType | None) -> None:
        """Record the callers of a policy, where a spec is followed."""
        while self._wanted is _holds_spec and frame is not None:
            if frame.f_code.co_filename.startswith(str(PRODUCT)):
                self.files.add(frame.f_code.co_filename)
            frame = frame.f_back

    def names(self) -> list[str]:
        return sorted(str(Path(file).relative_to(PRODUCT)) for file in self.files)


def _holds_spec(frame: FrameType) -> bool:
    for value in list(frame.f_locals.values()):
        held = [value, getattr(value, "policy", None)]
        if any(isinstance(each, str) and each == SPEC for each in held):
            return True
    return False


def generating() -> tuple[list[str], list[str]]:
    """Files up to the first token, and files that turn evidence into choices in an answer."""
    from draftwise import Speculator, zoo

    speculator = Speculator.from_pretrained("zoo", drafters=["lookup"])
    prompt = zoo.prompts()["math"][0]
    speculator.generate(prompt, max_new_tokens=32)
    first, answer = Touched(), Touched()
    for touched, num in ((first, 1), (answer, 32)):
        sys.setprofile(touched)
        touched.is_on = True
        speculator.generate(prompt, max_new_tokens=num)
        sys.setprofile(None)
    return first.names(), [name for name in answer.names() if name.startswith(CHOOSING)]


def policy() -> list[str]:
    """Files from ``--policy ucbspec`` to the policy's decisions."""
    touched = Touched(_holds_spec)
    words = (
        f"generate --target zoo --policy {SPEC} --drafter lookup --max-new-tokens 4 --quiet".split()
    )
    for is_on in (False, True):
        touched.is_on = is_on
        sys.setprofile(touched)
        _command([*words, "### math\n1. 31 * 7\n### answer\n"])
        sys.setprofile(None)
    return touched.names()


def _command(words: list[str]) -> None:
    from draftwise.__main__ import main

    sys.argv = ["draftwise", *words]
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        main()


def posting() -> list[str]:
    """Files from a POST to its first event."""
    touched = Touched()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def post() -> None:
        touched.besides = threading.get_ident()
        body = {"model": "zoo", "prompt": "### math\n", "max_tokens": 4, "stream": True}
        call = Request(
            f"http://127.0.0.1:{port}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        num = 0
        while num < 2:
            touched.is_on = num == 1
            try:
                with urlopen(call) as answer:
                    answer.readline()
                    num += 1
            except URLError:
                time.sleep(0.2)
        touched.is_on = False
        os.kill(os.getpid(), signal.SIGINT)

    threading.setprofile(touched)
    sys.setprofile(touched)
    threading.Thread(target=post, daemon=True).start()
    _command(["serve", "--target", "zoo", "--drafter", "lookup", "--port", str(port)])
    sys.setprofile(None)
    return touched.names()


def paths() -> dict[str, list[str]]:
    first, choosing = generating()
    spec, posted = policy(), posting()
    return {
        "`Speculator.generate` to the first token": first,
        "a POST to the first event": posted,
        "the same, in `serve/`": [name for name in posted if name.startswith("serve/")],
        f"`--policy {SPEC}` to its decision": spec,
        "evidence to the default choice": choosing,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", choices=["paths"])
    if not parser.parse_args().what:
        lines()
        return
    sys.path.insert(0, str(PRODUCT.parent))  # this checkout, whatever is installed
    for name, files in paths().items():
        print(f"{name} ({len(files)})", *files, sep="\n    ")


if __name__ == "__main__":
    main()
