"""Exercise: attention over a context that is read piece by piece."""
