"""Names of vllm/v1/engine."""
