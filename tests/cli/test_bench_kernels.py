"""`minivllm bench kernels` on a machine without a GPU says what it lacks, and measures nothing."""

from __future__ import annotations

import pytest
import torch

from tests.cli.conftest import Run


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_without_a_gpu_it_says_what_is_missing(run: Run, options: tuple[str, ...]) -> None:
    ended = run("bench", "kernels", *options)
    assert ended.code == 3
    assert ended.out == ""
    assert "bench kernels needs a GPU, and PyTorch sees none here" in ended.error
