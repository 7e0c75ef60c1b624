"""The simulator: policies on text with known acceptance probabilities; needs only numpy."""
