"""Names of vllm/inputs: the forms of a prompt."""

from minivllm.engine.input_processor import Prompt as PromptType
from minivllm.engine.input_processor import TextPrompt, TokensPrompt

__all__ = ["PromptType", "TextPrompt", "TokensPrompt"]
