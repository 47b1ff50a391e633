"""Owns a run without a model: the real scheduler and KV manager, made-up or recorded tokens."""

from __future__ import annotations

from minivllm.engine.core import EngineCore
from minivllm.executor.sim import SimExecutor, TokenRule, fake_token_rule
from minivllm.scenarios.driver import RunResult, run
from minivllm.scenarios.workload import Workload
from minivllm.trace.events import EventLog
from minivllm.trace.install import Installation
from minivllm.trace.probes import engine_probes


def simulate(workload: Workload, log: EventLog, token_rule: TokenRule | None = None) -> RunResult:
    """Run a workload; everything that is decided goes into the log.

    Args:
        workload: What to run.
        log: Gets the events.
        token_rule: Picks the tokens; None for the workload's own made-up ones.
    """
    core = EngineCore(workload.vllm_config, SimExecutor(token_rule or fake_token_rule(workload.vocab_size)))
    with Installation(engine_probes(log)) as installation:
        result = run(core, workload.arrivals, log, max_steps=workload.max_steps)
    assert not installation.failures, f"a probe failed: {installation.failures}"
    return result
