"""Exercise: finding the longest cached beginning of a request."""
