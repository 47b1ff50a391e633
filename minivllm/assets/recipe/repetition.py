"""Owns the figures on repetition: how many of a text's runs of three tokens are distinct, by how it is sampled.

    python repetition.py

Twenty beginnings, each going on for 160 tokens at most, seed 0, with the model in the package.
"""

from __future__ import annotations

from minivllm import LLM, SamplingParams

BEGINNINGS = (
    "Once upon a time",
    "Once upon a time, there was a little girl named",
    "Tom had a red kite.",
    "The robot had",
    "Anna wanted to bake bread.",
    "Mia was afraid of the dark.",
    "A pirate",
    "One day, a dragon",
    "My grandma",
    "Max planted a seed.",
    "The moon",
    "Ben and his dog",
    "In a green forest",
    "It was a rainy day.",
    "Lily found a box.",
    "The little train",
    "There once was a whale",
    "Sam lost his shoe.",
    "A cat sat on a wall.",
    "hi",
)
RUN = 3
SAMPLINGS = {
    "temperature 0": SamplingParams(temperature=0.0, max_tokens=160),
    "temperature 0.6, top-p 0.95": SamplingParams(temperature=0.6, top_p=0.95, max_tokens=160, seed=0),
    "and repetition penalty 1.1": SamplingParams(
        temperature=0.6, top_p=0.95, repetition_penalty=1.1, max_tokens=160, seed=0
    ),
}


def distinct(token_ids: list[int]) -> float:
    """The share of a text's runs that come once only, or for the first time."""
    runs = [tuple(token_ids[start : start + RUN]) for start in range(len(token_ids) - RUN + 1)]
    return len(set(runs)) / max(1, len(runs))


def main() -> None:
    llm = LLM()
    for name, params in SAMPLINGS.items():
        outputs = llm.generate(list(BEGINNINGS), params, use_tqdm=False)
        shares = [distinct(list(output.outputs[0].token_ids)) for output in outputs]
        print(f"{name}: {sum(shares) / len(shares):.3f}, the lowest {min(shares):.2f}")


if __name__ == "__main__":
    main()
