"""The loop: draft, verify, commit, reveal, learn; and what feeds it."""
