from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.checkpoints import save_llama


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random Llama of two layers."""
    folder = tmp_path_factory.mktemp("tiny-llama")
    save_llama(folder)
    return folder
