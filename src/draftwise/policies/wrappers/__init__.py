"""Policies around a policy: they change when it learns, or which requests share it."""
