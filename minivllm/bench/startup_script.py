"""Owns one start of our engine under the start-up benchmark: from nothing to the first token, phase by phase.

    python startup_script.py STARTED ARGUMENTS PROMPT_TOKENS

STARTED is when the process was started (`time.time()` of whoever did), ARGUMENTS are the engine's, as JSON. One line of
JSON comes back when the first token is there. Nothing that takes time is imported before its phase.
"""

import sys
import time

_AWAKE = time.time()  # before anything else: what came before is Python's own start


class Phases:
    """Seconds by phase. A phase that begins inside another one interrupts it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._names: list[str] = []
        self._since = time.perf_counter()

    def begin(self, name: str) -> None:
        """From here on, time is of this phase."""
        self._count()
        self.seconds.setdefault(name, 0.0)
        self._names.append(name)

    def end(self) -> None:
        """Back to the phase around it."""
        self._count()
        self._names.pop()

    def _count(self) -> None:
        now = time.perf_counter()
        if self._names:
            self.seconds[self._names[-1]] += now - self._since
        self._since = now

    def wrap(self, owner, name: str, phase: str) -> None:  # type: ignore[no-untyped-def]
        """Make every call of a function of a class a phase."""
        call = getattr(owner, name)

        def timed(*args, **kwargs):  # type: ignore[no-untyped-def]
            self.begin(phase)
            try:
                return call(*args, **kwargs)
            finally:
                self.end()

        setattr(owner, name, timed)


class KernelCount:
    """What Triton tells of each kernel that it compiles, or finds in its cache. It does so inside of phases."""

    def __init__(self) -> None:
        self.compiled, self.from_cache, self.compile_s = 0, 0, 0.0

    def listen(self) -> None:
        """Begin, if Triton is there at all."""
        try:
            from triton import knobs
        except ImportError:
            return
        knobs.compilation.listener = self._heard

    def _heard(self, *, src, metadata, metadata_group, times, cache_hit) -> None:  # type: ignore[no-untyped-def]
        if cache_hit:
            self.from_cache += 1
        else:
            self.compiled += 1
            self.compile_s += times.total / 1e6


def main() -> None:
    """Start, and tell."""
    import json
    from typing import Any

    started, arguments, length = float(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
    sys.path.pop(0)  # this folder: its modules must not be taken for others'
    phases, kernels = Phases(), KernelCount()
    phases.begin("import torch")
    import torch

    phases.end()
    phases.begin("import the engine")
    from minivllm import LLM, SamplingParams
    from minivllm.executor import uniproc  # noqa: F401 (the engine imports it when it starts)
    from minivllm.worker.cuda_graphs import CudaGraphs
    from minivllm.worker.worker import Worker

    if torch.cuda.is_available():
        kernels.listen()
    phases.end()
    phases.wrap(Worker, "__init__", "find the device")
    phases.wrap(Worker, "load_model", "load the weights")
    phases.wrap(Worker, "determine_num_gpu_blocks", "size the KV cache")
    phases.wrap(Worker, "initialize_cache", "allocate the KV cache")
    phases.wrap(CudaGraphs, "capture", "record graphs")
    if torch.cuda.is_available():
        from minivllm.worker.piecewise_graphs import PiecewiseGraphs  # imports Triton, which a CPU does not

        phases.wrap(PiecewiseGraphs, "capture", "record graphs")
    phases.begin("the rest of the engine")
    llm: Any = LLM(**arguments)
    phases.end()
    phases.begin("the first token")
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    if arguments.get("skip_tokenizer_init"):
        params.detokenize = False
    llm.generate([{"prompt_token_ids": [5 + k % 50 for k in range(length)]}], params, use_tqdm=False)
    phases.end()
    seconds = {"start Python": _AWAKE - started, **phases.seconds}
    counted = {"compiled": kernels.compiled, "from_cache": kernels.from_cache, "compile_s": kernels.compile_s}
    runner = llm.llm_engine.engine_core.model_executor.worker.runner
    recorded = sum(len(getattr(runner, name, ())) for name in ("_graphs", "_pieces"))
    print(json.dumps({"phases": seconds, "kernels": counted, "graphs": recorded}), flush=True)


if __name__ == "__main__":
    main()
