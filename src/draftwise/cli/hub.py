"""Models of the hub: whether one can be had at all, found out in seconds and without retries."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from draftwise.types import DraftwiseError

PATIENCE_S = 2.0


def cached(model: str) -> Path | None:
    """The folder of a hub model's files that were fetched before; None where there is none."""
    from huggingface_hub import try_to_load_from_cache

    for name in ("config.json", "adapter_config.json"):
        if isinstance(found := try_to_load_from_cache(model, name), str):
            return Path(found).parent
    return None


def check_hub(model: str) -> None:
    """Raise DraftwiseError for a hub id that is none, not in the cache and not to be fetched."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    try:
        validate_repo_id(model)
    except HFValidationError:
        raise DraftwiseError(f"there is no model folder {model}, and it is no hub id") from None
    if cached(model) is not None:
        return
    from huggingface_hub import constants

    said = f"there is no folder {model}, and no model of that name was fetched from the hub before"
    if constants.HF_HUB_OFFLINE:
        raise DraftwiseError(f"{said}; HF_HUB_OFFLINE forbids to fetch one")
    if not _is_reachable(constants.ENDPOINT):
        raise DraftwiseError(
            f"{said}; {constants.ENDPOINT} cannot be reached now. Name a folder or a .gguf file, "
            "or go online"
        )
    if not _exists(model):
        raise DraftwiseError(
            f"there is no folder {model}, and {constants.ENDPOINT} has no public model {model}: "
            "check the name; for a private one, log in (hf auth login)"
        )


def _is_reachable(endpoint: str) -> bool:
    """Whether something listens there, or at the proxy on the way, within ``PATIENCE_S``."""
    parts = urlsplit(endpoint)
    proxy = os.environ.get("ALL_PROXY") or getproxies().get(parts.scheme)
    if proxy:
        parts = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    answers: list[bool] = []

    def ask() -> None:
        try:
            socket.create_connection((parts.hostname or "", port), PATIENCE_S).close()
            answers.append(True)
        except OSError:
            answers.append(False)

    # a thread of its own: looking up a name has no time limit
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(PATIENCE_S)
    return bool(answers) and answers[0]


def _exists(model: str) -> bool:
    """Whether the hub knows the model; True where it does not say."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        HfApi().model_info(model, timeout=PATIENCE_S)
    except RepositoryNotFoundError as error:
        return getattr(error.response, "status_code", 404) not in {401, 404}
    except Exception:  # whatever else is wrong with the hub, loading says it better
        return True
    return True
