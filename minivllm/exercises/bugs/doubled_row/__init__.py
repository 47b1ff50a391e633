"""A swap of two rows through views leaves one of them twice (vLLM #48419)."""
