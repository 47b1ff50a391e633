"""minivllm: a compact engine with vLLM V1's names and boundaries, and the maps to read vLLM by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minivllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
    from minivllm.engine.async_llm import AsyncLLM
    from minivllm.engine.async_llm import AsyncLLM as AsyncLLMEngine
    from minivllm.engine.input_processor import Prompt as PromptType
    from minivllm.engine.input_processor import TextPrompt, TokensPrompt
    from minivllm.engine.llm_engine import LLMEngine
    from minivllm.entrypoints.llm import LLM
    from minivllm.outputs import CompletionOutput, RequestOutput
    from minivllm.sampling_params import SamplingParams

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "CompletionOutput",
    "EngineArgs",
    "LLMEngine",
    "PromptType",
    "RequestOutput",
    "SamplingParams",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
]

# Names are imported on first use, so that `import minivllm` costs nothing and never imports torch.
_HOME = {
    "LLM": "minivllm.entrypoints.llm",
    "AsyncEngineArgs": "minivllm.engine.arg_utils",
    "AsyncLLM": "minivllm.engine.async_llm",
    "AsyncLLMEngine": "minivllm.engine.async_llm",
    "CompletionOutput": "minivllm.outputs",
    "EngineArgs": "minivllm.engine.arg_utils",
    "LLMEngine": "minivllm.engine.llm_engine",
    "PromptType": "minivllm.engine.input_processor",
    "RequestOutput": "minivllm.outputs",
    "SamplingParams": "minivllm.sampling_params",
    "TextPrompt": "minivllm.engine.input_processor",
    "TokensPrompt": "minivllm.engine.input_processor",
}
# Where vLLM has a second name for something.
_NAME_THERE = {"AsyncLLMEngine": "AsyncLLM", "PromptType": "Prompt"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'minivllm' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOME[name]), _NAME_THERE.get(name, name))


def __dir__() -> list[str]:
    return __all__
