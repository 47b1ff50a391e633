"""README's commands are the ones that CI runs."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CI = (ROOT / ".ci/run").read_text(encoding="utf-8")


def ci_variable(name: str) -> str:
    match = re.search(rf"^{name}='([^']*)'$", CI, flags=re.M)
    assert match, f".ci/run sets no {name}"
    return match[1]


def test_ci_runs_readmes_test_command_word_for_word():
    command = ci_variable("TEST_COMMAND")
    assert f"```bash\n{command}\n```" in README
    assert command in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_readme_and_ci_install_the_torch_that_the_package_asks_for():
    torch = ci_variable("TORCH")
    assert torch in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    line = f'pip install "{torch}" --extra-index-url {ci_variable("TORCH_CPU_INDEX")}'
    for page in ("README.md", "CONTRIBUTING.md", "docs/quickstart.md"):
        assert line in (ROOT / page).read_text(encoding="utf-8"), page
    assert README.index(line) < README.index(ci_variable("TEST_COMMAND")), "torch comes first"


def test_ci_is_a_script_that_bash_accepts():
    assert os.access(ROOT / ".ci/run", os.X_OK)
    done = subprocess.run(["bash", "-n", str(ROOT / ".ci/run")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_first_screen_has_a_place_for_a_real_trace():
    first_screen = README.split("## ")[0]
    assert first_screen.index("<!-- trace:begin -->") < first_screen.index("<!-- trace:end -->")
