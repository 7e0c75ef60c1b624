"""Faster forwards on CPUs: packed weights, blocked layouts and compiled graphs."""
