"""Reports on bench results, trace replays, advice for other engines, and sweeps."""
