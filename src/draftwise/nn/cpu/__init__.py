"""Faster forwards on CPUs: packed weights and blocked layouts."""
