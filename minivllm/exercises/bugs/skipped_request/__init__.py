"""A request that can run is passed over in silence (vLLM #49097)."""
