"""Owns fast sampling: thousands of stories at once, each at its own place, in one captured step.

A row is one story that is being written. A step gives every row its next token: from the prompt as long as that lasts
(so a prompt needs no pass of its own), drawn from the teacher afterwards. A row whose story has ended takes the next
prompt within the same step. All of that happens on the device; the host only replays the step, and now and then
collects what has ended.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from sampler_kernels import Kernels, References
from teacher import Teacher, rotary


@dataclass
class Ended:
    """Stories that ended since the last call."""

    numbers: np.ndarray  # of their prompts
    table: np.ndarray  # (stories, max_length) narrow ids; prompt and story are in the places from 1 to `lengths`
    lengths: np.ndarray
    logprobs: np.ndarray  # mean log probability of the drawn tokens, at temperature 1

    def part(self, begin: int, end: int) -> "Ended":
        """Some of them."""
        return Ended(*(x[begin:end] for x in (self.numbers, self.table, self.lengths, self.logprobs)))

    def ids(self) -> list[list[int]]:
        """Narrow ids of each, prompt and story."""
        return [row[1:n].tolist() for row, n in zip(self.table, self.lengths.tolist(), strict=True)]


class Sampler:
    """Writes a story for each prompt, in order.

    Args:
        t: The teacher.
        prompts: Narrow ids of each prompt, without the token that begins a text; (prompts, longest), filled up with -1.
        temperatures: One for each prompt.
        rows: Stories that are written at the same time.
        max_length: Tokens of a prompt and its story; a story that does not end by then is given up.
        min_p: A token must be at least this likely, relative to the likeliest one, at the prompt's temperature.
    """

    def __init__(
        self,
        t: Teacher,
        prompts: np.ndarray,
        temperatures: np.ndarray,
        device: str,
        rows: int,
        max_length: int,
        min_p: float,
    ) -> None:
        self.t, self.device, self.rows, self.max_length = t, device, rows, max_length
        self.log_min_p = math.log(min_p)
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        self.kernels: Kernels | References = Kernels() if device == "cuda" else References()
        w = {k: v.to(device, dtype) for k, v in t.weights.items()}
        self.w = w
        self.qkv = [torch.cat([w[f"blk.{i}.attn_{x}"] for x in "qkv"]) for i in range(t.layers)]
        self.up = [torch.cat([w[f"blk.{i}.ffn_gate"], w[f"blk.{i}.ffn_up"]]) for i in range(t.layers)]
        cos, sin = rotary(torch.arange(max_length, device=device), t.head_dim, t.rope_base)
        half = t.head_dim // 2
        self.cos, self.sin = cos[:, :half].contiguous(), sin[:, :half].contiguous()

        count, longest = prompts.shape
        table = np.full((count + 1, longest + 2), -1, np.int32)  # the last row belongs to rows that have no prompt left
        table[:count, 1:-1] = prompts
        self.count, self.prompt_lengths = count, (prompts >= 0).sum(1)
        self.prompts = torch.from_numpy(table).to(device)
        self.temperatures = torch.ones(count + 1, device=device)
        self.temperatures[:count] = torch.from_numpy(temperatures).float()
        self.out = torch.zeros(count + 1, max_length, dtype=torch.int32, device=device)
        self.score = torch.zeros(count + 1, device=device)
        self.length = torch.zeros(count + 1, dtype=torch.int16, device=device)  # 0: not ended; -1: given up

        cache = (t.layers, rows, t.kv_heads, max_length, t.head_dim)
        self.keys = torch.zeros(cache, device=device, dtype=dtype)
        self.values = torch.zeros(cache, device=device, dtype=dtype)
        self.story = torch.arange(rows, device=device).clamp(max=count)
        self.token = torch.full((rows,), t.eos, device=device)
        self.position = torch.zeros(rows, dtype=torch.int64, device=device)
        self.next_story = torch.full((1,), rows, device=device)
        self.seed = torch.zeros(1, dtype=torch.int64, device=device)
        self.seen = np.zeros(count, bool)
        self.graph: torch.cuda.CUDAGraph | None = None

    def _hidden(self) -> torch.Tensor:
        """Final hidden states of the rows' current tokens, (rows, hidden)."""
        t, w = self.t, self.w
        x = F.embedding(self.token, w["embed"])
        for i in range(t.layers):
            h = F.rms_norm(x, (x.shape[-1],), w[f"blk.{i}.attn_norm"], 1e-5)
            qkv = F.linear(h, self.qkv[i]).view(self.rows, -1, t.head_dim)
            query = self.kernels.rotate_and_store(qkv, self.cos, self.sin, self.position, self.keys[i], self.values[i])
            o = self.kernels.attend(query, self.keys[i], self.values[i], self.position)
            x = x + F.linear(o.view(self.rows, -1), w[f"blk.{i}.attn_output"])
            h = F.rms_norm(x, (x.shape[-1],), w[f"blk.{i}.ffn_norm"], 1e-5)
            x = x + F.linear(self.kernels.swiglu(F.linear(h, self.up[i])), w[f"blk.{i}.ffn_down"])
        return F.rms_norm(x, (x.shape[-1],), w["output_norm"], 1e-5)

    def _step(self) -> None:
        """One token for every row."""
        logits = F.linear(self._hidden(), self.w["embed"])  # (rows, allowed)
        drawn, logprob = self.kernels.pick(logits, self.temperatures[self.story], self.log_min_p, self.seed)
        place = self.position + 1
        asked = self.prompts[self.story, place.clamp(max=self.prompts.shape[1] - 1)].long()
        given = asked >= 0
        token = torch.where(given, asked, drawn)
        self.score.index_add_(0, self.story, logprob.masked_fill(given, 0.0))
        self.out[self.story, place] = token.to(torch.int32)
        ended = ~given & (drawn == self.t.eos)
        finished = ended | (place >= self.max_length - 1)
        length = torch.where(ended, place, -1).to(torch.int16)
        self.length[self.story] = torch.where(finished, length, self.length[self.story])

        behind = finished.cumsum(0)  # the rows that have ended take the next prompts in their order
        fresh = (self.next_story + behind - 1).clamp(max=self.count)
        self.next_story.add_(behind[-1:])
        self.story.copy_(torch.where(finished, fresh, self.story))
        self.token.copy_(token.masked_fill(finished, self.t.eos))
        self.position.copy_(place.masked_fill(finished, 0))
        self.seed.add_(1)

    def _reset(self) -> None:
        """Begin with the first prompts again."""
        self.story.copy_(torch.arange(self.rows, device=self.device).clamp(max=self.count))
        self.token.fill_(self.t.eos)
        self.position.zero_()
        self.next_story.fill_(self.rows)
        self.score.zero_()
        self.length.zero_()

    def _tune(self) -> None:
        """Take the fastest of a few tilings of attention, at a typical length."""
        self.position.fill_(min(130, self.max_length - 1))
        query = torch.randn(self.rows, self.t.heads, self.t.head_dim, device=self.device, dtype=self.keys.dtype)
        results = []
        for tile, warps, stages in ((64, 2, 2), (64, 4, 3), (32, 1, 3), (64, 1, 2), (128, 4, 2)):
            kernels = Kernels(tile, warps, stages)
            kernels.attend(query, self.keys[0], self.values[0], self.position)
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            for i in range(10):
                kernels.attend(query, self.keys[i % self.t.layers], self.values[i % self.t.layers], self.position)
            end.record()
            end.synchronize()
            results.append((start.elapsed_time(end) / 10, (tile, warps, stages)))
        read = 2 * self.rows * 131 * self.t.kv_heads * self.t.head_dim * self.keys.element_size()
        speeds = {str(name): f"{time:.3f} ms, {read / time / 1e9:.2f} TB/s" for time, name in results}
        print("attention:", speeds, flush=True)
        self.kernels = Kernels(*min(results)[1])

    @torch.inference_mode()
    def prepare(self) -> None:
        """On a GPU: choose tiles, compile, and capture the step."""
        if self.device == "cuda":
            self._tune()
            self._reset()
            self._step()
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self._step()
            torch.cuda.synchronize()
        self._reset()

    @torch.inference_mode()
    def run(self, steps: int) -> None:
        """This many tokens for every row."""
        for _ in range(steps):
            if self.graph is not None:
                self.graph.replay()
            else:
                self._step()

    @torch.inference_mode()
    def collect(self) -> Ended:
        """What has ended and was not collected yet; waits for the device."""
        started = min(int(self.next_story), self.count)
        lengths = self.length[:started].cpu().numpy()
        numbers = np.flatnonzero((lengths != 0) & ~self.seen[:started])
        self.seen[numbers] = True
        numbers = numbers[lengths[numbers] > 0]
        index = torch.from_numpy(numbers).to(self.device)
        table, scores, lengths = self.out[index].cpu().numpy(), self.score[index].cpu().numpy(), lengths[numbers]
        return Ended(numbers, table, lengths, scores / (lengths - self.prompt_lengths[numbers]))

    @property
    def exhausted(self) -> bool:
        """Whether the prompts are used up."""
        return int(self.next_story) >= self.count + self.rows
