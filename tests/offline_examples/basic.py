"""Prompts of every form, one set of parameters or one for each; greedy, so that two engines can be compared."""

import json

from minivllm import LLM, EngineArgs, SamplingParams
from minivllm.inputs import TextPrompt, TokensPrompt
from minivllm.utils.argparse_utils import FlexibleArgumentParser


def tell(outputs):
    for output in outputs:
        completion = output.outputs[0]
        facts = {
            "prompt": output.prompt,
            "prompt_token_ids": list(output.prompt_token_ids),
            "text": completion.text,
            "token_ids": list(completion.token_ids),
            "finish_reason": completion.finish_reason,
            "stop_reason": completion.stop_reason,
            "finished": output.finished,
        }
        print("RESULT", json.dumps(facts))


def main(args):
    llm = LLM(**vars(args))
    greedy = SamplingParams(temperature=0.0, max_tokens=12)
    tell(llm.generate("The capital of France is", greedy, use_tqdm=False))
    ids = llm.get_tokenizer().encode("Once upon a time")
    tell(llm.generate([ids, ids[:3]], greedy))
    mixed = [
        "Hello, my name is",
        ids,
        TextPrompt(prompt="The sun is"),
        TokensPrompt(prompt_token_ids=ids[:2]),
        {"prompt": "It was a dark"},
    ]
    tell(llm.generate(mixed, greedy))
    each = [
        SamplingParams(temperature=0.0, max_tokens=4),
        SamplingParams(temperature=0.0, max_tokens=20, stop=["e"]),
        SamplingParams(temperature=0.0, max_tokens=6, logit_bias={ids[0]: 100}),
        SamplingParams(temperature=0.0, max_tokens=9, repetition_penalty=1.3, min_tokens=9),
        SamplingParams(temperature=0.0, max_tokens=9, stop=" a", include_stop_str_in_output=True),
    ]
    tell(llm.generate(mixed, each))
    params = llm.get_default_sampling_params()
    params.max_tokens, params.temperature = 5, 0
    tell(llm.generate(mixed[:2], params))


if __name__ == "__main__":
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    main(parser.parse_args())
