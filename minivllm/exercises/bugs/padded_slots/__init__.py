"""The padding of a graph writes into a page that is somebody's (vLLM #21196)."""
