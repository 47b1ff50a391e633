"""A hit that was found earlier, and is none any more (vLLM #18957)."""
