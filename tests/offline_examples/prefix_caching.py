"""The same prompts without and with cached prefixes, and after they are forgotten; and the metrics of it."""

import json
import sys

from minivllm import LLM, SamplingParams
from minivllm.distributed import cleanup_dist_env_and_memory
from minivllm.v1.metrics.reader import Counter, Gauge, Histogram, Vector

PREFIX = "You are an expert school principal, skilled in effectively managing faculty and staff. Draft a test for " * 2
PROMPTS = [PREFIX + end for end in ("Hello, my name is", "The president is", "The capital of France is")]


def main(model: str, max_model_len: int) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=8)
    settings = {"model": model, "dtype": "float32", "enforce_eager": True, "max_model_len": max_model_len, "seed": 0}
    settings |= {"trust_remote_code": True, "tensor_parallel_size": 1, "block_size": 16}
    llm = LLM(**settings, enable_prefix_caching=False)
    plain = [output.outputs[0].text for output in llm.generate(PROMPTS, params)]
    del llm
    cleanup_dist_env_and_memory()
    llm = LLM(**settings, enable_prefix_caching=True, disable_log_stats=False)
    llm.generate(PROMPTS[0], params)
    outputs = llm.generate(PROMPTS, params)
    print("RESULT", json.dumps([plain, [output.outputs[0].text for output in outputs]]))
    print("RESULT", json.dumps([output.num_cached_tokens for output in outputs]))
    print("RESULT", json.dumps(llm.reset_prefix_cache()))
    [output] = llm.generate(PROMPTS[0], params)
    print("RESULT", json.dumps([output.num_cached_tokens, output.outputs[0].text]))
    kinds = {Counter: "counter", Gauge: "gauge", Histogram: "histogram", Vector: "vector"}
    found = {}
    for metric in llm.get_metrics():
        name = metric.name.split(":")[1]
        if name in ("prompt_tokens", "generation_tokens", "prefix_cache_hits", "prefix_cache_queries"):
            found[name] = [kinds[type(metric)], metric.value]
        if name in ("request_prompt_tokens", "request_generation_tokens"):
            found[name] = [kinds[type(metric)], metric.count, metric.sum, metric.buckets["+Inf"]]
        if name in ("num_requests_running", "num_requests_waiting"):
            found[name] = [kinds[type(metric)], metric.value]
    print("RESULT", json.dumps(found, sort_keys=True))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
