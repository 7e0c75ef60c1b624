"""INSIDE a draft: when to stop drafting; each a leaf behind the protocol ``Guide``."""
