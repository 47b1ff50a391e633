"""A stop string ends an answer before min_tokens are there (vLLM #21987)."""
