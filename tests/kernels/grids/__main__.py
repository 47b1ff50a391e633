"""Runs grids and prints one JSON line for each: its name, its cases, its seconds, and what failed."""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import sys
import time
import traceback

import torch

from tests.kernels import grids
from tests.kernels.grids.setup import Setup
from tests.kernels.interpreting import hasten

NAMES = sorted(module.name for module in pkgutil.iter_modules(grids.__path__) if module.name.endswith("_grid"))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shard", default="0/1", help="I/N: only every N-th case, from the I-th on; to run N at once")
    options = parser.parse_args()
    shard, shards = map(int, options.shard.split("/"))
    failures = 0
    device, capability = torch.device(options.device), 90
    if device.type == "cuda" and torch.version.hip is None:
        major, minor = torch.cuda.get_device_capability(device)
        capability = major * 10 + minor
    if device.type == "cpu":
        hasten()
    setup = Setup(device, options.full, options.seed, shard, shards, capability)
    for name in options.names:
        torch.manual_seed(options.seed)
        started = time.monotonic()
        line = {"name": name, "device": options.device, "cases": 0, "error": None}
        try:
            run = importlib.import_module(f"tests.kernels.grids.{name}").run
            line["cases"] = run(setup)
        except Exception:
            failures += 1
            line["error"] = traceback.format_exc(limit=-3)
        line["seconds"] = round(time.monotonic() - started, 1)
        print(json.dumps(line), flush=True)
    return failures


if __name__ == "__main__":
    sys.exit(main())
