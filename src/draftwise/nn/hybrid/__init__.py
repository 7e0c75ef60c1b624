"""Recurrent and hybrid targets: state checkpoints and rollback to the accepted tokens."""
