"""Exercise: narrowing a distribution, and drawing from it."""
