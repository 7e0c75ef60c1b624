"""Settings of a server; imports no torch, so that errors are reported at once."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from draftwise import checks
from draftwise.checks import option
from draftwise.types import DraftwiseError

_listening, _limits = partial(option, panel="Listening"), partial(option, panel="Limits")
_many = partial(_listening, (), kind=list[str] | None, check=checks.strings)
_count, _natural = partial(checks.whole, least=1), partial(checks.whole, least=0)
_at_most = partial(_limits, None, check=partial(checks.optional, _count))
_gt_0, _ge_0 = partial(checks.number, least=0.001), partial(checks.number, least=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Address, access control and limits of a server, validated on creation.

    models: served names, the first is canonical; none = the target's. hosts: names by which clients
    may address the server, none or ``*`` = any. origins: web pages that may read responses, none =
    only the server's own page. examples: prompts on the live page.
    """

    host: str = _listening("127.0.0.1", "Address to listen on; 0.0.0.0 for all interfaces.")
    port: int = _listening(8000, "Port; 0 picks a free one.")
    models: Sequence[str] = _many(
        "Model name that requests use; repeatable.", "--served-model-name"
    )
    generation_config: str = _listening(
        "auto",
        "Sampling defaults: auto = the checkpoint's generation_config.json, none = OpenAI's.",
        check=partial(checks.string, options=("auto", "none")),
    )
    keys: Sequence[str] = _many(
        "API key that clients must send; repeatable.", "--api-key", envvar="DRAFTWISE_API_KEY"
    )
    hosts: Sequence[str] = _many(
        "Host name by which clients may address the server; repeatable, * allows any. Default: "
        "only localhost on a loopback address, any name on others.",
        "--allowed-host",
    )
    origins: Sequence[str] = _many(
        "Origin of web pages that may use the API, such as http://localhost:3000; repeatable, * "
        "allows any.",
        "--cors-origin",
    )
    log_format: str = _listening(
        "text", "Format of the log on stderr: text or json.",
        check=partial(checks.string, options=("text", "json")),
    )  # fmt: skip
    trace: Path | None = option(
        None, "Write one jsonl line per round, without any text, for `advise` and `replay`.",
        panel="Listening",
    )  # fmt: skip
    max_rows: int = _limits(
        16, "Maximum number of running requests.", "--max-rows", "--max-num-seqs", check=_count
    )
    max_bytes: int | None = _at_most("Maximum size of the KV cache in bytes.")
    max_queue: int = _limits(
        64, "Maximum number of queued answers; more get status 429.", check=_natural
    )
    max_body: int = _limits(4 * 2**20, "Maximum size of a request body in bytes.", check=_count)
    max_prompt_tokens: int | None = _at_most("Maximum number of tokens per prompt.")
    max_new_tokens: int | None = _at_most("Maximum number of tokens per answer.")
    deadline_s: float | None = _limits(
        None, "Maximum seconds per request.", "--deadline", check=partial(checks.optional, _gt_0)
    )
    patience_s: float = _limits(
        60.0, "Seconds that a finished answer waits for a client that does not read.",
        "--patience", check=_gt_0,
    )  # fmt: skip
    stuck_s: float = _limits(
        60.0, "Seconds in one step after which /health answers 503.", "--stuck-after", check=_gt_0
    )
    drain_s: float = _limits(
        30.0, "Seconds that running requests have to finish after SIGTERM.", "--drain", check=_ge_0
    )
    state_every_s: float = option(
        20.0, "Seconds between writes of --state.", "--state-every", panel="Learning", check=_ge_0
    )
    state: Path | None = None
    examples: Mapping[str, Any] = option(dict)
    chat_template: str | None = None

    def __post_init__(self) -> None:
        checks.check_fields(self)

    @property
    def max_open(self) -> int:
        """Most unfinished answers at a time, both running and waiting."""
        return self.max_rows + self.max_queue


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that refuses connections until ``listen``. DraftwiseError names the option."""
    if not 0 <= port <= 65535:
        raise DraftwiseError(f"--port {port}: it must be 0 to 65535; 0 is any free port")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no name of a host"
        raise DraftwiseError(f"--host {host}: {why}") from None
    family, kind, _, _, address = found[0]
    made = socket.socket(family, kind)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError as error:
        made.close()
        raise _refusal(error, host, port) from None
    return made


def listen(bound: socket.socket) -> None:
    """Accept connections. Errors: DraftwiseError if another program uses the address."""
    host, port = bound.getsockname()[:2]
    try:
        bound.listen(2048)
    except OSError as error:
        raise _refusal(error, host, port) from None


def _refusal(error: OSError, host: str, port: int) -> DraftwiseError:
    why: dict[int | None, str] = {
        errno.EADDRINUSE: f"--port {port}: another program listens there; choose another port, or "
        "--port 0 for any free one",
        errno.EACCES: f"--port {port}: this user may not listen there; choose 1024 or above, or "
        "--port 0 for any free one",
        errno.EADDRNOTAVAIL: f"--host {host}: this machine does not have that address; "
        "127.0.0.1 is this machine alone, 0.0.0.0 all of its addresses",
    }
    usual = f"--host {host} --port {port}: {error.strerror or error}"
    return DraftwiseError(why.get(error.errno, usual))


def hosts_of(host: str, allowed: list[str]) -> list[str]:
    """Accepted host names: those of a loopback address; elsewhere any, unless some are given."""
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = host == "localhost"
    if not is_loopback:
        return allowed
    return ["localhost", "127.0.0.1", "[::1]", f"[{host}]" if ":" in host else host, *allowed]
