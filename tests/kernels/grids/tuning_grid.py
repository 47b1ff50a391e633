"""Every setting that `minivllm.bench.tuning` tries computes what the kernel's own rule computes."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from minivllm.bench import kernel_cases as cases
from minivllm.bench import tuning
from tests.kernels.grids.setup import Setup


def sweeps(setup: Setup) -> Iterator[tuning.Sweep]:
    """All kinds of settings, on sizes that an interpreter can do."""
    model = cases.Sizes(64, 4, 2, 16, 96, 130, setup.device, torch.bfloat16 if setup.is_gpu else torch.float16)
    yield tuning.Sweep(cases.decode_case(model, 3, 40), tuning.decode_settings((32, 64), head_dim=512)[::3])
    yield tuning.Sweep(cases.prefill_case(model, 2, 33, fresh=True), tuning.prefill_settings((64,), (32, 64))[::4])
    yield tuning.Sweep(cases.decode_case(model, 1, 70), tuning.part_settings()[::2])
    yield tuning.Sweep(cases.linear_case(model, "o", 2, 64, 64), tuning.gemv_settings((1, 2), (1, 2)))
    yield tuning.Sweep(cases.linear_case(model, "o", 9, 64, 64), tuning.gemm_settings()[::7])


def run(setup: Setup) -> int:
    count = 0
    for sweep in sweeps(setup):
        times = iter(range(1000, 0, -1))  # each faster than all before it: the last one that is right wins
        outcome = tuning.run_sweep(sweep, lambda runs, times=times: float(next(times)))
        wrong = {name: why for name, why in outcome.tried.items() if isinstance(why, str)}
        assert not wrong, f"{sweep.case.kernel}: {wrong}"
        assert outcome.best == sweep.settings[-1].name
        count += len(sweep.settings)
    return count
