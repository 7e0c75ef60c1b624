"""Recurrent and hybrid targets: state checkpoints and their rollback to what was accepted."""
