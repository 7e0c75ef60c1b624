"""``draftwise serve``: an OpenAI-compatible server on one machine."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from draftwise import zoo
from draftwise.cli import options as o
from draftwise.cli.failures import VOICE, refused_values, say
from draftwise.cli.load import read_template
from draftwise.install import hint
from draftwise.serve.settings import ServerSettings, bind, hosts_of
from draftwise.state import hold
from draftwise.types import DraftwiseError

SETTINGS = o.Settings(scope="auto", seed=0)


@o.command
def serve(
    *,
    settings: o.Settings = SETTINGS,
    chat_template: Path | None = o.CHAT_TEMPLATE,
    server: ServerSettings,
) -> None:
    """Serve an OpenAI-compatible API at http://127.0.0.1:8000/v1, with a live page at /."""
    needed = ("fastapi", "uvicorn", "prometheus_client", "llguidance")
    if missing := [name for name in needed if find_spec(name) is None]:
        raise DraftwiseError(f"serve needs {', '.join(missing)}: {hint('serve')}")
    VOICE.notes = False  # stderr is reserved for the log, which programs parse
    target, state = settings.target, settings.state
    with refused_values():
        o.check(settings)
        if server.trace is not None:
            server.trace.open("a").close()  # fail before a model is loaded
        from draftwise.serve.middleware import set_up_logs

        set_up_logs(server.log_format)
        template = None if chat_template is None else read_template(chat_template)
        listener = bind(server.host, server.port)
        from draftwise.serve.run import serve as answer

        kinds = zoo.prompts() if target == "zoo" else {}
        server = replace(
            server,
            models=server.models or (Path(target).name or target,),
            examples={kind: first for kind, (first, *_) in kinds.items()},
            chat_template=template,
            hosts=hosts_of(server.host, list(server.hosts)),
            state=state,
        )
    with hold(state), listener:
        speculator = o.load(replace(settings, state=None))  # the server loads the state
        if not server.keys and server.host not in {"127.0.0.1", "localhost", "::1"}:
            say(f"every client that reaches {server.host} may ask: give --api-key", style="yellow")
        answer(speculator, server, listener)
