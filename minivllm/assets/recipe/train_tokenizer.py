"""Owns the tokenizer: byte-level BPE of 4,096 entries, with two special tokens for text and two for chat.

    python train_tokenizer.py --data data --out stories-5m

Every byte has an entry of its own, so any text comes back unchanged. Writes tokenizer.json and tokenizer_config.json.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

VOCAB_SIZE = 4096
SPECIAL = ["<s>", "</s>", "<|user|>", "<|assistant|>"]
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'assistant' %}"
    "{{ '<|assistant|>' + message['content'] | trim + eos_token }}"
    "{% else %}{{ '<|user|>' + message['content'] | trim }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def chat_text(messages: list[dict[str, str]]) -> str:
    """What the chat template gives for these messages, less the leading <s>."""
    parts = {"user": "<|user|>{}", "assistant": "<|assistant|>{}</s>"}
    return "".join(parts[m["role"]].format(m["content"].strip()) for m in messages)


def document(item: dict) -> str:
    """The text of one item of the corpus, less the leading <s>, with its closing </s>."""
    return chat_text(item["messages"]) if "messages" in item else item["text"] + "</s>"


def plain_texts(path: Path, limit: int) -> Iterator[str]:
    """Texts without special tokens, for the merges."""
    with open(path) as file:
        for line, _ in zip(file, range(limit), strict=False):
            item = json.loads(line)
            yield from [m["content"] for m in item["messages"]] if "messages" in item else [item["text"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=120_000)
    parser.add_argument("--max-position", type=int, default=4096)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[AddedToken(x, special=True, normalized=False) for x in SPECIAL],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(plain_texts(args.data / "train.jsonl", args.texts), trainer)
    missing = VOCAB_SIZE - tokenizer.get_vocab_size()  # a small corpus has too few merges: keep the size all the same
    tokenizer.add_special_tokens(
        [AddedToken(f"<|reserved_{i}|>", special=True, normalized=False) for i in range(missing)]
    )
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
            ),
        ]
    )
    assert tokenizer.get_vocab_size() == VOCAB_SIZE, tokenizer.get_vocab_size()
    tokenizer.save(str(args.out / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "</s>",
        "add_bos_token": True,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": args.max_position,
        "chat_template": CHAT_TEMPLATE,
    }
    (args.out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    main()
