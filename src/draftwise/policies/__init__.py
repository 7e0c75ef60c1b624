"""The default policy of draftwise's own engine."""
