"""Draft heads that read a target's hidden states: EAGLE."""
