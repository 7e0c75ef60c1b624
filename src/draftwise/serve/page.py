"""The live page: one file, all of it here, nothing from the network."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import dataclass
from importlib import resources

from draftwise.colours import nth_colour

_MOST_DRAFTERS = 24
"""That the page has colours for; no pool is as large."""


@dataclass(frozen=True, slots=True)
class Page:
    """text: the whole file. policy: a Content-Security-Policy that lets it run and nothing else."""

    text: str
    policy: str


def _load() -> Page:
    text = resources.files(__package__).joinpath("page.html").read_text("utf-8")
    text = text.replace('"{{palette}}"', json.dumps([nth_colour(n) for n in range(_MOST_DRAFTERS)]))
    sources = {
        f"{kind}-src": _hashes(re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL))
        for kind, tag in (("script", "script"), ("style", "style"))
    }
    rules = [f"{kind} {hashes}" for kind, hashes in sources.items()]
    own = ["default-src 'none'", "connect-src 'self'", "img-src data:", "base-uri 'none'"]
    return Page(text, "; ".join([*own, "frame-ancestors 'none'", *rules]))


def _hashes(codes: list[str]) -> str:
    digests = [base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() for code in codes]
    return " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"


PAGE = _load()
