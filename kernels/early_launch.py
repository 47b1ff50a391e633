"""Owns how a kernel begins before the one in front of it has ended ("programmatic dependent launch", from Hopper on).

Between two kernels a GPU lies idle for about a microsecond: the last programs end, the next ones are brought up. A
kernel that is launched early is brought up meanwhile, and waits inside itself for what it depends on:

    kernel A   |begin_early| wait |  work  .............|
    kernel B            |begin_early| weights ... | wait |  work ............|
    kernel C                     |begin_early| weights ...        | wait |  work ...

Two rules keep this right. Every program of an early kernel waits, also one that has nothing to do: then the end of B
includes the end of A, and C, which waits for B, may read what A wrote. And before its wait a kernel reads only what no
kernel writes, the weights, and writes nothing.

The second rule has one exception. Where kernels let the next one be brought up after their own wait, A began when the
kernel in front of it had waited, so everything before that one has ended when B begins. `hopper_decode` reads what was
written then, the step's plan and tables, and keys of earlier steps, while the rotation in front of it and the
projection in front of that are still at work. That is why decodes are planned before the first layer.

Whole steps are launched so if they have few rows: on an H200 a decode step of a 0.6B model took 0.70 ms instead of 0.93
with one request, 1.07 instead of 1.13 with 8, but 1.52 instead of 1.35 with 32, whose kernels fill the GPU and are in
each other's way. With more rows only some kernels are early, those whose file says so: a chain of products that are
written for it (`hopper_linear.py`) took 20.9 us a layer instead of 28.1 with 64 rows, 26.7 instead of 33.5 with 128.
Behind a kernel that is not launched early, others may be: it begins when all in front of it has ended. An environment
with MINIVLLM_PDL=0 when the first kernel of a device is launched turns it off.

Upstream: vllm/model_executor/layers/fused_moe/ (launch_pdl in its Triton kernels).
"""

from __future__ import annotations

import torch

from minivllm.kernels.launch import gpu_of
from minivllm.kernels.triton_guard import jit, tl

# When a kernel lets the next one be brought up: at its start, or when it has waited itself. At their start, kernels of
# small programs lie ready three or four deep, their weights read. A kernel whose programs fill the GPU should not lie
# there and take the place of others.
NEVER, AT_ITS_START, AFTER_ITS_WAIT = 0, 1, 2
MOST_EARLY_ROWS = 16


@jit
def begin_early(early: tl.constexpr):
    """AT_ITS_START: let the kernel behind this one be brought up, as soon as all programs of this one have come here.
    Else nothing."""
    if early == 1:
        tl.extra.cuda.gdc_launch_dependents()


@jit
def wait_for_earlier(early: tl.constexpr):
    """Wait until the kernels in front have ended, and what they wrote can be seen. AFTER_ITS_WAIT: only then let the
    next one be brought up."""
    if early > 0:
        tl.extra.cuda.gdc_wait()
    if early == 2:
        tl.extra.cuda.gdc_launch_dependents()


@jit
def wait_in_front(early: tl.constexpr):
    """Wait as above, and leave it to others of the program to let the next kernel be brought up."""
    if early > 0:
        tl.extra.cuda.gdc_wait()


def early_launch(
    device: torch.device, num_rows: int, when: int = AT_ITS_START, most_rows: int = MOST_EARLY_ROWS
) -> dict[str, int]:
    """What a launch of a kernel with a parameter `early` takes beside its own arguments.

    Args:
        device: Where it runs.
        num_rows: Rows that it works on, or requests.
        when: It lets the next kernel be brought up.
        most_rows: With more rows it is not launched early.
    """
    if gpu_of(device).launches_early and num_rows <= most_rows:
        return {"early": when, "launch_pdl": True}
    return {"early": NEVER}
