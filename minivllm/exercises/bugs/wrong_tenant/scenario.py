"""One prompt, and four requests that must not all share it. Simulated: the engine has no adapters."""

from __future__ import annotations

from pathlib import Path

from minivllm.analysis.invariants import check_log
from minivllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from minivllm.core.messages import EngineCoreRequest
from minivllm.core.request import LoRARequest
from minivllm.exercises.runs import Run
from minivllm.sampling_params import SamplingParams
from minivllm.scenarios.definition import Scenario
from minivllm.scenarios.driver import Arrival
from minivllm.scenarios.simulate import simulate_to_log
from minivllm.scenarios.workload import Workload
from minivllm.trace.reader import Log

SCENARIO = Scenario(
    name="one-name-two-meanings",
    title="An adapter and a salt have the same name",
    teaches="A block's name holds all that its content depends on, and of which kind each is.",
    engine={},
    requests=(),
)
_PROMPT = list(range(100, 114))
_WANTS: dict[str, tuple[LoRARequest | None, str | None]] = {
    "R0": (LoRARequest("alice", "/adapters/alice-1"), None),
    "R1": (LoRARequest("alice", "/adapters/alice-2"), None),
    "R2": (None, "alice"),
    "R3": (LoRARequest("alice", "/adapters/alice-1"), None),
}


def run(path: Path | None) -> Run:
    """The scenario, without a model."""
    config = VllmConfig(
        model_config=ModelConfig(model="simulated"),
        scheduler_config=SchedulerConfig(
            max_num_seqs=4, max_num_batched_tokens=64, max_model_len=64, max_loras=2, semantics="fixed"
        ),
        cache_config=CacheConfig(block_size=4, num_gpu_blocks=33, hash_seed=b"workload"),
    )
    arrivals = [
        Arrival(
            4 * place,
            EngineCoreRequest(
                name, _PROMPT, SamplingParams(max_tokens=3), arrival_time=place, lora_request=lora, cache_salt=salt
            ),
        )
        for place, (name, (lora, salt)) in enumerate(_WANTS.items())
    ]
    log, result = simulate_to_log(Workload(SCENARIO.name, config, 1000, arrivals, 100), path)
    whole = Log(log.header, log.events, path=path)
    found = [(s, f"{v.invariant.id}: {m}") for v in check_log(whole) for s, m in v.violations]
    return Run(SCENARIO, {}, whole, result, sorted(found), path)
