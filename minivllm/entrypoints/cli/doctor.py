"""Owns `minivllm doctor`: what this machine can do, what it lacks, and which command would help."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import typer

from minivllm import __version__
from minivllm.entrypoints.cli.common import JsonOption, examples, print_json
from minivllm.entrypoints.cli.errors import LACKING, user_errors

Status = Literal["ok", "missing", "broken"]
# Distributions whose module has another name.
_MODULES = {"pyzmq": "zmq"}
_MARKS: dict[Status, str] = {"ok": "ok", "missing": "--", "broken": "!!"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Attributes:
        name: What was looked at.
        status: "missing" is fine to do without, "broken" keeps the default model from running.
        detail: What was found.
        remedy: The command that would help, if something is missing.
    """

    name: str
    status: Status
    detail: str
    remedy: str | None = None


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog=examples("minivllm doctor", "minivllm doctor --json"))(user_errors(doctor))


def doctor(as_json: JsonOption = False) -> None:
    """Look at what this machine can do; ends with 3 if the default model cannot run."""
    findings = [
        _python(),
        _torch(),
        _dependencies(),
        _gpu(),
        _triton(),
        _steps(),
        *_attention_of_others(),
        _cpu_products(),
        _cpu_operations(),
        _package("gguf", ".gguf models"),
        _memory(),
        _disk(),
        *_models(),
    ]
    can_run = all(finding.status != "broken" for finding in findings)
    if as_json:
        print_json("doctor", {"can_run": can_run, "findings": [asdict(finding) for finding in findings]})
    else:
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            print(f"{_MARKS[finding.status]}  {finding.name:<{width}}  {finding.detail}")
            if finding.remedy is not None:
                print(f"    {'':<{width}}  run: {finding.remedy}")
        print("the default model can run" if can_run else "the default model cannot run: see the lines with !!")
    if not can_run:
        raise typer.Exit(LACKING)


def _python() -> Finding:
    return Finding("python", "ok", f"{platform.python_version()} on {platform.platform()}, minivllm {__version__}")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package) if importlib.util.find_spec(package) else None
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None


def _torch() -> Finding:
    version = _version("torch")
    if version is None:
        return Finding("torch", "broken", "not installed; nothing can run a model without it", "pip install torch")
    try:
        import torch
    except (ImportError, OSError) as error:
        return Finding(
            "torch", "broken", f"{version}, cannot be loaded: {error}", "pip install --force-reinstall torch"
        )
    return Finding("torch", "ok", f"{version}, {torch.get_num_threads()} threads on {os.cpu_count()} CPU cores")


def _dependencies() -> Finding:
    """Everything that the installed package asks for, whether or not this command needs it."""
    try:
        required = importlib.metadata.requires("minivllm") or []
    except importlib.metadata.PackageNotFoundError:
        return Finding("dependencies", "ok", "unknown: minivllm runs from a folder and is not installed")
    # torch and triton have lines of their own.
    names = [re.split(r"[^\w.-]", text, maxsplit=1)[0] for text in required if "extra ==" not in text]
    names = [name for name in names if name not in ("torch", "triton")]
    missing = [name for name in names if not _can_import(name)]
    if missing:
        detail = f"missing or broken: {', '.join(missing)}"
        return Finding("dependencies", "broken", detail, f"pip install --force-reinstall {' '.join(missing)}")
    return Finding("dependencies", "ok", ", ".join(names))


def _can_import(distribution: str) -> bool:
    module = _MODULES.get(distribution, distribution.replace("-", "_"))
    try:
        importlib.import_module(module)
    except (ImportError, OSError):
        return False
    return True


def _gpu() -> Finding:
    if _version("torch") is None:
        return Finding("gpu", "missing", "cannot be looked at without torch")
    import torch

    if not torch.cuda.is_available():
        return Finding("gpu", "missing", "no CUDA GPU that torch can use: models run on the CPU, in float32")
    names = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return Finding("gpu", "ok", "; ".join(f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB" for gpu in names))


def _triton() -> Finding:
    if sys.platform != "linux":
        return Finding("triton", "missing", "there is none for this system; PyTorch's own operations are used")
    return _package("triton", "kernels; PyTorch's own operations are used")


def _steps() -> Finding:
    """How a step would run here by default."""
    if _version("torch") is None:
        return Finding("steps", "missing", "cannot be looked at without torch")
    import torch

    from minivllm.attention.selector import select_backend
    from minivllm.config import ModelConfig, VllmConfig
    from minivllm.worker.runner_choice import why_no_graphs

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    attention, _ = select_backend(device, 128, torch.bfloat16 if device.type == "cuda" else torch.float32)
    obstacle = why_no_graphs(VllmConfig(model_config=ModelConfig(model="any")), attention, device)
    if obstacle is None:
        how = f"CUDA graphs, with prompts in pieces, planned ahead; attention by {attention.name}"
        return Finding("steps", "ok", how)
    return Finding("steps", "ok", f"launched one operation after the other: {obstacle}; attention by {attention.name}")


def _attention_of_others() -> list[Finding]:
    """Whether kernels of other projects could be asked for by name, with a model of the usual head size."""
    names = ("flash_attn", "flashinfer")
    if _version("torch") is None:
        return [Finding(name, "missing", "cannot be looked at without torch") for name in names]
    import torch

    from minivllm.attention.selector import select_backend

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    _, reasons = select_backend(device, 128, torch.bfloat16)
    return [Finding(name, *_can_run(reasons[name].removeprefix("left: "))) for name in names]


def _can_run(reason: str) -> tuple[Status, str]:
    return ("ok" if reason.startswith("it can run") else "missing"), reason


def _cpu_products() -> Finding:
    """How a CPU here would multiply in each precision."""
    if _version("torch") is None:
        return Finding("cpu products", "missing", "cannot be looked at without torch")
    import torch

    from minivllm.layers.linear import can_pack

    if not can_pack(torch.float32):
        return Finding("cpu products", "ok", "PyTorch's own: this build of it has no oneDNN")
    if can_pack(torch.bfloat16):
        unit = next((name for name in ("amx_bf16", "avx512_bf16") if name in _cpu_flags()), "no unit of its own")
        return Finding("cpu products", "ok", f"oneDNN with packed weights, float32 and bfloat16 ({unit})")
    return Finding("cpu products", "ok", "oneDNN with packed weights; bfloat16 would be slow here, take float32")


def _cpu_flags() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return ""


def _cpu_operations() -> Finding:
    if _version("torch") is None:
        return Finding("cpu operations", "missing", "cannot be looked at without torch")
    from minivllm.layers.native import availability

    used, reason = availability()
    if used:
        return Finding("cpu operations", "ok", f"norm, rotation, gate and paged attention in C, {reason}")
    return Finding("cpu operations", "missing", f"PyTorch's own, which take longer: {reason}")


def _package(package: str, use: str) -> Finding:
    version = _version(package)
    if version is None:
        return Finding(package, "missing", f"not installed; it is for {use}", f"pip install {package}")
    return Finding(package, "ok", version)


def _memory() -> Finding:
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        total, free = (page * os.sysconf(name) / 2**30 for name in ("SC_PHYS_PAGES", "SC_AVPHYS_PAGES"))
    except (ValueError, OSError, AttributeError):
        return Finding("memory", "ok", "unknown on this system")
    return Finding("memory", "ok", f"{total:.1f} GiB, {free:.1f} GiB of it unused")


def _disk() -> Finding:
    from minivllm.models.model_zoo import data_home

    home = data_home()
    folder = next(parent for parent in (home, *home.parents) if parent.exists())
    if not os.access(folder, os.W_OK):
        return Finding("data folder", "missing", f"{home}: no permission to write; set MINIVLLM_HOME to another folder")
    return Finding("data folder", "ok", f"{home}, {shutil.disk_usage(folder).free / 2**30:.1f} GiB free")


def _models() -> list[Finding]:
    from minivllm.engine.arg_utils import DEFAULT_MODEL
    from minivllm.models.model_zoo import list_models, local_path

    findings = []
    for model in list_models():
        path = local_path(model)
        is_default = model.name == DEFAULT_MODEL
        name = f"model {model.name}"
        if path is not None:
            findings.append(Finding(name, "ok", f"{model.description}; {path}"))
        elif is_default:
            detail = "the default model is not here, although it belongs to minivllm"
            findings.append(Finding(name, "broken", detail, "pip install --force-reinstall minivllm"))
        else:
            findings.append(Finding(name, "missing", model.description, f"minivllm model pull {model.name}"))
    return findings
