"""Owns what all tests share: how thorough the property tests are, and a tiny model.

The default run tries the same examples every time: a red run means that the change before it is at fault.
MINIVLLM_HYPOTHESIS_PROFILE=thorough searches for new ones, for long.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

# A shell starts what runs in the background with Ctrl-C ignored; tests interrupt themselves.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Several processes share the cores: before anything imports torch, and for the programs that tests start.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings

_ALL = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}
settings.register_profile("quick", max_examples=100, stateful_step_count=50, derandomize=True, **_ALL)
settings.register_profile("thorough", max_examples=1000, stateful_step_count=100, print_blob=True, **_ALL)
settings.load_profile(os.environ.get("MINIVLLM_HYPOTHESIS_PROFILE", "quick"))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a model with random weights, on which every scenario runs in seconds."""
    from tests.tiny_model import save_tiny_model

    return save_tiny_model(tmp_path_factory.mktemp("tiny-model"))
