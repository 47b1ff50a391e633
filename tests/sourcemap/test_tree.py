"""The directory map has every file, with its process and what it owns."""

from __future__ import annotations

from minivllm.sourcemap.locate import PACKAGE, source_files
from minivllm.sourcemap.tree import directory_map


def test_every_file_is_on_it_once() -> None:
    paths = [entry.path for entry in directory_map() if not entry.is_folder]
    files = [path for path in source_files() if not path.name.startswith("__")]
    # Folders without a package are data.
    packaged = [path.relative_to(PACKAGE.parent).as_posix() for path in files if (path.parent / "__init__.py").exists()]
    assert sorted(paths) == sorted(packaged)


def test_every_entry_says_what_it_owns() -> None:
    for entry in directory_map():
        assert entry.owns, f"the docstring of {entry.path} says nothing"
        assert entry.process in ("frontend", "engine_core", "worker", "reader")
        assert not entry.upstream or entry.upstream.startswith("vllm/")


def test_processes_are_those_of_the_architecture() -> None:
    process = {entry.path: entry.process for entry in directory_map()}
    assert process["minivllm/core/scheduler.py"] == "engine_core"
    assert process["minivllm/engine/output_processor.py"] == "frontend"
    assert process["minivllm/engine/core_proc.py"] == "engine_core"
    assert process["minivllm/worker/gpu_model_runner.py"] == "worker"
    assert process["minivllm/maps/plan.py"] == "reader"
