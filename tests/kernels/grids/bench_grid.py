"""Every case of `bench kernels` runs, and gives numbers: here on sizes that an interpreter can do."""

from __future__ import annotations

import torch

from minivllm.bench import kernel_cases as cases
from tests.kernels.grids.setup import Setup


def run(setup: Setup) -> int:
    dtype = torch.bfloat16 if setup.is_gpu else torch.float16
    model = cases.Sizes(64, 4, 2, 16, 96, 130, setup.device, dtype)
    chosen = [
        cases.decode_case(model, 3, 40),
        cases.decode_case(model, 2, 70, most_parts=4),
        cases.decode_case(model, 3, 40, uneven=True),
        cases.prefix_case(model, 3, 40),
        cases.prefill_case(model, 2, 33, fresh=False),
        cases.prefill_case(model, 2, 33, fresh=True),
        cases.rotary_case(model, 5),
        cases.rms_norm_case(model, 3),
        cases.silu_case(model, 3),
        *cases.linear_cases(model, 2),
        *cases.linear_cases(model, 9),
        *cases.fused_cases(model, 1),
        cases.sample_case(model, 2, "greedy", 0.0),
        cases.sample_case(model, 2, "top_p", 0.6, top_p=0.9, like_text=True),
        cases.sample_case(model, 2, "top_k and min_p", 0.6, top_k=5, min_p=0.01),
        cases.logprobs_case(model, 2),
    ]
    if setup.is_gpu:  # Hopper's own kernels take no small heads
        chosen.append(cases.prefill_case(cases.qwen3_06b(setup.device), 1, 1100, fresh=True))
        chosen.append(cases.decode_case(cases.qwen3_06b(setup.device), 20, 70, uneven=True))
    for case in chosen:
        assert case.num_bytes > 0
        assert case.copies >= 1
        makers = [case.make] if case.make_torch is None else [case.make, case.make_torch]
        for result in [make()() for make in makers]:
            outputs = result if isinstance(result, tuple) else (result,)
            assert all(x is None or not x.isnan().any() for x in outputs), f"{case.kernel} {case.size}"
    names = {case.kernel for case in cases.all_cases(setup.device)}
    assert names == {case.kernel for case in chosen}, "every kernel that is timed is run here"
    return len(chosen)
