"""Owns which graph a step ran in, or would run in on a GPU: the sizes that are captured, and the rule of dispatch.

The rule is that of `minivllm.worker.cuda_graphs`, which needs torch; a test holds both equal.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise

from minivllm.analysis.answer import CannotKnowError, counted
from minivllm.analysis.explain_answer import Ask, Explanation, Table, busiest, plan_at, settings
from minivllm.analysis.profiled import nearest_profile
from minivllm.trace.reader import Log

_OURS = "minivllm.worker.cuda_graphs:GraphDispatcher.dispatch"
_VLLM = "vllm/v1/worker/gpu/cudagraph_utils.py::CudaGraphManager.dispatch"
_LARGEST = 512
_WHILE_A_LAYER_IS_LAUNCHED = 1 << 37  # weights times tokens
_LONGEST_IN_PIECES = 8192
_WAYS = {
    "NONE": "launched kernel by kernel (mode NONE)",
    "PIECEWISE": "in graphs of everything but attention (PIECEWISE)",
}


def capture_sizes(max_num_seqs: int, query_len: int = 1) -> list[int]:
    """Numbers of tokens that are captured: 1, 2, 4, every 8th, from 256 on every 16th, up to twice the decodes."""
    end = min(2 * max_num_seqs * query_len, _LARGEST)
    return [size for size in (1, 2, 4, *range(8, 256, 8), *range(256, _LARGEST + 1, 16)) if size <= end]


def longer_decodes(max_num_seqs: int, query_len: int = 1) -> list[int]:
    """Numbers of tokens beyond vLLM's that are captured for decodes: every 32nd up to 1024, then every 64th."""
    end = max_num_seqs * query_len
    return [*range(_LARGEST + 32, min(end, 1025), 32), *range(1088, end, 64)]


def most_in_pieces(max_num_batched_tokens: int, weights_per_layer: int) -> int:
    """Tokens of the longest step that is captured in pieces: a longer one takes the GPU longer than the host."""
    worth_it = min(_LONGEST_IN_PIECES, max(_LARGEST, _WHILE_A_LAYER_IS_LAUNCHED // weights_per_layer))
    return min(max_num_batched_tokens, 1 << (worth_it.bit_length() - 1))


def piece_sizes(most: int) -> list[int]:
    """Numbers of tokens that are captured in pieces: beyond 512 eight to a doubling, and the most."""
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, _LARGEST, 16)]
    for size in (512, 1024, 2048, 4096):
        sizes += range(size, 2 * size, size // 8)
    return [size for size in sizes if size < most] + [most]


def captured_decodes(max_num_seqs: int, query_len: int = 1) -> list[int]:
    """Numbers of requests for which a step of decodes is captured."""
    sizes = capture_sizes(max_num_seqs, query_len) + longer_decodes(max_num_seqs, query_len)
    below = [size for size in sizes if size < max_num_seqs * query_len]
    return sorted({min(-(-size // query_len), max_num_seqs) for size in below} | {max_num_seqs})


def dispatch(query_lens: list[int], max_num_seqs: int, query_len: int, pieces: list[int]) -> tuple[str, int, str]:
    """Mode, padded number of tokens, and why, of a step on a GPU where decodes are captured, and others in pieces."""
    tokens, requests = sum(query_lens), len(query_lens)
    decodes = captured_decodes(max_num_seqs, query_len)
    if all(length == query_len for length in query_lens) and requests <= decodes[-1]:
        padded = decodes[bisect_left(decodes, requests)]
        return "FULL", padded * query_len, f"{requests} decodes, padded to {padded}"
    if tokens > pieces[-1]:
        return "NONE", tokens, f"{tokens} tokens, and the largest pieces have {pieces[-1]}"
    padded = pieces[bisect_left(pieces, tokens)]
    return "PIECEWISE", padded, f"{tokens} tokens, padded to {padded}; attention is not"


def graph(log: Log, ask: Ask) -> Explanation:
    """How a step was launched, and why.

    Raises:
        CannotKnowError: The log does not hold the batch of that iteration.
    """
    step = ask.iteration if ask.iteration is not None else busiest(log, ask.request)
    plan = plan_at(log, step).data
    batch = next((e for e in log.events if e.kind == "prepare_inputs" and e.step == step), None)
    if batch is None:
        raise CannotKnowError(f"the log cannot say: it does not hold the batch (prepare_inputs) of iteration {step}")
    starts = batch.data["query_start_loc"]
    query_lens = [b - a for a, b in pairwise(starts)][: len(batch.data["order"])]
    limits = settings(log, "scheduler_config")
    query_len = 1 + limits.get("num_lookahead_tokens", 0)
    mode, tokens, padded = (batch.data[key] for key in ("graph_mode", "num_tokens", "num_tokens_padded"))
    pieces = _pieces(log)
    would, would_pad, reason = dispatch(query_lens, plan["max_num_seqs"], query_len, pieces)
    device = log.header.device
    why = _why(device, mode, batch.data.get("graph_reason"), reason)
    explanation = Explanation(
        "graph",
        f"Iteration {step} ran {counted(tokens, 'token')} of {counted(len(query_lens), 'request')} "
        + f"{_WAYS.get(mode, f'in one graph ({mode})')}: {why}.",
        "padding = smallest captured size that holds the step - tokens of the step",
        f"padding = {padded} - {tokens} = {padded - tokens}",
        {
            "tokens": tokens,
            "padded": padded,
            "query_lens": query_lens,
            "max_num_seqs": plan["max_num_seqs"],
            "device": device,
            "attention_backend": batch.data["attention_backend"],
            "capture_sizes": captured_decodes(plan["max_num_seqs"], query_len),
            "piece_sizes": pieces,
            "on_a_gpu": {"mode": would, "padded": would_pad, "reason": reason},
        },
        {"mode": mode, "padded": padded},
        _OURS,
        _VLLM,
        request=ask.request,
        iteration=step,
        tables=[Table("sizes", ("what", "tokens"), _sizes(plan["max_num_seqs"], query_len, pieces))],
        hint=f"map plan --iteration {step}",
    )
    _add_launches(log, step, mode, explanation)
    explanation.more += [
        f"With captured steps on a GPU it would be {would} with {counted(would_pad, 'token')}: {reason}.",
        "The rule: if all requests have the same number of tokens (1, or 1 + drafts) and that many are captured, one "
        "graph replays the whole step; else it is replayed in pieces, with attention launched between them; a longer "
        "one is launched kernel by kernel.",
        "vLLM's default does the same (FULL_AND_PIECEWISE), and ends at 512 tokens. Here all decodes are captured, up "
        "to max_num_seqs, and pieces as long as launching the model would take the host longer than the GPU needs.",
        "Rows of padding have slot -1 and length 0: they are computed, and nobody reads them.",
    ]
    return explanation


def _add_launches(log: Log, step: int, mode: str, explanation: Explanation) -> None:
    """What one replay stands for, or what is launched instead of it, as a profiled step counted it."""
    profile = nearest_profile(log, step, is_graph=mode == "FULL")
    if profile is None:
        return
    explanation.values["profiled"] = profile.as_dict()
    explanation.tables.append(profile.table())
    what = {
        "FULL": "that one replay starts",
        "PIECEWISE": "that the forward pass launches, most of them by replays of its pieces",
    }.get(mode, "that the forward pass launches one by one")
    kinds = counted(len(profile.on_device), "kind")
    explanation.more.append(
        f"{counted(profile.launches, 'kernel')} of {kinds} {what}, {profile.total_ns / 1e6:.3f} ms of them "
        f"(counted by the profiler in iteration {profile.iteration})."
    )


def _why(device: str, mode: str, told: str | None, reason: str) -> str:
    if told is not None:
        return told
    if device == "cpu":
        return "a CPU has no graphs to replay, its kernels are called, not queued"
    return reason if mode != "NONE" else f"no graph fits or none was captured ({reason})"


def _pieces(log: Log) -> list[int]:
    """The sizes that a GPU would have for this run's model; where none ran, for one whose layers are small."""
    shape = log.header.model_shape
    weights = 1
    if shape:
        heads = 2 * shape["num_attention_heads"] + 2 * shape["num_key_value_heads"]
        weights = shape["hidden_size"] * (heads * shape["head_dim"] + 3 * shape["intermediate_size"])
    return piece_sizes(most_in_pieces(settings(log, "scheduler_config")["max_num_batched_tokens"], weights))


def _some(sizes: list[int]) -> str:
    """The first ones and the last."""
    first, last = sizes[:6], sizes[6:][-1:]
    return ", ".join(map(str, [*first, *(["..."] if len(sizes) > 7 else []), *last]))


def _sizes(max_num_seqs: int, query_len: int, pieces: list[int]) -> list[tuple[str, ...]]:
    return [
        ("steps of decodes, in requests", ", ".join(map(str, captured_decodes(max_num_seqs, query_len)))),
        ("other steps, in pieces, in tokens", _some(pieces)),
    ]
