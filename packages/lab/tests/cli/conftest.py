"""Models on disk, as for the product's commands."""

from __future__ import annotations

from cli.conftest import pair

__all__ = ["pair"]
