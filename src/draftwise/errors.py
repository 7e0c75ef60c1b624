"""The one error of draftwise, in a file that imports nothing: commands need it to start fast."""


class DraftwiseError(Exception):
    """An error whose text says what was wrong and what to do next; commands print it alone."""
