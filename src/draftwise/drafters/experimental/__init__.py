"""Drafters that were tested with random heads only: MTP, DFlash and Medusa."""
