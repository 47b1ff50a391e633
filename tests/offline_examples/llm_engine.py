"""Requests that arrive one a step, scores, two completions, and one that is given up."""

import argparse
import json

from minivllm import EngineArgs, LLMEngine, RequestOutput, SamplingParams
from minivllm.utils.argparse_utils import FlexibleArgumentParser


def scores(logprobs):
    return [
        None if position is None else {str(token): round(entry.logprob, 3) for token, entry in sorted(position.items())}
        for position in logprobs
    ]


def main(args: argparse.Namespace) -> None:
    engine = LLMEngine.from_engine_args(EngineArgs.from_cli_args(args))
    waiting = [
        ("A robot may not", SamplingParams(temperature=0.0, max_tokens=8, logprobs=1, prompt_logprobs=1)),
        ("To be or not to be,", SamplingParams(temperature=0.0, max_tokens=6, presence_penalty=0.2)),
        ("What is the meaning of life?", SamplingParams(n=2, temperature=0.8, top_p=0.95, seed=1, max_tokens=5)),
        ("Nobody waits for this", SamplingParams(temperature=0.0, max_tokens=50)),
    ]
    number, done = 0, {}
    while waiting or engine.has_unfinished_requests():
        if waiting:
            prompt, params = waiting.pop(0)
            engine.add_request(str(number), prompt, params)
            number += 1
        outputs: list[RequestOutput] = engine.step()
        for output in outputs:
            if output.finished:
                done[output.request_id] = output
        if number == 4 and not waiting:
            engine.abort_request(["3"])
    for name in sorted(done):
        output = done[name]
        first = output.outputs[0]
        facts = {"id": name, "n": len(output.outputs), "finish": [c.finish_reason for c in output.outputs]}
        if name != "2":  # drawn: every engine has noise of its own
            facts |= {"token_ids": list(first.token_ids)}
        if first.logprobs and output.prompt_logprobs:
            facts |= {"logprobs": scores(first.logprobs), "prompt_logprobs": scores(output.prompt_logprobs)}
            facts |= {"sum": round(first.cumulative_logprob, 2)}
        print("RESULT", json.dumps(facts))


if __name__ == "__main__":
    main(EngineArgs.add_cli_args(FlexibleArgumentParser(description="steps")).parse_args())
