"""Models on disk for server processes, and a server of chats with openai's client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from cli.models_on_disk import save_pair
from serve.chatml import Chat, chatting, speculator


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Folders of a target and of a drafter for it."""
    return save_pair(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def chat() -> Iterator[Chat]:
    with chatting(speculator()) as made:
        yield made


@pytest.fixture(scope="module")
def client(chat: Chat) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=chat.live.url + "/v1", api_key="none", max_retries=0) as made:
        yield made
