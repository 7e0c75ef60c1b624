"""draftwise inside other software."""
