"""Programs as users write them for vLLM. With `minivllm` for `vllm` in their imports they run here."""
