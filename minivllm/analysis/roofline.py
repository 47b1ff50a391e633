"""Owns the floor of a step: bytes that must move and operations that must be done, and where its time went beyond that.

    floor = max(bytes / bandwidth, operations / rate)

Weights are read once a step, however many tokens there are; keys and values once for each request, or once for all
decodes as far as these attended to a shared prefix together; the operations grow with the tokens. So a step of few
tokens waits for memory, and one of many for arithmetic.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise, takewhile
from typing import Any

from minivllm.analysis.answer import CannotKnowError, counted
from minivllm.analysis.explain_answer import Ask, Explanation, Table, busiest, plan_at, shape_of, share_text, size_text
from minivllm.analysis.profiled import nearest_profile
from minivllm.maps.stages import WHOLE_STEP, Stage, stages_of
from minivllm.trace.reader import Log

_OURS = "minivllm.analysis.roofline:step_work"
_VLLM = "vllm/v1/metrics/perf.py::ModelMetrics"
# Stages in which the model works, or is waited for. All others are the host's own.
_MODEL_STAGES = ("forward", "logits", "replay", "sample", "sync")
_NS_A_MS = 1e6
# By whether the model's time is that of the host's stages, or the device's own.
_WHO = {True: "The model's stages", False: "The device"}
_WHERE = {True: "in the model's stages", False: "on the device"}


@dataclass(frozen=True, slots=True)
class Work:
    """What a step must do at least.

    Attributes:
        weights: Bytes of all products' weights, the head's and the norms'; of the embedding the rows of its tokens.
        kv_read, kv_written: Bytes of keys and values of earlier tokens, and of this step's.
        activations: Bytes that go into the products and attention, and come out.
        linear_flops, head_flops, attention_flops: Two operations for a multiplication and its addition.
    """

    weights: int
    kv_read: int
    kv_written: int
    activations: int
    linear_flops: int
    head_flops: int
    attention_flops: int

    @property
    def bytes(self) -> int:
        return self.weights + self.kv_read + self.kv_written + self.activations

    @property
    def flops(self) -> int:
        return self.linear_flops + self.head_flops + self.attention_flops


def step_work(shape: dict[str, Any], lengths: list[tuple[int, int]], num_logits: int, prefix_tokens: int = 0) -> Work:
    """The work of a step.

    Args:
        shape: The header's `model_shape`.
        lengths: Of each request: tokens that were there before, and tokens of this step.
        num_logits: Rows of which logits are computed.
        prefix_tokens: To so many leading tokens the decodes in front attended together.
    """
    hidden, inner, layers = shape["hidden_size"], shape["intermediate_size"], shape["num_hidden_layers"]
    number, head_dim, vocab = shape["bytes_per_number"], shape["head_dim"], shape["vocab_size"]
    q, kv = shape["num_attention_heads"] * head_dim, shape["num_key_value_heads"] * head_dim
    tokens = sum(new for _, new in lengths)
    linear = layers * (hidden * (q + 2 * kv) + q * hidden + 3 * hidden * inner)
    embedding = vocab * hidden * number
    weights = shape["weight_bytes"] if shape["tie_word_embeddings"] else shape["weight_bytes"] - embedding
    # In and out of: qkv, attention, o, gate and up, down.
    width = (hidden + q + 2 * kv) + (q + q) + (q + hidden) + (hidden + 2 * inner) + (inner + hidden)
    decodes = sum(1 for _ in takewhile(lambda length: length[1] == 1, lengths))
    read_once = prefix_tokens * max(decodes - 1, 0)
    seen = pairs = 0
    for window, count in shape["windows"]:
        seen += count * sum(before if window is None else min(before, window - 1) for before, _ in lengths)
        seen -= count * read_once if window is None else 0
        pairs += count * sum(_pairs(before, new, window) for before, new in lengths)
    return Work(
        weights=weights + tokens * hidden * number,
        kv_read=2 * kv * seen * number,
        kv_written=2 * kv * layers * tokens * number,
        activations=(tokens * layers * width + num_logits * (hidden + vocab)) * number,
        linear_flops=2 * linear * tokens,
        head_flops=2 * hidden * vocab * num_logits,
        attention_flops=4 * q * pairs,
    )


def _pairs(before: int, new: int, window: int | None) -> int:
    """How many keys all queries of a request see together: each its own and all before it, up to the window."""
    if window is None or before + new <= window:
        return new * before + new * (new + 1) // 2
    return sum(min(before + i + 1, window) for i in range(new))


def roofline(log: Log, ask: Ask) -> Explanation:
    """The floor of a step, and, in a log with clocks, where its time went beyond it.

    Raises:
        CannotKnowError: The log does not hold the batch of that iteration, or the model's shape.
    """
    shape = shape_of(log)
    step = ask.iteration if ask.iteration is not None else busiest(log, ask.request)
    plan_at(log, step)
    batch = next((e.data for e in log.events if e.kind == "prepare_inputs" and e.step == step), None)
    if batch is None:
        raise CannotKnowError(f"the log cannot say: it does not hold the batch (prepare_inputs) of iteration {step}")
    starts, total = batch["query_start_loc"], batch["seq_lens"]
    new = [b - a for a, b in pairwise(starts)][: len(batch["order"])]
    lengths = [(seq_len - count, count) for seq_len, count in zip(total, new, strict=False)]
    prefix_tokens = batch.get("prefix_tokens", 0)
    work = step_work(shape, lengths, len(batch["logits_indices"]), prefix_tokens)
    intensity = work.flops / work.bytes
    values: dict[str, Any] = {
        **asdict(work),
        "bytes": work.bytes,
        "flops": work.flops,
        "intensity": intensity,
        "tokens": sum(new),
        "requests": len(new),
        **({"prefix_tokens": prefix_tokens} if prefix_tokens else {}),
    }
    explanation = Explanation(
        "roofline",
        "",
        "floor = max(bytes / bandwidth, operations / rate)",
        "",
        values,
        None,
        _OURS,
        _VLLM,
        request=ask.request,
        iteration=step,
        tables=[_work_table(work)],
        more=_shared(prefix_tokens),
        hint=f"map hot --iteration {step}",
    )
    what = f"Iteration {step} ({counted(sum(new), 'token')} of {counted(len(new), 'request')}) must move "
    what += f"{size_text(work.bytes)} and do {_flops_text(work.flops)}: {intensity:.1f} operations a byte"
    floor = _floor(work, ask, values)
    explanation.answer = f"{what}, {_binds(values)}." if floor is not None else f"{what}."
    explanation.filled = _filled(work, ask, values)
    _add_times(log, step, work, floor, explanation)
    explanation.result = {
        "intensity": intensity,
        "floor_ms": floor,
        "bound": values.get("bound"),
        "step_ms": values.get("step_ms"),
        "beyond_ms": values.get("beyond_ms"),
    }
    return explanation


def _shared(prefix_tokens: int) -> list[str]:
    """What is said of a prefix that was read once."""
    if prefix_tokens == 0:
        return []
    return [f"All decodes begin with the same {prefix_tokens} tokens, which were read once for all of them."]


def _floor(work: Work, ask: Ask, values: dict[str, Any]) -> float | None:
    """The floor in ms; None if it is not known what the machine can do."""
    if ask.bytes_per_s is None or ask.flops_per_s is None:
        return None
    memory, arithmetic = work.bytes / ask.bytes_per_s * 1e3, work.flops / ask.flops_per_s * 1e3
    values |= {
        "bandwidth_gb_s": ask.bytes_per_s / 1e9,
        "tflops": ask.flops_per_s / 1e12,
        "machine_balance": ask.flops_per_s / ask.bytes_per_s,
        "memory_ms": memory,
        "compute_ms": arithmetic,
        "floor_ms": max(memory, arithmetic),
        "bound": "memory" if memory >= arithmetic else "compute",
    }
    return max(memory, arithmetic)


def _binds(values: dict[str, Any]) -> str:
    side = "memory is what it waits for" if values["bound"] == "memory" else "arithmetic is what it waits for"
    return f"and this machine can do {values['machine_balance']:.1f}: {side}, {values['floor_ms']:.4g} ms at least"


def _filled(work: Work, ask: Ask, values: dict[str, Any]) -> str:
    if "floor_ms" not in values:
        return f"floor = max({work.bytes} bytes / ?, {work.flops} / ?)"
    return (
        f"floor = max({work.bytes} / {values['bandwidth_gb_s']:.4g}e9, {work.flops} / {values['tflops']:.4g}e12) = "
        f"max({values['memory_ms']:.4g}, {values['compute_ms']:.4g}) ms"
    )


def _work_table(work: Work) -> Table:
    rows = [
        ("weights, once", size_text(work.weights), _flops_text(work.linear_flops + work.head_flops)),
        ("keys and values read", size_text(work.kv_read), _flops_text(work.attention_flops)),
        ("keys and values written", size_text(work.kv_written), ""),
        ("activations", size_text(work.activations), ""),
        ("together", size_text(work.bytes), _flops_text(work.flops)),
    ]
    return Table("work", ("what", "bytes", "operations"), rows)


def _flops_text(flops: float) -> str:
    for unit in ("", "k", "M", "G", "T"):
        if flops < 1000 or unit == "T":
            break
        flops /= 1000
    return f"{flops:.3g} {unit}FLOP".replace("  ", " ")


def _add_times(log: Log, step: int, work: Work, floor: float | None, explanation: Explanation) -> None:
    """Add where the step's time went, and what it reached."""
    if floor is None:
        explanation.more.append("Say what the machine can do: --bandwidth-gb-s and --tflops, or --measure.")
    stages = [s for s in stages_of(log.by_step().get(step, [])) if s.dur_ns is not None]
    whole = next((s.dur_ns for s in stages if s.name == WHOLE_STEP), None)
    if whole is None:
        explanation.more.append("The log has no times (span) of this step: record it with clocks, or take --fresh.")
        return
    times: dict[str, float] = {}
    for stage in stages:
        # What the frontend does is no part of the step.
        if stage.name != WHOLE_STEP and stage.process != "frontend":
            times[stage.name] = times.get(stage.name, 0.0) + (stage.dur_ns or 0) / _NS_A_MS
    step_ms = whole / _NS_A_MS
    device_ms = _add_device(log, step, stages, step_ms, explanation)
    model_ms = sum(times.get(name, 0.0) for name in _MODEL_STAGES) if device_ms is None else device_ms
    explanation.values |= {"step_ms": step_ms, "model_ms": model_ms, "stages_ms": times}
    rows = [(name, f"{ms:.3f} ms", share_text(ms / step_ms), _whose(name)) for name, ms in times.items()]
    rows.append(("in no stage", f"{step_ms - sum(times.values()):.3f} ms", "", "host"))
    rows.append(("the step", f"{step_ms:.3f} ms", "100 %", ""))
    explanation.tables.append(Table("times", ("stage", "time", "share", "whose"), rows))
    if model_ms:
        reached_bytes, reached_flops = work.bytes / model_ms / 1e6, work.flops / model_ms / 1e6
        explanation.values |= {"reached_gb_s": reached_bytes, "reached_gflops": reached_flops}
        explanation.more.append(
            f"{_WHO[device_ms is None]} took {model_ms:.3f} ms: {reached_bytes:.3g} GB/s and {reached_flops:.3g} "
            "GFLOP/s were reached."
        )
    if floor is not None:
        explanation.values |= {"beyond_ms": step_ms - floor, "beyond_in_model_ms": model_ms - floor}
        explanation.more.append(_beyond(step_ms, floor, model_ms, _WHERE[device_ms is None]))


def _beyond(step_ms: float, floor: float, model_ms: float, where: str) -> str:
    """Where a step's time went beyond its floor."""
    if min(step_ms, model_ms or step_ms) < floor:
        fastest = min(step_ms, model_ms or step_ms)
        return (
            f"{fastest:.3f} ms is less than the floor of {floor:.3f} ms: the machine does more than --bandwidth-gb-s "
            "and --tflops say. Give it what it can do, or take --measure."
        )
    if model_ms > step_ms:  # the device was at work on two steps, one behind the other
        return (
            f"A step came every {step_ms:.3f} ms; this one was {model_ms:.3f} ms {where}, {model_ms - floor:.3f} ms "
            "beyond its floor. The host's work was hidden behind the device's."
        )
    return (
        f"The step took {step_ms:.3f} ms, {step_ms - floor:.3f} ms beyond its floor: {model_ms - floor:.3f} ms of "
        f"that {where}, {step_ms - model_ms:.3f} ms in the host's."
    )


def _add_device(log: Log, step: int, stages: list[Stage], step_ms: float, explanation: Explanation) -> float | None:
    """Add what the device took for each phase by its own clock, and its kernels in a profiled step.

    Returns:
        Milliseconds of all phases; None if the device has no clock of its own.
    """
    phases: dict[str, float] = {}
    for stage in stages:
        if stage.device_ns is not None:
            phases[stage.name] = phases.get(stage.name, 0.0) + stage.device_ns / _NS_A_MS
    profile = nearest_profile(log, step, is_graph="replay" in phases)
    if profile is not None:
        explanation.values["profiled"] = profile.as_dict()
        explanation.tables.append(profile.table())
    if not phases:
        return None
    device_ms = sum(phases.values())
    explanation.values |= {"device_ms": device_ms, "device_phases_ms": phases}
    rows = [(name, f"{ms:.3f} ms", share_text(ms / step_ms)) for name, ms in phases.items()]
    rows.append(("together", f"{device_ms:.3f} ms", share_text(device_ms / step_ms)))
    explanation.tables.append(Table("device", ("phase, by the device's clock", "time", "share of the step"), rows))
    return device_ms


def _whose(stage: str) -> str:
    return "model" if stage in _MODEL_STAGES else "host"
