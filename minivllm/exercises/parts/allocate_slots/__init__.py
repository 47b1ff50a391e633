"""Exercise: blocks for the tokens that are about to be computed."""
