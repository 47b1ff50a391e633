"""A prompt that ends inside a character comes back with the first output (vLLM #48853)."""
