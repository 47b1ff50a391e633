"""A hit on blocks of another adapter or another salt (vLLM #44701, #30931)."""
