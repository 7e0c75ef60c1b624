"""WHICH plan: numpy only, no torch, no clock, no I/O.

Here the papers' algorithms, one a file; ``goodput`` is the default policy, ``wrappers`` change when
or by how many requests a policy is taught, ``baselines`` learn nothing (or nothing while they run),
``parts`` is what policies share. ``baselines.router`` alone reads a file, once, when it is made.
"""
