"""The doctor tells what there is and what is missing, with the command that helps."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from minivllm.entrypoints.cli import doctor
from minivllm.models import model_zoo
from tests.cli.conftest import Run


def test_everything_is_told_once_in_both_forms(run: Run) -> None:
    document = run("doctor", "--json").json
    assert document["schema"] == "minivllm.doctor/1"
    assert document["can_run"] is True
    names = [finding["name"] for finding in document["findings"]]
    assert len(set(names)) == len(names)
    assert {
        "python",
        "torch",
        "dependencies",
        "gpu",
        "triton",
        "gguf",
        "memory",
        "model stories-5m",
        "model smollm2",
    } <= set(names)
    ended = run("doctor")
    assert ended.code == 0
    for finding in document["findings"]:
        assert finding["name"] in ended.out
        if finding["remedy"]:
            assert f"run: {finding['remedy']}" in ended.out


def test_a_missing_model_that_can_be_fetched_is_no_fault(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    own = model_zoo.local_path
    monkeypatch.setattr(model_zoo, "local_path", lambda info: None if info.name == "smollm2" else own(info))
    ended = run("doctor")
    assert ended.code == 0
    assert "run: minivllm model pull smollm2" in ended.out


@pytest.mark.parametrize("lacking", ["model", "torch"])
def test_it_ends_with_3_if_the_default_model_cannot_run(
    run: Run, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    if lacking == "model":
        monkeypatch.setattr(model_zoo, "local_path", lambda info: None)
    else:
        own: Any = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else own(name))
    ended = run("doctor")
    assert ended.code == 3
    assert "the default model cannot run" in ended.out
    assert run("doctor", "--json").json["can_run"] is False


def test_a_dependency_that_cannot_be_imported_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    required = ["msgspec>=0.19", "pyzmq>=26", "no-such.package<2; sys_platform != 'none'", "other>=1; extra == 'test'"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: required)
    monkeypatch.setitem(sys.modules, "zmq", None)
    ended = run("doctor")
    assert ended.code == 3
    assert "dependencies    missing or broken: pyzmq, no-such.package\n" in re.sub(r"  +", "    ", ended.out)
    assert "run: pip install --force-reinstall pyzmq no-such.package" in ended.out


def test_every_declared_dependency_has_a_module_that_is_found() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    for text in project["dependencies"]:
        name = re.split(r"[^\w.-]", text, maxsplit=1)[0]
        assert doctor._can_import(name) or name == "triton", name
