"""Decides what to draft, and when to draft nothing, for every engine."""

from draftwise.controller.controller import Controller, Limits
from draftwise.controller.costs import Step

__all__ = ["Controller", "Limits", "Step"]
