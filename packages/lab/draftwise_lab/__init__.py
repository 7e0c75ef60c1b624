"""The lab of draftwise: paper reproductions, the simulator, sweeps, trace replays and reports."""
