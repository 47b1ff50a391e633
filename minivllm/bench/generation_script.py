"""Owns one engine under the generation benchmark: loads a model, then answers each line of stdin with one of JSON.

It runs under any Python, with minivllm, vLLM or transformers, and must be self-contained:

    python generation_script.py ENGINE MODEL DTYPE

A line holds {"prompts": [[token, ...], ...], "output_len": n}; the answer is {"seconds": s}, and from minivllm also the
host time of a step. The first answer, after loading, is {"version": ..., "threads": ...}.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

Generate = Callable[[list[list[int]], int], dict[str, float]]


def start_llm(engine: str, model: str, dtype: str) -> tuple[Generate, str]:
    """minivllm or vLLM, in this process. Both take the same arguments."""
    import importlib

    package = importlib.import_module(engine)
    settings: dict[str, Any] = {"max_model_len": 512, "enable_prefix_caching": False, "max_num_seqs": 64}
    llm = package.LLM(model=model, dtype=dtype, **settings, **({"enforce_eager": True} if engine == "vllm" else {}))
    clock = HostClock(llm) if engine == "minivllm" else None

    def generate(prompts: list[list[int]], output_len: int) -> dict[str, float]:
        params = package.SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True)
        start = time.perf_counter()
        llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        seconds = time.perf_counter() - start
        return {"seconds": seconds, **(clock.take() if clock else {})}

    return generate, package.__version__


class HostClock:
    """What of minivllm's decode steps is neither forward pass nor logits nor sampling: plan, inputs, update.

    The clocks go around the calls of one engine's objects; the engine's code does not know them.
    """

    def __init__(self, llm: Any) -> None:
        self._tensors = 0.0  # seconds of the current step
        self._steps: list[tuple[float, float]] = []  # (seconds, seconds of tensors) of the steps that prefill nothing
        core = llm.llm_engine.engine_core
        runner = core.model_executor.worker.runner
        for owner, name in ((runner, "model_forward"), (runner.model, "compute_logits"), (runner.sampler, "forward")):
            setattr(owner, name, self._timed(getattr(owner, name)))
        step = llm.llm_engine.step

        def timed_step() -> Any:
            self._tensors, start = 0.0, time.perf_counter()
            result = step()
            last = runner.last_batch
            if last is not None and len(last.input_ids) == len(last.req_ids):
                self._steps.append((time.perf_counter() - start, self._tensors))
            return result

        llm.llm_engine.step = timed_step

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            start = time.perf_counter()
            result = call(*args)
            self._tensors += time.perf_counter() - start
            return result

        return timed

    def take(self) -> dict[str, float]:
        """The medians over the decode steps since the last call."""
        steps, self._steps = sorted(self._steps), []
        if not steps:
            return {}
        hosts = sorted(total - tensors for total, tensors in steps)
        return {"decode_step_ms": steps[len(steps) // 2][0] * 1e3, "host_ms": hosts[len(hosts) // 2] * 1e3}


def start_transformers(model: str, dtype: str) -> tuple[Generate, str]:
    """Plain `generate` of transformers: prompts padded on the left, one batch."""
    import torch
    import transformers

    network = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype)).eval()
    network.generation_config.eos_token_id = None

    def generate(prompts: list[list[int]], output_len: int) -> dict[str, float]:
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        lengths = {"max_new_tokens": output_len, "min_new_tokens": output_len}
        start = time.perf_counter()
        with torch.inference_mode():
            out = network.generate(ids, attention_mask=mask, do_sample=False, pad_token_id=0, **lengths)
        seconds = time.perf_counter() - start
        assert out.shape[1] == longest + output_len, "every engine gives the same number of tokens"
        return {"seconds": seconds}

    return generate, transformers.__version__


def main() -> None:
    """Load, then answer until stdin ends. Whatever a library prints goes to stderr."""
    sys.path.pop(0)  # this folder: its modules must not be taken for those of an engine
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    engine, model, dtype = sys.argv[1:4]
    start = start_transformers(model, dtype) if engine == "transformers" else start_llm(engine, model, dtype)
    import torch

    def answer(document: dict[str, Any]) -> None:
        print(json.dumps(document), file=answers, flush=True)

    answer({"version": start[1], "torch": torch.__version__, "threads": torch.get_num_threads()})
    for line in sys.stdin:
        job = json.loads(line)
        answer(start[0](job["prompts"], job["output_len"]))


if __name__ == "__main__":
    main()
