"""Owns what a model *is*: its sizes, its rope and its windows, read from config.json and checked. No torch.

A feature that the code does not compute is refused by name here: a model that loads but computes something else is
the worst failure an engine can have. Which features an architecture may have stands in `minivllm.models.registry`.

Upstream: transformers' configuration classes (LlamaConfig and its siblings), which vLLM reads in the same way.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from minivllm.models.errors import ModelError
from minivllm.models.registry import Architecture, architecture_of

# Far beyond any model: what is larger is damage, and must not become an allocation.
_MOST = {"num_hidden_layers": 2**10}
_MOST_OF_ANYTHING = 2**31 - 1


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding. Every `kind` but "default" stretches it to longer contexts than it was trained on.

    "factors" divides the frequency of each pair by a number of its own: what "llama3" comes to, written out by GGUF.
    """

    theta: float = 10000.0
    kind: Literal["default", "linear", "llama3", "factors"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192
    factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """A decoder of Llama's shape.

    Attributes:
        dtype: The checkpoint's own, None if it does not say.
        attention_bias, mlp_bias: What config.json says; an architecture may have a bias of its own accord.
        sliding_window: Tokens that a query sees, itself included; None is all.
        full_attention_layers: Layers to which the window does not apply.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: RopeConfig
    tie_word_embeddings: bool
    eos_token_ids: tuple[int, ...]
    dtype: str | None
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: int | None = None
    full_attention_layers: frozenset[int] = frozenset()

    def window_of(self, layer: int) -> int | None:
        """How many tokens a query of one layer sees; None is all."""
        return None if layer in self.full_attention_layers else self.sliding_window

    @property
    def weights_per_layer(self) -> int:
        """Numbers that each token is multiplied with in a layer."""
        heads = 2 * self.num_attention_heads + 2 * self.num_key_value_heads  # queries, their outputs, keys and values
        return self.hidden_size * (heads * self.head_dim + 3 * self.intermediate_size)

    @property
    def windows(self) -> frozenset[int | None]:
        """The different windows of all layers."""
        return frozenset(self.window_of(layer) for layer in range(self.num_hidden_layers))

    def __post_init__(self) -> None:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ModelError(
                f"num_attention_heads ({self.num_attention_heads}) must be a multiple of "
                f"num_key_value_heads ({self.num_key_value_heads})"
            )
        if self.head_dim % 2:
            raise ModelError(f"head_dim must be even for rotary embeddings, got {self.head_dim}")
        if self.rope.kind == "factors" and len(self.rope.factors) != self.head_dim // 2:
            raise ModelError(
                f"the frequency factors of rope: expected {self.head_dim // 2} of them, got {len(self.rope.factors)}"
            )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises ModelError if it is missing, broken, or not an object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelError(f"{path}: cannot be read as JSON ({error})") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path}: must hold a JSON object, got {type(value).__name__}")
    return cast(dict[str, Any], value)


def from_folder(folder: Path) -> DecoderConfig:
    """Read and check config.json (and generation_config.json, for the end-of-sequence ids) of a Hugging Face folder."""
    file = folder / "config.json"
    raw = read_json(file)
    try:
        return from_dict({**raw, "eos_token_id": _eos_token_id(folder, raw)})
    except ModelError as error:
        raise ModelError(f"{file}: {error}") from None


def from_dict(raw: dict[str, Any]) -> DecoderConfig:
    """Check a configuration under config.json's keys, wherever it comes from."""
    architectures = raw.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        raise ModelError("key 'architectures' must name the model's class, e.g. [\"LlamaForCausalLM\"]")
    architecture = architecture_of(str(architectures[0]))
    raw = architecture.defaults | {key: value for key, value in raw.items() if value is not None or key in _NULLABLE}
    _refuse_unsupported(raw, architecture)
    hidden_size = _positive_int(raw, "hidden_size")
    layers = _positive_int(raw, "num_hidden_layers")
    heads = _positive_int(raw, "num_attention_heads")
    if raw.get("head_dim") is None and hidden_size % heads:
        raise ModelError(f"hidden_size ({hidden_size}) must be a multiple of num_attention_heads ({heads})")
    window = _sliding_window(raw, architecture)
    return DecoderConfig(
        architecture=architecture.name,
        vocab_size=_positive_int(raw, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_positive_int(raw, "intermediate_size"),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=_positive_int(raw, "num_key_value_heads", heads),
        head_dim=_positive_int(raw, "head_dim", hidden_size // heads),
        max_position_embeddings=_positive_int(raw, "max_position_embeddings", 2048),
        rms_norm_eps=_positive_float(raw, "rms_norm_eps", 1e-6),
        rope=_rope(raw),
        tie_word_embeddings=_flag(raw, "tie_word_embeddings"),
        eos_token_ids=_token_ids(raw, "eos_token_id"),
        dtype=_dtype(raw),
        attention_bias=_flag(raw, "attention_bias"),
        mlp_bias=_flag(raw, "mlp_bias"),
        sliding_window=window,
        full_attention_layers=frozenset() if window is None else _full_attention_layers(raw, layers),
    )


# What a model computes unless its architecture names the key as a feature.
_ONLY = {"hidden_act": "silu", "attention_bias": False, "attention_out_bias": False, "mlp_bias": False}
# Keys for which null says something else than an absent key.
_NULLABLE = ("sliding_window",)


def _refuse_unsupported(raw: dict[str, Any], architecture: Architecture) -> None:
    method = raw.get("quantization_config")
    if method is not None:
        name = method.get("quant_method") if isinstance(method, dict) else method
        raise ModelError(
            f"quantization_config asks for {name!r}, and this engine reads quantised weights only from .gguf files"
        )
    for key, supported in _ONLY.items():
        value = raw.get(key, supported)
        if value != supported and key not in architecture.features:
            raise ModelError(f"{key} is {value!r}, and {architecture.name} is supported only with {supported!r}")


def _sliding_window(raw: dict[str, Any], architecture: Architecture) -> int | None:
    if "use_sliding_window" in architecture.features and not _flag(raw, "use_sliding_window"):
        return None
    if raw.get("sliding_window") is None:
        return None
    window = _positive_int(raw, "sliding_window")
    if not {"sliding_window", "use_sliding_window"} & set(architecture.features):
        raise ModelError(f"sliding_window is {window}, and {architecture.name} is supported only without one")
    return window


def _full_attention_layers(raw: dict[str, Any], layers: int) -> frozenset[int]:
    """Layers without the window: listed by `layer_types`, or the first `max_window_layers`."""
    types = raw.get("layer_types")
    if types is None:
        first_with_window = raw.get("max_window_layers", 0)
        if not isinstance(first_with_window, int) or first_with_window < 0:
            raise ModelError(f"max_window_layers must be an integer of at least 0, got {first_with_window!r}")
        return frozenset(range(min(first_with_window, layers)))
    if not isinstance(types, list) or len(types) != layers:
        raise ModelError(f"layer_types must be a list with one entry for each of the {layers} layers, got {types!r}")
    for kind in types:
        if kind not in ("full_attention", "sliding_attention"):
            raise ModelError(f"layer type {kind!r} is not supported; supported are full_attention, sliding_attention")
    return frozenset(i for i, kind in enumerate(types) if kind == "full_attention")


def _dtype(raw: dict[str, Any]) -> str | None:
    value = raw.get("dtype") or raw.get("torch_dtype")
    if value is not None and not isinstance(value, str):
        raise ModelError(f"dtype must be a string, got {value!r}")
    return value


def _flag(raw: dict[str, Any], key: str) -> bool:
    value = raw.get(key, False)
    if not isinstance(value, bool):
        raise ModelError(f"{key} must be true or false, got {value!r}")
    return value


def _rope(raw: dict[str, Any]) -> RopeConfig:
    """Rope from `rope_parameters` (transformers 5) or from `rope_theta` and `rope_scaling` (before)."""
    parameters = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(parameters, dict):
        raise ModelError(f"rope parameters must be an object, got {parameters!r}")
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind == "factors":  # from a .gguf file; config.json knows no such type
        return RopeConfig(_theta(raw, parameters), "factors", factors=_factors(parameters))
    if kind not in ("default", "linear", "llama3"):
        raise ModelError(f"rope type {kind!r} is not supported; supported are default, linear and llama3")
    if parameters.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0)) != 1.0:
        raise ModelError("partial_rotary_factor is not supported")
    theta = _theta(raw, parameters)
    if kind == "default":
        return RopeConfig(theta=theta)
    if kind == "linear":
        return RopeConfig(theta=theta, kind="linear", factor=_positive_float(parameters, "factor"))
    return RopeConfig(
        theta=theta,
        kind="llama3",
        factor=_positive_float(parameters, "factor"),
        low_freq_factor=_positive_float(parameters, "low_freq_factor"),
        high_freq_factor=_positive_float(parameters, "high_freq_factor"),
        original_max_position_embeddings=_positive_int(parameters, "original_max_position_embeddings"),
    )


def _theta(raw: dict[str, Any], parameters: dict[str, Any]) -> float:
    return _positive_float({"rope_theta": 10000.0, **raw, **parameters}, "rope_theta")


def _factors(parameters: dict[str, Any]) -> tuple[float, ...]:
    factors = parameters.get("factors")
    if not isinstance(factors, list) or not all(isinstance(factor, float) and factor > 0 for factor in factors):
        raise ModelError("the frequency factors of rope must be numbers above 0")
    return tuple(factors)


def _eos_token_id(folder: Path, raw: dict[str, Any]) -> Any:
    """generation_config.json knows better than config.json what ends a sequence."""
    generation = folder / "generation_config.json"
    eos = read_json(generation).get("eos_token_id") if generation.exists() else None
    return raw.get("eos_token_id") if eos is None else eos


def _token_ids(raw: dict[str, Any], key: str) -> tuple[int, ...]:
    value = raw.get(key)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(token_id, int) and token_id >= 0 for token_id in ids):
        raise ModelError(f"{key} must be a token id or a list of them, got {value!r}")
    return tuple(ids)


def _positive_int(raw: dict[str, Any], key: str, default: int | None = None) -> int:
    value = raw.get(key)
    value = default if value is None else value
    if value is None:
        raise ModelError(f"key {key!r} is missing")
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(f"{key} must be an integer of at least 1, got {value!r}")
    if value > (most := _MOST.get(key, _MOST_OF_ANYTHING)):
        raise ModelError(f"{key} is {value}, and no model has more than {most}")
    return value


def _positive_float(raw: dict[str, Any], key: str, default: float | None = None) -> float:
    value = raw.get(key)
    value = default if value is None else value
    if value is None:
        raise ModelError(f"key {key!r} is missing")
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ModelError(f"{key} must be a number above 0, got {value!r}")
    return float(value)
