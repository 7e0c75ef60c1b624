"""Fixed lengths against acceptance heads, on the plane of verification and discard rates."""
