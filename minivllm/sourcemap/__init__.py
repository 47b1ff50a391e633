"""The source map: which of our symbols stands for which of vLLM's."""
