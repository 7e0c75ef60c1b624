"""What policies share: checks of their input, saved state, tallies, draws."""
