"""What is checked before a model is loaded: the address to listen on.

Nothing here imports torch, so that a mistake is told at once.
"""

from __future__ import annotations

import errno
import ipaddress
import socket

from draftwise.types import DraftwiseError

_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


def bind(host: str, port: int) -> socket.socket:
    """A socket that has this address, and refuses connections until ``listen``.

    Raises DraftwiseError that names the option.
    """
    if not 0 <= port <= 65535:
        raise DraftwiseError(f"--port {port}: it must be 0 to 65535; 0 is any free port")
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no name of a host"
        raise DraftwiseError(f"--host {host}: {why}") from None
    made = socket.socket(family, kind)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError as error:
        made.close()
        raise _refusal(error, host, port) from None
    return made


def listen(bound: socket.socket) -> None:
    """Take connections. Raises DraftwiseError where another program does so at this address."""
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
    return DraftwiseError(
        why.get(error.errno) or f"--host {host} --port {port}: {error.strerror or error}"
    )


def hosts_of(host: str, allowed: list[str]) -> list[str]:
    """Names that ``Host`` may have: at a loopback address its own, elsewhere any unless some are
    given.
    """
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = host == "localhost"
    if not is_loopback:
        return allowed
    return [*_LOOPBACK, f"[{host}]" if ":" in host else host, *allowed]
