"""Traces a runner with graphs in Triton's interpreter, beside a clock that no device has. Prints one JSON object."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from minivllm import LLM, SamplingParams
from minivllm.attention.triton import TritonBackend
from minivllm.bench.step_observer import StepObserver
from minivllm.bench.traced_run import run_traced
from minivllm.trace.device_clock import DeviceClock
from minivllm.trace.reader import read_log
from tests.trace.fake_device import FakeClock

SHAPE = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 96, "hidden_size": 16, "intermediate_size": 32,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": True, "eos_token_id": 1,
}  # fmt: skip


def main() -> None:
    clock = FakeClock(milliseconds=1.0)
    DeviceClock.of = staticmethod(lambda device: clock)  # type: ignore[method-assign]
    # Prefixes as short as an interpreter can do.
    TritonBackend.use_cascade_attention = lambda self, num_decodes, tokens, size: num_decodes > 1  # type: ignore[method-assign]
    settings = {"attention_backend": "triton", "cudagraph_mode": "FULL_AND_PIECEWISE", "async_scheduling": True}
    params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True, detokenize=False)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(SHAPE))
        llm = LLM(
            folder, load_format="dummy", skip_tokenizer_init=True, max_model_len=32, block_size=4, max_num_seqs=2,
            num_gpu_blocks_override=16, dtype="float32", **settings,
        )  # fmt: skip
        with StepObserver(llm) as observer:
            llm.generate([{"prompt_token_ids": [5, 6, 7]}], params, use_tqdm=False)
        path = Path(folder) / "run.jsonl"
        prompts = [{"prompt_token_ids": [8, 6, 7, 5, last]} for last in (2, 3)]
        _, facts = run_traced(llm, path, "step", lambda: llm.generate(prompts, params, use_tqdm=False))
        events = read_log(path).events
    steps = [(step.kind, step.graph_mode, step.device) for step in observer.steps if step.lengths]
    device = [[event.data["iteration"], event.data["name"]] for event in events if event.kind == "device.time"]
    batches = [event.data for event in events if event.kind == "prepare_inputs"]
    reasons = [[batch["graph_mode"], batch["graph_reason"]] for batch in batches]
    shared = [batch.get("prefix_tokens") for batch in batches]
    outputs = [event.data["type"] for event in events if event.kind == "message" and event.process == "engine_core"]
    told = {"failures": facts["failures"], "steps": steps, "device": device, "reasons": reasons}
    print(json.dumps({**told, "shared": shared, "messages": outputs}))


if __name__ == "__main__":
    main()
