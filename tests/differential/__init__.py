"""Owns the comparison of our plans with those of an installed vLLM 0.27.1, on workloads that nobody wrote by hand."""
