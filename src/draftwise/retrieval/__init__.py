"""One retrieval index: the text itself, earlier answers, and a corpus on disk."""
