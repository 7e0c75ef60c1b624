"""Benchmarks: prompts from any source, methods, paired timing."""
