"""An installed minivllm holds what the checkout holds, whichever way it was installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import minivllm

ROOT = Path(__file__).parents[2]
# What the build reads. Everything else of a checkout (caches, logs, .git) stays behind.
SOURCES = ("minivllm", "kernels", "walkthroughs", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")
SOURCES += ("CHANGELOG.md", "CONTRIBUTING.md")

PROBE = """
import minivllm, minivllm.kernels.reshape_and_cache as kernel, minivllm.learning.lesson as lesson
from pathlib import Path
assert Path(minivllm.__file__).is_relative_to(Path({home!r}).resolve()), minivllm.__file__
assert [head.name for head in lesson.lesson_heads()], "no lesson"
import minivllm.exercises.course as course
assert course.exercises(), "no exercise"
assert all(each.hints and each.task and each.tasks and each.solution.exists() for each in course.exercises())
assert kernel.reshape_and_cache_reference
assert not (Path({home!r}) / "kernels").exists(), "a top-level module named kernels would hide another package"
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """The sources in a folder of their own, links kept: building writes beside them."""
    folder = tmp_path_factory.mktemp("checkout")
    skip = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, symlinks=True, ignore=skip)
        elif source.exists():
            shutil.copy(source, folder / name)
    return folder


def build(folder: Path, kind: str) -> Path:
    """Build "sdist" or "wheel" with the build backend, without the network."""
    out = folder / "dist"
    out.mkdir(exist_ok=True)
    program = f"import setuptools.build_meta as backend; print(backend.build_{kind}({str(out)!r}))"
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def sdist(copy) -> Path:
    return build(copy, "sdist")


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory) -> Path:
    """The wheel, built from the sdist as an installer would."""
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    return build(source, "wheel")


def package_files() -> set[str]:
    """Every file below minivllm/, through its links, as it should be named in a wheel."""
    files = set()
    for folder, folders, names in os.walk(ROOT / "minivllm", followlinks=True):
        folders[:] = [name for name in folders if name != "__pycache__"]
        files |= {str((Path(folder) / name).relative_to(ROOT)) for name in names if not name.endswith(".pyc")}
    return files


def test_the_wheel_holds_every_module_once_and_no_top_level_kernels(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert len(names) == len(set(names))
    expected = package_files()
    assert expected - set(names) == set()
    assert {"minivllm/kernels/reshape_and_cache.py", "minivllm/walkthroughs/mixed_batch/lesson.md"} <= expected
    tops = {name.split("/")[0] for name in names}
    assert tops == {"minivllm", f"minivllm-{minivllm.__version__}.dist-info"}
    assert not [name for name in names if "__pycache__" in name]
    assert any(name.endswith("LICENSE") for name in names)


def test_the_version_has_one_source(wheel):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" in project["dynamic"]
    assert wheel.name.startswith(f"minivllm-{minivllm.__version__}-")


def test_a_wheel_works(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    program = PROBE.format(home=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_checkout_reaches_the_linked_folders():
    for name in ("kernels", "walkthroughs"):
        link = ROOT / "minivllm" / name
        assert link.is_symlink()
        assert os.readlink(link) == f"../{name}"
