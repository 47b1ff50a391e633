"""Every module can be imported where only the declared dependencies are installed."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]

PROBE = """
import importlib, json, pkgutil, sys
hidden = set(json.load(sys.stdin))

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}: it is not a declared dependency", name=name)

sys.meta_path.insert(0, Hide())
import minivllm
for module in pkgutil.walk_packages(minivllm.__path__, "minivllm."):
    if not module.name.endswith(".__main__"):
        importlib.import_module(module.name)
        print(module.name)
"""


def closure(requirements: list[str]) -> set[str]:
    """Names of the distributions that an installer brings for these, without extras that nobody asked for."""
    names: set[str] = set()
    todo = [(Requirement(text), "") for text in requirements]
    while todo:
        requirement, extra = todo.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        known = name in names
        names.add(name)
        try:
            own = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for asked in ([] if known else [""]) + sorted(requirement.extras):
            todo += [(Requirement(text), asked) for text in own]
    return names


def test_every_module_is_imported_with_the_declared_dependencies_alone() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    allowed = closure(project["dependencies"]) | {"minivllm"}
    hidden = [
        package
        for package, owners in importlib.metadata.packages_distributions().items()
        if not allowed & {canonicalize_name(owner) for owner in owners}
    ]
    assert {"hypothesis", "transformers"} <= set(hidden)
    program = [sys.executable, "-c", PROBE]
    done = subprocess.run(program, input=json.dumps(hidden), capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert {"minivllm.entrypoints.llm", "minivllm.entrypoints.cli.main"} <= set(done.stdout.split())
