"""Owns how a model comes into memory: checked as a whole first, then copied tensor by tensor.

Upstream: vllm/model_executor/model_loader/default_loader.py.
"""

from __future__ import annotations

from pathlib import Path

import torch

from minivllm.models.config import DecoderConfig, from_folder
from minivllm.models.errors import ModelError
from minivllm.models.gguf_file import GGUFFile
from minivllm.models.model_zoo import ModelFiles
from minivllm.models.registry import CausalLM, resolve
from minivllm.models.weights import SafetensorsWeights, WeightFile
from minivllm.sourcemap.registry import on_map

_DUMMY_NUMBERS_AT_ONCE = 2**20
# Tables that old checkpoints store and every implementation computes.
_COMPUTED = ("rotary_emb.inv_freq",)


class ModelLoader:
    """Loads one model, from whatever kind of files it lives in."""

    def __init__(self, files: ModelFiles) -> None:
        self._files = files
        self._gguf = GGUFFile(files.path) if files.kind == "gguf" else None
        self.config: DecoderConfig = self._gguf.config if self._gguf else from_folder(files.path)

    def weight_bytes(self, dtype: torch.dtype) -> int:
        """Memory that the weights will take."""
        slots = _skeleton(self.config, self._files.path).weight_slots()
        return sum(slot.numel() for slot in slots.values()) * dtype.itemsize

    def biases(self) -> list[str]:
        """Which products of a layer have a bias."""
        names = _skeleton(self.config, self._files.path).weight_slots()
        return sorted({name.split(".")[-2] for name in names if name.endswith(".bias")})

    def quantisations(self) -> dict[str, int]:
        """How many tensors of a .gguf file are stored in each type; empty for folders."""
        return self._gguf.types() if self._gguf else {}

    def stored(self) -> dict[str, tuple[str, str]]:
        """Of each tensor, by its Hugging Face name: its name in the file, and its type there."""
        return (self._gguf or SafetensorsWeights(self._files.path)).stored()

    def skeleton(self) -> CausalLM:
        """The model without its weights: for its shapes and names."""
        return _skeleton(self.config, self._files.path)

    @on_map(
        "load the weights",
        vllm="vllm/model_executor/model_loader/default_loader.py::DefaultModelLoader.load_weights",
        plane="data",
        process="worker",
    )
    def load(self, device: torch.device, dtype: torch.dtype) -> CausalLM:
        """The model with its weights from disk."""
        weights: WeightFile = self._gguf or SafetensorsWeights(self._files.path)
        _check(self.config, weights)
        model = resolve(self.config.architecture)(self.config, device, dtype)
        for name, slot in model.weight_slots().items():
            weights.copy_into(name, slot)
        return model

    def dummy(self, device: torch.device, dtype: torch.dtype, seed: int) -> CausalLM:
        """The model with random weights: the same for every run with this seed.

        They are drawn where they are needed: a GPU draws its own, because a CPU takes a minute for eight billion.
        """
        model = resolve(self.config.architecture)(self.config, device, dtype)
        generator = torch.Generator(device).manual_seed(seed)
        for name, slot in model.weight_slots().items():
            if name.endswith("norm.weight"):
                slot.fill_(1.0)
            else:
                for part in torch.split(slot.view(-1), _DUMMY_NUMBERS_AT_ONCE):
                    part.copy_(torch.randn(part.shape, generator=generator, device=device) * 0.02)
        return model


def _skeleton(config: DecoderConfig, file: Path) -> CausalLM:
    """The model for its shapes only. Memory that nobody writes to is never given out, so this takes none. (The device
    "meta" would do as well, but imports 500 modules of torch, and that takes longer than to load a small model.)"""
    try:
        return resolve(config.architecture)(config, torch.device("cpu"), torch.bfloat16)
    except RuntimeError:
        sizes = (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "head_dim",
        )
        shown = ", ".join(f"{name} {getattr(config, name)}" for name in sizes)
        raise ModelError(f"{file}: no machine has the memory for a model of these sizes: {shown}") from None


def _check(config: DecoderConfig, weights: WeightFile) -> None:
    """Compare the tensors that the model wants with those that the files have, before any memory is taken."""
    shapes = weights.shapes()
    if config.num_hidden_layers > len(shapes):
        raise ModelError(
            f"{weights.file_of('')}: {len(shapes)} tensors cannot fill num_hidden_layers ({config.num_hidden_layers}): "
            "configuration and weights do not fit together"
        )
    slots = _skeleton(config, weights.file_of("")).weight_slots()
    tied = config.tie_word_embeddings
    ignored = {name for name in shapes if name.endswith(_COMPUTED) or (tied and name == "lm_head.weight")}
    missing = sorted(slots.keys() - shapes.keys())
    if missing:
        name = missing[0]
        raise ModelError(
            f"{weights.file_of(name)}: tensor {name} is missing (expected shape {tuple(slots[name].shape)}; "
            f"{len(missing)} of {len(slots)} tensors are missing)"
        )
    unexpected = sorted(shapes.keys() - slots.keys() - ignored)
    if unexpected:
        name = unexpected[0]
        raise ModelError(
            f"{weights.file_of(name)}: tensor {name} {shapes[name]} belongs to no layer of this model "
            f"({len(unexpected)} unexpected tensors): configuration and weights do not fit together"
        )
    for name, slot in slots.items():
        if shapes[name] != tuple(slot.shape):
            raise ModelError(
                f"{weights.file_of(name)}: tensor {name}: expected shape {tuple(slot.shape)}, got {shapes[name]}"
            )
