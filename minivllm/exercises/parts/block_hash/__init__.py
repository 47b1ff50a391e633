"""Exercise: the name of a block."""
