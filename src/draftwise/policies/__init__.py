"""WHICH plan: one algorithm a file; numpy only, no torch, no clock, no I/O.

(But for ``examples``, which reads the router's file once, when it is made.)
"""
