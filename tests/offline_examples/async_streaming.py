"""Streams side by side: deltas that join to the whole, a caller that leaves, and one that is told to stop."""

import asyncio
import json
import sys

from minivllm import SamplingParams
from minivllm.engine.arg_utils import AsyncEngineArgs
from minivllm.sampling_params import RequestOutputKind
from minivllm.v1.engine.async_llm import AsyncLLM


async def stream(engine: AsyncLLM, prompt: str, request_id: str) -> str:
    params = SamplingParams(max_tokens=12, temperature=0.0, output_kind=RequestOutputKind.DELTA)
    text = ""
    async for output in engine.generate(request_id=request_id, prompt=prompt, sampling_params=params):
        for completion in output.outputs:
            text += completion.text
        if output.finished:
            break
    return text


async def leave(engine: AsyncLLM, prompt: str) -> bool:
    params = SamplingParams(max_tokens=200, temperature=0.0, ignore_eos=True)
    async for output in engine.generate(prompt, params, "leaver"):
        return not output.finished
    return False


async def stopped(engine: AsyncLLM, prompt: str) -> list:
    params = SamplingParams(max_tokens=200, temperature=0.0, ignore_eos=True)
    reasons = set()
    async for output in engine.generate(prompt, params, "stopped"):
        reasons.add(output.outputs[0].finish_reason)
        await engine.abort("stopped")
    return sorted(map(str, reasons))


async def main(model: str, max_model_len: int) -> None:
    args = AsyncEngineArgs(model=model, enforce_eager=True, dtype="float32", max_model_len=max_model_len)
    engine = AsyncLLM.from_engine_args(args)
    try:
        prompts = ["The future of AI is", "In a galaxy far, far away", "The key to happiness is"]
        texts = await asyncio.gather(*(stream(engine, prompt, f"stream-{i}") for i, prompt in enumerate(prompts)))
        print("RESULT", json.dumps(texts))
        print("RESULT", json.dumps(await leave(engine, prompts[0])))
        print("RESULT", json.dumps("abort" in await stopped(engine, prompts[1])))
        print("RESULT", json.dumps(await stream(engine, prompts[2], "again")))
    finally:
        engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
