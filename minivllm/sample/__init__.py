"""Sampling: from a row of scores to a token."""
