"""Loading needs hardly more memory than the weights: at most a fifth more, whatever the file and the precision."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.torch import save_file

from minivllm.config import ModelConfig, SchedulerConfig, VllmConfig
from minivllm.models.config import from_folder
from minivllm.models.errors import TooLittleMemoryError
from minivllm.models.registry import resolve
from minivllm.worker import worker as worker_module
from minivllm.worker.worker import Worker
from tests.models.gguf_checkpoints import gguf_name

SIZES: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 32000,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "max_position_embeddings": 64,
}
# VmHWM and not ru_maxrss: that begins with what the parent process had.
MEASURE = """
import sys, gguf.quants, torch
from pathlib import Path
from minivllm.models.loader import ModelLoader
from minivllm.models.model_zoo import find_model
from minivllm.models import llama

def memory(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))

folder, dtype, how = sys.argv[1], getattr(torch, sys.argv[2]), sys.argv[3]
loader, cpu = ModelLoader(find_model(folder)), torch.device("cpu")
for stored in (torch.float32, torch.bfloat16):  # the pages of torch's own code are no weights
    torch.isfinite(torch.zeros(2**16, dtype=dtype).copy_(torch.zeros(2**16, dtype=stored)).sum(dtype=torch.float32))
before = memory("VmRSS")
model = loader.dummy(cpu, dtype, 0) if how == "dummy" else loader.load(cpu, dtype)
print(memory("VmHWM") - before, loader.weight_bytes(dtype))
"""


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same sizes in two precisions: about 57 million numbers."""
    folders = {}
    for dtype in (torch.float32, torch.bfloat16):
        folder = tmp_path_factory.mktemp(str(dtype))
        (folder / "config.json").write_text(json.dumps(SIZES))
        slots = resolve("LlamaForCausalLM")(from_folder(folder), torch.device("meta"), dtype).weight_slots()
        save_file(
            {name: torch.zeros(slot.shape, dtype=dtype) for name, slot in slots.items()}, folder / "model.safetensors"
        )
        folders[f"{dtype}".removeprefix("torch.")] = folder
    folders["Q8_0"] = save_q8(tmp_path_factory.mktemp("gguf") / "m.gguf", slots)
    return folders


def save_q8(file: Path, slots: dict[str, torch.Tensor]) -> Path:
    """The same sizes as a .gguf file."""
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(SIZES["num_hidden_layers"])
    writer.add_embedding_length(SIZES["hidden_size"])
    writer.add_feed_forward_length(SIZES["intermediate_size"])
    writer.add_head_count(SIZES["num_attention_heads"])
    writer.add_context_length(SIZES["max_position_embeddings"])
    numbers, size = gguf.GGML_QUANT_SIZES[GGMLQuantizationType.Q8_0]
    for name, slot in slots.items():
        if slot.dim() == 1:
            writer.add_tensor(gguf_name(name), np.zeros(slot.shape, np.float32))
        else:
            rows = np.zeros((slot.shape[0], slot.shape[1] // numbers * size), np.uint8)
            writer.add_tensor(gguf_name(name), rows, raw_dtype=GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("stored", "loaded", "how"),
    [
        ("float32", "float32", "load"),
        ("bfloat16", "float32", "load"),
        ("float32", "bfloat16", "load"),
        ("Q8_0", "bfloat16", "load"),
        ("float32", "float32", "dummy"),
    ],
)
def test_peak_memory_is_the_weights_and_a_fifth(
    checkpoints: dict[str, Path], stored: str, loaded: str, how: str
) -> None:
    folder = checkpoints[stored]
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(folder), loaded, how], capture_output=True, text=True, check=True
    )
    peak, weights = (int(number) for number in done.stdout.split())
    assert weights > 100 * 2**20
    assert peak < 1.2 * weights


def test_a_model_that_does_not_fit_is_refused_before_it_takes_memory(
    checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "free_memory", lambda device: 100 * 2**20)
    config = VllmConfig(
        model_config=ModelConfig(model=str(checkpoints["float32"])),
        scheduler_config=SchedulerConfig(max_model_len=64),
    )
    with pytest.raises(TooLittleMemoryError, match=r"take 2\d\d\.\d MiB in float32, and 100\.0 MiB .* are missing"):
        Worker(config).load_model()
