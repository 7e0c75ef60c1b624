"""The engine: scheduling, prefill, and the loop that drafts, verifies, commits and learns."""
