"""One conversation, several at once, a template of one's own, and an answer that is continued."""

import json

from minivllm import LLM, EngineArgs, SamplingParams
from minivllm.utils.argparse_utils import FlexibleArgumentParser

TEMPLATE = "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }}\n{% endfor %}<assistant>"


def tell(outputs):
    for output in outputs:
        print("RESULT", json.dumps([output.prompt, list(output.prompt_token_ids), output.outputs[0].text]))


def main(args):
    max_tokens = args.max_tokens
    del args.max_tokens
    llm = LLM(**vars(args))
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    conversation = [
        {"role": "system", "content": "You are a helpful assistant"},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hello! How can I assist you today?"},
        {"role": "user", "content": [{"type": "text", "text": "Name a colour."}]},
    ]
    tell(llm.chat(conversation, params, use_tqdm=False))
    tell(llm.chat([conversation, conversation[:2]], sampling_params=params))
    tell(llm.chat(conversation, params, chat_template=TEMPLATE))
    begun = [*conversation, {"role": "assistant", "content": "My favourite colour"}]
    tell(llm.chat(begun, params, add_generation_prompt=False, continue_final_message=True))


if __name__ == "__main__":
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    parser.add_argument("--max-tokens", type=int, default=10)
    main(parser.parse_args())
