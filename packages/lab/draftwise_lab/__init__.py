"""The lab of draftwise: paper reproductions, the simulator, sweeps, replays and reports."""
