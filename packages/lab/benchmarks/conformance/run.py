"""Other people's clients on live servers: ``make conformance``.

    python run.py [--work FOLDER] [--out FILE] [--only NAME ...]

Each client is installed in an environment of its own under ``--work`` (uv where it is there, else
pip; npm for JavaScript), and kept there. Conversations with tools run on ``scripted.py``, whose
model says what a script says; the others on ``draftwise serve`` with the bundled model. Prints a
table; exits with 1 if a check failed. A client that cannot be installed is listed with the reason,
and counts as failed. ``--out`` keeps the rows of clients that were not run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
QUIET = {"HF_HUB_OFFLINE": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "OMP_NUM_THREADS": "1"}
LIBRARIES = ("openai", "langchain-openai", "litellm", "pydantic-ai-slim[openai]", "instructor")
TIMEOUT_S = 600


@dataclass
class Outcome:
    """What one client did: its version, its checks, and why some failed."""

    client: str
    version: str = "?"
    num_checks: int = 0
    failed: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Failed(Exception):
    """A client could not be installed, or gave up."""


@dataclass(frozen=True)
class Place:
    """Where clients are installed, and the servers that they talk to."""

    work: Path
    scripted: str
    zoo: str
    model: str

    def python(self, name: str, *packages: str) -> str:
        """The interpreter of an environment with these packages."""
        python = self.work / name / "bin" / "python"
        if not (self.work / name / "complete").exists():
            shutil.rmtree(self.work / name, ignore_errors=True)
            if uv := shutil.which("uv"):
                _run([uv, "venv", "-q", "--python", sys.executable, str(self.work / name)])
                _run([uv, "pip", "install", "-q", "--python", str(python), *packages])
            else:
                _run([sys.executable, "-m", "venv", str(self.work / name)])
                _run([str(python), "-m", "pip", "install", "-q", *packages])
            (self.work / name / "complete").touch()
        return str(python)

    def node(self) -> Path:
        """A folder with openai's client for JavaScript and the scripts that use it."""
        folder = self.work / "node"
        folder.mkdir(exist_ok=True)
        if not (folder / "node_modules" / "openai").exists():
            _run(["npm", "install", "--silent", "--no-fund", "--no-audit", "openai"], cwd=folder)
        for script in (
            HERE / "fields.mjs",
            HERE / "turns.mjs",
            ROOT / "examples/openai_client.mjs",
        ):
            shutil.copy(script, folder)
        return folder


def _run(command: list[str], cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """The output of a command; Failed with its last lines."""
    try:
        done = subprocess.run(
            command, cwd=cwd, env={**os.environ, **QUIET, **(env or {})}, timeout=TIMEOUT_S,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(f"{command[0]}: {error}"[:300]) from None
    if done.returncode:
        raise Failed(" ".join(done.stdout.split()[-60:]) or f"exit code {done.returncode}")
    return done.stdout


def library(name: str) -> Callable[[Place, Outcome], None]:
    def run(place: Place, outcome: Outcome) -> None:
        python = place.python("libraries", *LIBRARIES)
        text = _run([python, str(HERE / "clients.py"), name, place.scripted])
        for line in map(json.loads, (one for one in text.splitlines() if one.startswith("{"))):
            outcome.version = line.get("version", outcome.version)
            if "check" in line:
                outcome.num_checks += 1
                if not line["ok"]:
                    outcome.failed.append(f"{line['check']}: {line['seen']}")

    return run


def javascript(place: Place, outcome: Outcome) -> None:
    folder = place.node()
    package = folder / "node_modules/openai/package.json"
    outcome.version = json.loads(package.read_text())["version"]
    _run(["node", "turns.mjs", place.scripted], cwd=folder)
    _run(["node", "openai_client.mjs", place.zoo], cwd=folder)
    text = _run(["node", "fields.mjs", place.zoo], cwd=folder)
    outcome.num_checks = 2 + text.count("ok ")


def aider(place: Place, outcome: Outcome) -> None:
    """Three edits of one file, in one history, streamed and whole."""
    python = place.python("aider", "aider-chat")
    outcome.version = _version(python, "aider-chat")
    folder = place.work / "aider-project"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for turn, stream in enumerate(("--stream", "--no-stream", "--stream")):
        (folder / "hello.py").write_text(f"print({turn})\n")
        _run(
            [python, "-m", "aider", "--model", "openai/local", "--yes-always", "--no-git", stream,
             "--edit-format", "whole", "--no-show-model-warnings", "--no-check-update",
             "--analytics-disable", "--no-auto-lint", "--map-tokens", "0", "--restore-chat-history",
             "--no-fancy-input", "--no-pretty", "--message", "Let hello.py say hello.", "hello.py"],
            cwd=folder,
            env={"OPENAI_API_BASE": f"{place.scripted}/v1", "OPENAI_API_KEY": "none"},
        )  # fmt: skip
        outcome.num_checks += 1
        if (seen := (folder / "hello.py").read_text()) != "print('hello, world')\n":
            outcome.failed.append(f"turn {turn}: the file is {seen!r}")


def guidellm(place: Place, outcome: Outcome) -> None:
    """Completions and chats of synthetic text, four at a time; all requests have to succeed."""
    python = place.python("guidellm", "guidellm")
    outcome.version = _version(python, "guidellm")
    for path in ("/v1/completions", "/v1/chat/completions"):
        report = place.work / "guidellm.json"
        report.unlink(missing_ok=True)
        _run(
            [str(Path(python).parent / "guidellm"), "run", "--backend",
             f"kind=openai_http,target={place.zoo},model=local,request_format={path}",
             "--profile", "kind=concurrent,streams=4", "--constraint", "kind=max_requests,count=20",
             "--data", "kind=synthetic_text,prompt_tokens=64,output_tokens=32",
             "--disable-progress",
             "--tokenizer", f"kind=huggingface_auto,model={place.model}",
             "--output", f"kind=json,path={report}"],
            cwd=place.work,
        )  # fmt: skip
        totals = json.loads(report.read_text())["benchmarks"][0]["metrics"]["request_totals"]
        outcome.num_checks += 1
        if totals["errored"] or totals["successful"] != 20:
            outcome.failed.append(f"{path}: {totals}")


def lm_eval(place: Place, outcome: Outcome) -> None:
    """Scores and log-likelihoods against transformers' own on the same model."""
    python = place.python("lm-eval", "lm-eval[api,hf]")
    outcome.version = _version(python, "lm-eval")
    _run([python, str(HERE / "lm_eval_task.py"), place.zoo, place.model])
    outcome.num_checks = 2


def schemathesis(place: Place, outcome: Outcome) -> None:
    """Requests generated from ``/openapi.json``: no status of 500 or more."""
    python = place.python("schemathesis", "schemathesis")
    outcome.version = _version(python, "schemathesis")
    _run(
        [str(Path(python).parent / "st"), "run", f"{place.zoo}/openapi.json", "--checks",
         "not_a_server_error", "--max-examples", os.environ.get("EXAMPLES", "200"), "--phases",
         "coverage,fuzzing", "--continue-on-failure"],
        cwd=place.work,
    )  # fmt: skip
    outcome.num_checks = 1


def _version(python: str, package: str) -> str:
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return _run([python, "-c", code]).strip()


CLIENTS: dict[str, Callable[[Place, Outcome], None]] = {
    "openai-python": library("openai-python"),
    "openai-javascript": javascript,
    **{name: library(name) for name in ("langchain", "litellm", "pydantic-ai", "instructor")},
    "aider": aider,
    "guidellm": guidellm,
    "lm-eval": lm_eval,
    "schemathesis": schemathesis,
}


@contextmanager
def server(command: list[str], log: Path) -> Iterator[str]:
    """The address of a server, started for the block; PORT in the command is a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, *(str(port) if word == "PORT" else word for word in command)]
    with log.open("w") as file:
        made = subprocess.Popen(words, env={**os.environ, **QUIET}, stdout=file, stderr=file)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(240):
            if made.poll() is not None:
                raise Failed(f"a server did not start: {log}")
            try:
                urllib.request.urlopen(f"{url}/health", timeout=5).close()
                break
            except OSError:
                time.sleep(0.5)
        yield url
    finally:
        made.terminate()
        made.wait(60)


def tried(place: Place, name: str) -> Outcome:
    outcome, start = Outcome(name), time.monotonic()
    try:
        CLIENTS[name](place, outcome)
    except (Failed, OSError, KeyError, ValueError) as error:
        outcome.failed.append(str(error))
    outcome.seconds = round(time.monotonic() - start, 1)
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--work", type=Path, default=ROOT / ".venv-conformance")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", nargs="+", choices=CLIENTS, default=list(CLIENTS))
    given = parser.parse_args()
    work: Path = given.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    from draftwise import zoo

    model = str(zoo.target_path())
    plain = ["-m", "draftwise", "serve", "--target", "zoo", "--port", "PORT", "--chat-template"]
    plain += [str(HERE / "tools.jinja"), "--served-model-name", "local", "--max-new-tokens", "200"]
    with (
        server([str(HERE / "scripted.py"), "PORT"], work / "scripted.log") as scripted,
        server(plain, work / "zoo.log") as bundled,
    ):
        place = Place(work, scripted, bundled, model)
        outcomes = [tried(place, name) for name in given.only]
    print(f"{'client':18} {'version':10} checks  seconds")
    for one in outcomes:
        right = one.num_checks - len(one.failed) if one.num_checks else 0
        print(f"{one.client:18} {one.version:10} {right}/{one.num_checks:<5} {one.seconds:7.1f}")
        for why in one.failed:
            print(f"    {why}")
    if given.out is not None:
        rows: dict[str, Any] = {}
        if given.out.exists():
            rows = {row["client"]: row for row in json.loads(given.out.read_text())["clients"]}
        rows |= {one.client: asdict(one) for one in outcomes}
        found = [rows[name] for name in CLIENTS if name in rows]
        sys.path.insert(0, str(HERE.parent))
        from shared.results import header

        about = header() | {"command": "make conformance"}
        given.out.write_text(json.dumps({**about, "clients": found}, indent=1) + "\n")
    return int(any(one.failed for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
