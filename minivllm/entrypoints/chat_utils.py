"""Owns the way from a conversation to a prompt: messages are checked, and the model's chat template writes them down.

Upstream: vllm/entrypoints/chat_utils.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minivllm.engine.input_processor import TokensPrompt
from minivllm.entrypoints.chat_template import render
from minivllm.sourcemap.registry import on_map
from minivllm.tokenizer import Tokenizer

Message = dict[str, Any]


def load_chat_template(chat_template: str | Path | None) -> str | None:
    """The source of a template that is given as itself, or by the name of its file.

    Upstream: vllm/entrypoints/chat_utils.py::load_chat_template.

    Raises:
        ValueError: It looks like a file's name, and there is no such file, or none of text.
    """
    if chat_template is None or (isinstance(chat_template, str) and set("{}\n") & set(chat_template)):
        return chat_template
    try:
        return Path(chat_template).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a text in UTF-8"
        raise ValueError(f"chat_template {str(chat_template)!r} is neither Jinja source nor a file: {why}") from None


@on_map("chat to prompt", vllm="vllm/renderers/hf.py::safe_apply_chat_template", process="frontend")
def apply_chat_template(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    *,
    chat_template: str | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    tools: list[dict[str, Any]] | None = None,
    **variables: Any,
) -> TokensPrompt:
    """Write a conversation as the prompt that the model was trained on.

    Args:
        tokenizer: The model's tokenizer, whose own template is used if no other is given.
        messages: Each has a "role" and a "content": text, or a list of `{"type": "text", "text": ...}`.
        chat_template: Jinja source.
        add_generation_prompt: End with the beginning of an answer.
        continue_final_message: End inside the last message, for the model to go on with it.
        tools: Functions that the model may call, as JSON schemas.
        **variables: What else the template can use.

    Raises:
        ValueError: A message that is none, no template, or a template that fails.
    """
    source = chat_template if chat_template is not None else tokenizer.chat_template
    if source is None:
        raise ValueError("this model has no chat template: pass one as chat_template, or use generate")
    if add_generation_prompt and continue_final_message:
        raise ValueError("add_generation_prompt and continue_final_message exclude each other: set one to False")
    checked = [_check(message, position) for position, message in enumerate(messages)]
    if not checked:
        raise ValueError("the conversation is empty: give it at least one message")
    text = render(
        source,
        **{
            **tokenizer.special_tokens,
            "messages": checked,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **variables,
        },
    )
    if continue_final_message:
        text = _cut_after(text, checked[-1]["content"])
    # The template has written the special tokens that belong there.
    return {"prompt_token_ids": tokenizer.encode(text, add_special_tokens=False), "prompt": text}


def _check(message: Any, position: int) -> Message:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise ValueError(f"message {position} must be a dict with a 'role' and a 'content', got {message!r:.80}")
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(_text_of(part, position) for part in content)
    if content is not None and not isinstance(content, str):
        raise ValueError(f"the content of message {position} must be text, got {type(content).__name__}")
    return {**message, "content": content or ""}


def _text_of(part: Any, position: int) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and part.get("type", "text") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    raise ValueError(f"message {position} has a part of type {kind!r}; only text can be read here")


def _cut_after(text: str, content: str) -> str:
    """The prompt up to the end of the last message, without what the template puts behind it."""
    start = text.rfind(content.strip())
    if start < 0:
        raise ValueError("the chat template changes the last message, so it cannot be continued")
    # A template may strip what it is given.
    is_whole = text.startswith(content.lstrip(), start)
    return text[: start + len(content.lstrip() if is_whole else content.strip())]
