"""Text is held back for a stop string, and its token ids are not (vLLM #51641)."""
