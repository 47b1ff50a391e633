"""Writes the pages of the API reference, one or more a package: all that is public and has a docstring.

python docs/generate_reference.py

The pages hold directives only; mkdocstrings reads the code when the site is built. So they change when a package, or a
module of a large one, comes or goes, and not when a class does.
"""

from __future__ import annotations

from pathlib import Path

from minivllm.sourcemap.reference import FURTHER_PAGES, PACKAGES, TOP, TOP_MODULES, modules_of

FOLDER = Path(__file__).parent / "reference"

# Title and first words of each page.
_WORDS = {
    TOP: (
        "LLM and SamplingParams",
        "What a program uses. Most names are also importable from `minivllm` itself; they are loaded on first use, so\n"
        "that `import minivllm` costs nothing.",
    ),
    "engine": ("Engine: the frontend", "What a request passes on its way from a caller to the engine core."),
    "engine_core": (
        "Engine: the core",
        "The engine core's loop, its process, and what passes between it and a frontend.",
    ),
    "engine_output": ("Engine: outputs", "From a sampled token to its caller. [The way](../outputs.md)."),
    "core": ("Core: the scheduler", "Who runs in the next step. No torch, no IO, no clock."),
    "core_blocks": ("Core: the blocks", "In which blocks of the KV cache a request stands, and which it finds there."),
    "executor": ("Executor", "How a plan gets to a worker."),
    "worker": ("Worker: the runner", "From a plan to a forward pass and sampled tokens."),
    "worker_start": ("Worker: the start", "What is chosen, compiled and measured before the first step."),
    "worker_batch": ("Worker: the batch", "The rows of the requests, and the arrays that a forward pass reads."),
    "attention": ("Attention", "Attention over pages: the interface, and its backends."),
    "models": ("Models: architectures", "Which models there are, and how they compute."),
    "models_files": ("Models: files", "How weights and tokenizers are found and read."),
    "layers": ("Layers", "The parts of an architecture."),
    "sample": ("Sampling", "From logits to tokens. [The stages in their order](../sampling.md)."),
    "kernels": (
        "Kernels: layers",
        "Each kernel stands beside a reference in plain PyTorch that says the same in a few lines.\n"
        "[The course](../kernels.md) says in which order to read them.",
    ),
    "kernels_sampling": ("Kernels: sampling", "From logits to token ids on the device, without asking the host."),
    "kernels_attention": ("Kernels: attention", "Attention over pages."),
    "kernels_pages": ("Kernels: pages", "A step's inputs, and keys and values on their way into pages."),
    "trace": ("Trace: the log", "The event log, and how it is read and replayed. [Its format](../log.md)."),
    "trace_recording": ("Trace: recording", "How a run is listened to while it goes on."),
    "scenarios": ("Scenarios", "Named runs, workload files, and the driver that pins arrivals to steps."),
    "maps": ("Maps", "Views of a log. [What they show](../maps.md)."),
    "maps_drawing": ("Maps: drawing", "How a map becomes cells, a frame, and a file."),
    "analysis": ("Analysis: why and how much", "What a log answers: why something happened, how a number came about."),
    "analysis_diff": ("Analysis: differences", "Two runs held against each other, and a run planned again otherwise."),
    "analysis_invariants": (
        "Analysis: invariants",
        "What holds in each iteration of a log, and how an iteration is read.",
    ),
    "export": ("Export", "A run for other tools. [How to](../export.md)."),
    "sourcemap": ("Source map", "Our symbols and vLLM's. [The map itself](../source-map.md)."),
    "learning": ("Learning", "How lessons and questions are read, and answered from a run."),
    "learning_facts": ("Learning: facts", "What the text of a lesson can take from its run."),
    "bench": (
        "Benchmarks: parts of a step",
        "What an iteration, a start and a trace cost. [Results](../performance.md).",
    ),
    "bench_generation": ("Benchmarks: generation", "Workloads, and how an engine is measured on them."),
    "bench_kernels": ("Benchmarks: kernels", "Shapes, tilings, and the floor that a kernel is held against."),
}


def pages() -> dict[Path, str]:
    """Every page, by path."""
    bodies = {TOP: "".join(f"\n::: {module}\n" for module in TOP_MODULES)}
    bodies |= {name: _directive(name, None) for name in PACKAGES}
    for (package, word), modules in FURTHER_PAGES.items():
        bodies[f"{package}_{word}"] = _directive(package, modules)
    for package in {package for package, _ in FURTHER_PAGES}:
        elsewhere = [name for (other, _), names in FURTHER_PAGES.items() if other == package for name in names]
        bodies[package] = _directive(package, tuple(name for name in modules_of(package) if name not in elsewhere))
    return {FOLDER / f"{name}.md": _page(name, body) for name, body in bodies.items()}


def _directive(package: str, modules: tuple[str, ...] | None) -> str:
    """What mkdocstrings is to write: a package, or some of its modules."""
    members = "" if modules is None else f"      members: [{', '.join(modules)}]\n"
    return f"\n::: minivllm.{package}\n    options:\n      show_submodules: true\n{members}"


# Packages are read from the source map. In the search they would stand before the pages that explain.
_NOT_SEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"


def _page(name: str, body: str) -> str:
    title, words = _WORDS[name]
    head = "---\nsearch:\n  boost: 0.5\n---\n\n" if name == TOP else _NOT_SEARCHED
    return f"{head}<!-- Generated by docs/generate_reference.py. Do not edit. -->\n\n# {title}\n\n{words}\n{body}"


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path}")
