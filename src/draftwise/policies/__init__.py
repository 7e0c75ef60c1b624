"""WHICH plan: one algorithm a file; numpy only, no torch, no clock, no I/O."""
