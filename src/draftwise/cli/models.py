"""Stub."""


def models() -> None:
    """Stub."""
