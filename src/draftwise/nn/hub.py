"""Whether a model is in the hub's cache or on the hub, asked once; imports no torch."""

from __future__ import annotations

import threading
from pathlib import Path

from draftwise.nn.folder import CONFIGS, place
from draftwise.types import DraftwiseError

PATIENCE_S = 2.0  # timeout of connecting to the hub, and of its answer


def find(source: str) -> str:
    """A model's folder, or the id of a model that is in the cache or on the hub.

    Errors: DraftwiseError for anything else, within seconds: transformers asks six times, and
    waits between them.
    """
    found = place(source)
    if not Path(found).is_dir():
        check_hub(found)
    return found


def cached(model: str) -> Path | None:
    """The folder of a hub model in the local cache, or None."""
    from huggingface_hub import try_to_load_from_cache

    found = (try_to_load_from_cache(model, name) for name in CONFIGS)
    return next((Path(file).parent for file in found if isinstance(file, str)), None)


def check_hub(model: str) -> None:
    """Reject an invalid hub id, and a model neither in the cache nor on the hub."""
    from huggingface_hub import constants, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    try:
        has_tokenizer = isinstance(try_to_load_from_cache(model, "tokenizer_config.json"), str)
        if has_tokenizer or cached(model) is not None:
            return
    except HFValidationError:
        raise DraftwiseError(f"there is no model folder {model}, and it is no hub id") from None
    said = f"there is no folder {model}, and no model of that name was fetched from the hub before"
    if constants.HF_HUB_OFFLINE:
        raise DraftwiseError(f"{said}; HF_HUB_OFFLINE forbids to fetch one")
    answer: Exception | None = ConnectionError()

    def ask() -> None:
        from huggingface_hub import HfApi

        nonlocal answer
        try:
            HfApi(endpoint=constants.ENDPOINT).model_info(model, timeout=PATIENCE_S)
            answer = None
        except Exception as error:
            answer = error

    # in a thread, because a DNS lookup has no timeout
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(3 * PATIENCE_S)
    # by name, because the hub's client changed its HTTP library, and with it the classes
    if type(answer).__name__.startswith("Connect"):
        raise DraftwiseError(
            f"{said}; {constants.ENDPOINT} cannot be reached now. Name a folder that exists, or "
            "go online"
        )
    # for other errors, loading has a better message
    if isinstance(answer, RepositoryNotFoundError) and answer.response.status_code in {401, 404}:
        raise DraftwiseError(
            f"there is no folder {model}, and {constants.ENDPOINT} has no public model {model}: "
            "check the name; for a private one, log in (hf auth login)"
        )
