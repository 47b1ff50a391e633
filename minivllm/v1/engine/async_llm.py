"""Names of vllm/v1/engine/async_llm.py."""

from minivllm.engine.async_llm import AsyncLLM
from minivllm.engine.exceptions import EngineDeadError

__all__ = ["AsyncLLM", "EngineDeadError"]
