"""The laboratory of draftwise: what reproduces papers, simulates, sweeps, replays and reports."""
