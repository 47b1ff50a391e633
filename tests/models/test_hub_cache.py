"""A model of the Hugging Face hub is found in the local cache by its hub name, without a network."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from huggingface_hub import constants

from minivllm.models.errors import ModelNotHereError
from minivllm.models.hub_cache import cache_folder, is_hub_name
from minivllm.models.loader import ModelLoader
from minivllm.models.model_zoo import find_model
from tests.models.checkpoints import save_llama

NAME = "Some-Owner/Tiny-0.1B"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    return tmp_path / "hub"


def download(hub: Path, commit: str, *, is_main: bool = False) -> Path:
    """Lay files out as the hub's library does: content in blobs, a snapshot of links, a ref."""
    repository = hub / "models--Some-Owner--Tiny-0.1B"
    blobs, snapshot = repository / "blobs", repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    save_llama(blobs / commit)
    for file in (blobs / commit).iterdir():
        (snapshot / file.name).symlink_to(os.path.relpath(file, snapshot))
    if is_main:
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text(commit)
    return snapshot


def test_a_downloaded_model_is_found_and_loads(hub: Path) -> None:
    snapshot = download(hub, "abc", is_main=True)
    files = find_model(NAME)
    assert (files.name, files.kind, files.path) == (NAME, "folder", snapshot)
    assert ModelLoader(files).config.vocab_size == 96


def test_main_is_preferred_and_any_other_commit_will_do(hub: Path) -> None:
    main, other = download(hub, "abc", is_main=True), download(hub, "def")
    assert find_model(NAME).path == main
    for file in main.iterdir():
        file.unlink()
    assert find_model(NAME).path == other


def test_an_absent_model_tells_the_command_that_fetches_it(hub: Path) -> None:
    with pytest.raises(ModelNotHereError, match=f"{hub}; run: hf download {NAME}") as error:
        find_model(NAME)
    assert error.value.is_lacking


def test_a_folder_of_that_name_comes_first(hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    download(hub, "abc", is_main=True)
    monkeypatch.chdir(tmp_path)
    save_llama(tmp_path / NAME)
    assert find_model(NAME).path == Path(NAME)


def test_the_cache_is_where_the_hubs_library_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    assert str(cache_folder()) == os.path.expanduser("~/.cache/huggingface/hub")
    assert Path(constants.default_cache_path).parts[-2:] == cache_folder().parts[-2:]
    monkeypatch.setenv("HF_HUB_CACHE", "/somewhere/else")
    assert cache_folder() == Path("/somewhere/else")


@pytest.mark.parametrize("name", ["../x", "a/b/c", "/a/b", "a/..", "plain", "a/", "./a", "~/a"])
def test_what_cannot_be_a_hub_name_is_not_taken_for_one(name: str) -> None:
    assert not is_hub_name(name)
