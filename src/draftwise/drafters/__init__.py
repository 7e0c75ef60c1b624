"""WHAT to draft with."""
