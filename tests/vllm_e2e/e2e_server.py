"""A real server with default flags under cancels, disconnects, bad input and SIGTERM."""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from draftwise import zoo

IS_PLAIN = bool(os.environ.get("DRAFTWISE_E2E_PLAIN"))
"""Run vLLM without draftwise, to compare its memory; draftwise's counters are not checked then."""
NUM = int(os.environ.get("DRAFTWISE_E2E_REQUESTS", "2000"))
AT_ONCE = 16
MAX_TOKENS = 20
BAD = [
    {"prompt": "x", "max_tokens": -1},
    {"prompt": "x", "temperature": -2.0},
    {"prompt": "x" * 100_000},
    {"prompt": "x", "top_p": 7},
    {"nonsense": True},
    {"prompt": "x", "vllm_xargs": {"max_draft": -1}},
    {"prompt": "x", "vllm_xargs": {"drafters": ["lokup"]}},
]
WISHES: list[dict[str, Any]] = [
    {},
    {"cache_salt": "a"},
    {"cache_salt": "b"},
    {"vllm_xargs": {"speculation": 0}},
    {"vllm_xargs": {"max_draft": 2, "label": "short", "private": 1}},
]
"""Options of the requests whose answers are compared; none of them changes a text."""


class Server:
    """A server with its caches, and so draftwise's state, in a folder of the test."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.number = folder, 0
        self.process: Any = None
        self.address = ""

    @property
    def log(self) -> str:
        """The log of the current server and its child processes."""
        return (self.folder / f"log{self.number}").read_text()

    def start(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(zoo.target_path()), "--served-model-name", "zoo"),
            *("--port", str(port), "--enforce-eager", "--dtype", "float32"),
            *("--max-num-seqs", str(AT_ONCE)),
            *("--num-gpu-blocks-override", "64"),  # of 128 tokens: soon all are in use
        ]
        if not IS_PLAIN:
            command += ["--scheduler-cls", "draftwise.integrations.vllm.Scheduler"]
        environment = os.environ | {
            "VLLM_CACHE_ROOT": str(self.folder),
            "VLLM_LOGGING_LEVEL": "INFO",
        }
        environment.pop("PROMETHEUS_MULTIPROC_DIR", None)
        self.number += 1
        with (self.folder / f"log{self.number}").open("wb") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        self.address = f"http://127.0.0.1:{port}"
        asyncio.run(until_ready(self.address, self.process, self.folder / f"log{self.number}"))

    def stop(self) -> None:
        """Send SIGTERM, as operators do; vLLM does not forward it to the engine in time."""
        self.process.terminate()
        self.process.wait(60)

    def num_steps(self) -> int:
        """The number of steps that the saved cost model has seen."""
        (file,) = (self.folder / "draftwise").glob("*.json")
        return int(json.loads(file.read_text())["learnt"]["costs"]["num_steps"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    one = Server(tmp_path_factory.mktemp("server"))
    one.start()
    try:
        yield one
    finally:
        one.stop()


async def until_ready(address: str, process: Any, log: Path) -> None:
    async with aiohttp.ClientSession() as session:
        for _ in range(600):
            assert process.poll() is None, log.read_text()[-3000:]
            try:
                async with session.get(f"{address}/health") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(1)
    raise AssertionError(log.read_text()[-3000:])


def memory_mb(pid: int) -> dict[str, float]:
    """Resident memory in MB of a process and its descendants, by name and id."""
    found, resident = [pid], {}
    while found:
        one = found.pop()
        try:
            children = Path(f"/proc/{one}/task/{one}/children").read_text().split()
            name = f"{Path(f'/proc/{one}/comm').read_text().strip()} {one}"
            pages = int(Path(f"/proc/{one}/statm").read_text().split()[1])
        except FileNotFoundError:
            continue
        resident[name] = pages * 4 / 1024
        found += map(int, children)
    return resident


async def complete(session: Any, address: str, prompt: str, **wishes: Any) -> str:
    body = {"model": "zoo", "prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0}
    body |= {} if IS_PLAIN else wishes
    async with session.post(f"{address}/v1/completions", json=body) as response:
        assert response.status == 200, await response.text()
        return (await response.json())["choices"][0]["text"]


async def cut_off(session: Any, address: str, prompt: str) -> None:
    """Read a little of a stream and disconnect."""
    body = {"model": "zoo", "prompt": prompt, "max_tokens": 200, "stream": True, "ignore_eos": True}
    async with session.post(f"{address}/v1/completions", json=body) as response:
        await response.content.readany()
        response.close()


async def bad(session: Any, address: str, body: dict[str, Any]) -> None:
    async with session.post(f"{address}/v1/completions", json={"model": "zoo"} | body) as response:
        assert 400 <= response.status < 500, await response.text()


async def storm(address: str, num: int, expected: dict[str, str]) -> Counter:
    """Send ``num`` requests of all kinds, 16 at once; returns the outcomes."""
    rng, done = random.Random(11), Counter()
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(session: Any, number: int) -> None:
        async with gate:
            prompt = rng.choice(list(expected))
            if number % 10 == 3:
                await cut_off(session, address, prompt)
                done["cut off"] += 1
            elif number % 10 == 7:
                await bad(session, address, BAD[number // 10 % len(BAD)])
                done["bad"] += 1
            elif number % 10 == 9:
                task = asyncio.create_task(complete(session, address, prompt))
                await asyncio.sleep(rng.random() * 0.3)
                task.cancel()
                done["cancelled"] += 1
            else:
                wishes = WISHES[number % len(WISHES)]
                right = await complete(session, address, prompt, **wishes) == expected[prompt]
                done["right" if right else "WRONG"] += 1

    connector = aiohttp.TCPConnector(limit=4 * AT_ONCE)
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        await asyncio.gather(*(one(session, number) for number in range(num)))
    return done


async def first_answers(address: str, prompts: list[str]) -> dict[str, str]:
    """One answer to each prompt, one at a time, before anything is learned."""
    async with aiohttp.ClientSession() as session:
        return {prompt: await complete(session, address, prompt) for prompt in prompts}


async def text_of(address: str, path: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"{address}{path}") as response:
        return await response.text()


def test_nothing_is_lost_or_wrong_and_memory_stays_flat(server: Server) -> None:
    address, pid = server.address, server.process.pid
    prompts = [prompt for kind in zoo.prompts().values() for prompt in kind[:3]]
    expected = asyncio.run(first_answers(address, prompts))
    asyncio.run(storm(address, NUM // 4, expected))
    before = memory_mb(pid)
    start = time.perf_counter()
    done = asyncio.run(storm(address, NUM, expected))
    after = memory_mb(pid)
    grown = {name: round(after[name] - before[name], 1) for name in before}
    print(f"{dict(done)} in {time.perf_counter() - start:.0f} s; MB more: {grown}")
    assert done["WRONG"] == 0
    assert sum(done.values()) == NUM
    if IS_PLAIN:
        return
    ours = [more for name, more in grown.items() if "Worker" not in name]
    assert len(ours) == len(grown) - 1, "one process runs the model; it has nothing of draftwise"
    assert sum(ours) < 32
    metrics = asyncio.run(text_of(address, "/metrics"))
    for line in (
        'draftwise:accepted_tokens_total{drafter="retrieval",engine="0",model_name="zoo"}',
        'draftwise:speed{engine="0",model_name="zoo",window="recent"}',
        'draftwise:label_rounds_total{engine="0",label="short",model_name="zoo"}',
        "vllm:spec_decode_num_accepted_tokens_total",
    ):
        assert line in metrics
    assert "is active in vLLM" in server.log
    assert "times plain decoding" in server.log or time.perf_counter() - start < 60
    assert asyncio.run(first_answers(address, prompts)) == expected


@pytest.mark.skipif(IS_PLAIN, reason="vLLM alone learns nothing")
def test_learning_survives_sigterm_with_default_flags(server: Server) -> None:
    prompts = [prompt for kind in zoo.prompts().values() for prompt in kind[:3]]
    expected = asyncio.run(first_answers(server.address, prompts))
    learnt = 0
    for _ in range(2):
        time.sleep(3)  # the engine is idle and writes its state
        server.stop()
        assert server.num_steps() > learnt
        learnt = server.num_steps()
        server.start()
        assert f"prices of {learnt} steps and acceptance from" in server.log
        assert asyncio.run(first_answers(server.address, prompts)) == expected
