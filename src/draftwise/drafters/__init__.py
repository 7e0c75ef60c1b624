"""Drafters: retrieval, language models and trained heads, behind one interface."""
