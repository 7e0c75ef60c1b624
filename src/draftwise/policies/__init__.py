"""WHICH plan: one algorithm a file; numpy only, no torch, no clock, no I/O (``examples`` alone reads
the router's file, once, before it plays)."""
