"""The built site, once for all tests of it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.generators import DOCS

TOOLS = ("mkdocs", "material", "mkdocstrings")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site; .ci/run has built it and says where. The build is strict: a warning fails it."""
    if built := os.environ.get("MINIVLLM_SITE"):
        return Path(built)
    if missing := [name for name in TOOLS if importlib.util.find_spec(name) is None]:
        pytest.skip(f"{missing[0]} is not installed: pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("built") / "site"
    command = [sys.executable, str(DOCS / "build_site.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder
