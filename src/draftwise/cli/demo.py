"""Stub."""


def demo() -> None:
    """Stub."""
