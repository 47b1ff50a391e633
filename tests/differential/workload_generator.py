"""Owns made-up workloads for the comparison with vLLM: seeded, small, and with every feature of the scheduler mixed.

A workload is a dict in the format of minivllm/scenarios/workload.py. Most bugs of schedulers sit in combinations, so
every feature is drawn on its own, and sizes are drawn such that memory, budget and seats are now tight, now roomy.
"""

from __future__ import annotations

import random
from typing import Any

Workload = dict[str, Any]

# Cheap, and long enough for every request that can end to end; some never fit, and those runs are cut off here.
MAX_STEPS = 300


def generate_workload(seed: int) -> Workload:
    """The workload of a seed. The same seed gives the same workload, for ever."""
    rng = random.Random(f"minivllm differential {seed}")
    config = _config(rng)
    requests = _Requests(rng, config).make()
    _add_stops(rng, config, requests)
    _add_priorities(rng, config, requests)
    _add_aborts(rng, requests)
    return {"name": f"seed-{seed}", "config": config, "requests": requests}


def next_token(tokens: list[int], vocab_size: int) -> int:
    """The made-up model: what it will answer is known in advance, so that conversations can be written down."""
    return (sum(tokens[-3:]) * 31 + len(tokens)) % vocab_size


def _config(rng: random.Random) -> dict[str, Any]:
    block_size = rng.choice([1, 2, 3, 4, 4, 5, 7, 8, 8, 11, 16, 16, 16, 20, 32])
    max_model_len = rng.choice([24, 48, 64, 96, 128, 200, 256, 256, 384])
    max_num_seqs = rng.choice([1, 2, 3, 4, 5, 8, 8, 12, 16, 24, 32])
    max_num_batched_tokens = max(rng.choice([2, 5, 8, 16, 24, 32, 48, 64, 64, 100, 128, 256, 512]), max_num_seqs)
    enable_chunked_prefill = rng.random() < 0.8
    if not enable_chunked_prefill:  # vLLM itself asks for this much
        max_num_batched_tokens = max(max_num_batched_tokens, max_model_len)
    # From "one request barely fits" to "no shortage ever".
    longest = -(-max_model_len // block_size)
    tightness = rng.choice([1.0, 1.0, 1.0, 1.2, 1.2, 1.5, 1.7, 2.0, 2.5, 4.0, 12.0]) if rng.random() < 0.96 else 0.5
    config: dict[str, Any] = {
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "long_prefill_token_threshold": 0,
        "block_size": block_size,
        "num_gpu_blocks": max(3, int(longest * tightness) + rng.randint(1, 4)),
        "enable_prefix_caching": rng.random() < 0.85,
        "enable_chunked_prefill": enable_chunked_prefill,
        "policy": rng.choice(["fcfs", "fcfs", "priority"]),
        "max_model_len": max_model_len,
        "vocab_size": rng.choice([2, 3, 8, 50, 1000, 1000, 1000]),
        "eos_token_id": None,
        "max_steps": MAX_STEPS,
    }
    if rng.random() < 0.3:
        config["long_prefill_token_threshold"] = min(rng.choice([1, 3, 8, 16, 24, 40, 64]), max_model_len)
    if rng.random() < 0.2:
        config["watermark"] = rng.choice([0.01, 0.05, 0.1, 0.25, 0.5])
    if rng.random() < 0.3:
        config["scheduler_reserve_full_isl"] = False
    if rng.random() < 0.4:
        config["async_scheduling"] = True
    if rng.random() < 0.7:
        config["eos_token_id"] = rng.randrange(config["vocab_size"])
    return config


class _Requests:
    """Draws who comes when, with which prompt."""

    def __init__(self, rng: random.Random, config: dict[str, Any]) -> None:
        self.rng = rng
        self.vocab_size = config["vocab_size"]
        self.max_model_len = config["max_model_len"]
        self.block_size = config["block_size"]
        # vLLM's frontend refuses a prompt as long as the model; its scheduler takes it, and then waits for ever (in
        # chunks) or plans -1 tokens and fails (planning ahead). Rarely, then.
        fills = rng.random() < 0.03
        self.max_prompt_len = self.max_model_len if fills else self.max_model_len - 1
        self.requests: list[dict[str, Any]] = []
        self.last_step = rng.choice([0, 0, 5, 20, 60])
        # Prompts of one workload are alike in length: all short, all long, or a mix.
        self.longest_prompt = rng.choice([4, 16, self.max_model_len // 4, self.max_model_len // 2, self.max_model_len])
        self.longest_output = rng.choice([1, 3, 8, 20, 50, self.max_model_len])
        self.system_prompts = [self.tokens(self._aligned(rng.randint(1, self.max_model_len // 2))) for _ in range(3)]

    def make(self) -> list[dict[str, Any]]:
        kinds = self.rng.choices(
            [self.lone, self.burst, self.conversation, self.shared, self.twins, self.edge],
            weights=[self.rng.random() ** 2 for _ in range(6)],
            k=self.rng.randint(1, 12),
        )
        for kind in kinds:
            kind()
            if len(self.requests) >= 40:
                break
        if self.rng.random() < 0.2:  # the file's order is not the order of arrival
            self.rng.shuffle(self.requests)
        return self.requests

    def tokens(self, n: int) -> list[int]:
        return [self.rng.randrange(self.vocab_size) for _ in range(n)]

    def add(self, step: int, prompt: list[int], max_tokens: int | None = None) -> None:
        request = {
            "id": f"r{len(self.requests)}",
            "arrival_step": step,
            "prompt_token_ids": prompt[: self.max_prompt_len],
            "max_tokens": max_tokens if max_tokens is not None else self.rng.randint(1, self.longest_output),
        }
        self.requests.append(request)

    def lone(self) -> None:
        """One request with a prompt of its own."""
        self.add(self.some_step(), self.tokens(self.rng.randint(1, self.longest_prompt)))

    def burst(self) -> None:
        """Many at once."""
        step = self.some_step()
        for _ in range(self.rng.randint(3, 12)):
            self.add(step, self.tokens(self.rng.randint(1, self.longest_prompt)))

    def shared(self) -> None:
        """Several with one system prompt, close together or far apart."""
        system = self.rng.choice(self.system_prompts)
        for _ in range(self.rng.randint(2, 6)):
            self.add(self.some_step(), system + self.tokens(self.rng.randint(0, max(1, self.longest_prompt // 2))))

    def twins(self) -> None:
        """The very same prompt, often a multiple of the block size, in one step and later again."""
        prompt = self.tokens(self._aligned(self.rng.randint(1, self.longest_prompt)))
        step = self.some_step()
        for _ in range(self.rng.randint(2, 4)):
            self.add(step, prompt)
            step += self.rng.choice([0, 0, 1, 2, 15])

    def conversation(self) -> None:
        """Each turn's prompt is the last turn's prompt, its answer, and something new."""
        step = self.some_step()
        prompt = list(self.rng.choice(self.system_prompts)) if self.rng.random() < 0.5 else []
        for _ in range(self.rng.randint(2, 6)):
            prompt = prompt + self.tokens(self.rng.randint(1, 12))
            answer_len = self.rng.randint(1, 10)
            if len(prompt) + answer_len >= self.max_model_len:
                return
            self.add(step, list(prompt), answer_len)
            for _ in range(answer_len):
                prompt.append(next_token(prompt, self.vocab_size))
            step += self.rng.randint(0, 2 * answer_len)

    def edge(self) -> None:
        """At the model's length, or just below it."""
        length = max(1, self.max_model_len - self.rng.choice([0, 0, 1, 1, 2, 3, self.block_size]))
        self.add(self.some_step(), self.tokens(length), self.rng.choice([1, 2, self.max_model_len]))

    def some_step(self) -> int:
        return self.rng.randint(0, self.last_step)

    def _aligned(self, length: int) -> int:
        if self.rng.random() < 0.5:
            return length
        return min(-(-length // self.block_size) * self.block_size, self.max_model_len)


def _add_stops(rng: random.Random, config: dict[str, Any], requests: list[dict[str, Any]]) -> None:
    if rng.random() < 0.4:
        return
    vocab_size = config["vocab_size"]
    for request in requests:
        if rng.random() < 0.3:
            request["stop_token_ids"] = sorted({rng.randrange(vocab_size) for _ in range(rng.choice([1, 2, 8]))})
        if rng.random() < 0.3:
            # A minimum beyond the model's length keeps a request running for ever, without a single token to compute.
            room = config["max_model_len"] - len(request["prompt_token_ids"])
            most = request["max_tokens"] if rng.random() < 0.01 else min(request["max_tokens"], room)
            request["min_tokens"] = rng.randint(0, most)
        if rng.random() < 0.2:
            request["ignore_eos"] = True
        if rng.random() < 0.2:
            request["eos_token_id"] = rng.randrange(vocab_size)


def _add_priorities(rng: random.Random, config: dict[str, Any], requests: list[dict[str, Any]]) -> None:
    if config["policy"] != "priority" and rng.random() < 0.8:
        return
    num_levels = rng.choice([1, 2, 3, 8])
    ties = rng.random() < 0.4
    for request in requests:
        request["priority"] = rng.randrange(num_levels) - (num_levels > 3)
        if ties and rng.random() < 0.7:
            request["arrival_time"] = float(rng.choice([0, 0, 1, request["arrival_step"]]))


def _add_aborts(rng: random.Random, requests: list[dict[str, Any]]) -> None:
    if rng.random() < 0.5:
        return
    share = rng.choice([0.1, 0.3, 0.8])
    one_step = rng.randint(0, 40) if rng.random() < 0.3 else None
    for request in requests:
        if rng.random() >= share:
            continue
        # Also before it arrives (an unknown id), and long after it has ended.
        delay = rng.choice([-2, 0, 0, 1, 1, 2, 3, 5, 8, 13, 30, 100])
        request["abort_step"] = max(0, one_step if one_step is not None else request["arrival_step"] + delay)
        request["abort_phase"] = rng.choice(["before", "mid"])
