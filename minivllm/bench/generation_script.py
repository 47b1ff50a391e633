"""Owns one engine under the generation benchmark: loads a model, then answers each line of stdin with one of JSON.

It runs under any Python, with minivllm, vLLM or transformers, and must be self-contained:

    python generation_script.py ENGINE ARGUMENTS

ARGUMENTS are those of the engine, as JSON. A line holds {"prompts": [[token, ...], ...], "output_lens": [n, ...],
"temperature": t, "arrivals": [seconds, ...] or null}; the answer is {"seconds": s}, with arrivals also when the first
and last token of each request came. With "observe" minivllm also tells its steps, and with "trace": [path, level] it
writes a log of them. The first answer, after loading, is {"version": ..., "threads": ..., "start_s": ...,
"can_be_watched": ...}: a core in a process of its own cannot.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

Job = dict[str, Any]
Run = Callable[[Job], dict[str, Any]]


def start_llm(engine: str, arguments: dict[str, Any]) -> tuple[Run, str]:
    """minivllm or vLLM, in this process. Both take the same arguments."""
    import importlib

    package = importlib.import_module(engine)
    llm = package.LLM(**arguments)
    has_text = not arguments.get("skip_tokenizer_init", False)

    def run(job: Job) -> dict[str, Any]:
        shared = {"temperature": job["temperature"], "ignore_eos": True, "detokenize": has_text}
        params = [package.SamplingParams(max_tokens=length, **shared) for length in job["output_lens"]]
        serve = at_once if job.get("arrivals") is None else over_time
        if job.get("observe"):
            import torch

            from minivllm.bench.device_memory import device_memory
            from minivllm.bench.step_observer import StepObserver

            with StepObserver(llm) as observer:
                answer = serve(llm, job, params)
            steps = [vars_of(step) for step in observer.steps]
            return {**answer, "steps": steps, "memory": device_memory(llm, torch.cuda)}
        if job.get("trace"):
            from pathlib import Path

            from minivllm.bench.traced_run import run_traced

            path, level = job["trace"]
            answer, facts = run_traced(llm, Path(path), level, lambda: serve(llm, job, params))
            return {**answer, "trace": facts}
        return serve(llm, job, params)

    return run, package.__version__


def vars_of(step: Any) -> dict[str, Any]:
    """The fields of an object that has slots."""
    return {name: getattr(step, name) for name in step.__slots__}


def at_once(llm: Any, job: Job, params: list[Any]) -> dict[str, Any]:
    """All requests are there from the start."""
    prompts = [{"prompt_token_ids": prompt} for prompt in job["prompts"]]
    start = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - start
    check(outputs, job)
    return {"seconds": seconds}


def over_time(llm: Any, job: Job, params: list[Any]) -> dict[str, Any]:
    """Each request is handed over when its moment has come; between steps, for the engine is one loop."""
    engine, arrivals, count = llm.llm_engine, job["arrivals"], len(job["prompts"])
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    outputs, sent, start = {}, 0, time.perf_counter()
    while len(last) < count:
        now = time.perf_counter() - start
        while sent < count and arrivals[sent] <= now:
            engine.add_request(f"bench-{sent}", {"prompt_token_ids": job["prompts"][sent]}, params[sent])
            sent += 1
        if not engine.has_unfinished_requests():
            time.sleep(max(0.0, min(arrivals[sent] - now, 0.01)))
            continue
        for output in engine.step():
            at = time.perf_counter() - start
            first.setdefault(output.request_id, at)
            if output.finished:
                last[output.request_id], outputs[output.request_id] = at, output
    names = [f"bench-{index}" for index in range(count)]
    seconds = time.perf_counter() - start
    check([outputs[name] for name in names], job)
    return {"seconds": seconds, "first_s": [first[name] for name in names], "last_s": [last[name] for name in names]}


def check(outputs: list[Any], job: Job) -> None:
    """Every engine gives the same number of tokens."""
    got = [len(output.outputs[0].token_ids) for output in outputs]
    assert got == job["output_lens"], "every request gets as many tokens as it asked for"


def start_transformers(arguments: dict[str, Any]) -> tuple[Run, str]:
    """Plain `generate` of transformers: prompts padded on the left, one batch."""
    import torch
    import transformers

    model = arguments["model"]
    if arguments.get("load_format") == "dummy":
        network = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(model))
        network = network.to(getattr(torch, arguments["dtype"])).eval()
    else:
        dtype = getattr(torch, arguments["dtype"])
        network = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=dtype).eval()
    network.generation_config.eos_token_id = None
    device = "cuda" if torch.cuda.is_available() else "cpu"
    network.to(device)

    def run(job: Job) -> dict[str, Any]:
        prompts, output_len = job["prompts"], max(job["output_lens"])
        assert output_len == min(job["output_lens"]), "transformers makes one batch: all outputs have one length"
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts], device=device)
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
        lengths = {"max_new_tokens": output_len, "min_new_tokens": output_len}
        start = time.perf_counter()
        with torch.inference_mode():
            out = network.generate(ids, attention_mask=mask, do_sample=False, pad_token_id=0, **lengths)
        rows = out.tolist()  # waits for a GPU
        seconds = time.perf_counter() - start
        assert len(rows[0]) == longest + output_len, "every request gets as many tokens as it asked for"
        return {"seconds": seconds}

    return run, transformers.__version__


def main() -> None:
    """Load, then answer until stdin ends. Whatever a library prints goes to stderr."""
    sys.path.pop(0)  # this folder: its modules must not be taken for those of an engine
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    start = time.perf_counter()
    engine, arguments = sys.argv[1], json.loads(sys.argv[2])
    run, version = start_transformers(arguments) if engine == "transformers" else start_llm(engine, arguments)
    import torch

    def answer(document: dict[str, Any]) -> None:
        print(json.dumps(document), file=answers, flush=True)

    loading = round(time.perf_counter() - start, 3)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    facts = {"version": version, "torch": torch.__version__, "threads": torch.get_num_threads(), "device": device}
    can_be_watched = engine == "minivllm" and not arguments.get("multiprocess", False)
    answer({**facts, "start_s": loading, "can_be_watched": can_be_watched})
    for line in sys.stdin:
        answer(run(json.loads(line)))


if __name__ == "__main__":
    main()
