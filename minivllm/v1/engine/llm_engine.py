"""Names of vllm/v1/engine/llm_engine.py."""

from minivllm.engine.llm_engine import LLMEngine

__all__ = ["LLMEngine"]
