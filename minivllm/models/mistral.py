"""Owns the Mistral architecture: Llama whose queries see only the last `sliding_window` tokens, if that is set.

The window itself is the attention backend's work; `DecoderConfig.window_of` tells each layer its own.

Upstream: vllm/model_executor/models/mistral.py.
"""

from __future__ import annotations

from minivllm.models.llama import Llama


class Mistral(Llama):
    """Mistral 7B and its relatives."""
