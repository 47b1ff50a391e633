"""Names of vllm/distributed that scripts use which make one `LLM` after the other."""

from __future__ import annotations

import gc


def cleanup_dist_env_and_memory() -> None:
    """Give back the memory of models that nobody holds any more. There is nothing distributed to take down.

    Upstream: vllm/distributed/parallel_state.py::cleanup_dist_env_and_memory.
    """
    gc.collect()
