"""Decides what to draft, and when to draft nothing, for every engine."""
