"""The report's figures, one file a subject; each function returns a matplotlib figure."""
