"""Makes a model folder that can run every scenario in seconds: random weights, and a real tokenizer of its own."""

from __future__ import annotations

from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from minivllm.scenarios.registry import STORIES
from tests.models.checkpoints import save_llama

EOS = "<|end|>"
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}bot:{% endif %}"
)


def save_tiny_model(folder: Path) -> Path:
    """Save a 2-layer Llama of width 32 for sequences of 4096 tokens, with a byte-level BPE tokenizer of 512 tokens."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=[EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(STORIES.read_text(encoding="utf-8").splitlines(), trainer)
    eos_token_id = tokenizer.token_to_id(EOS)
    save_llama(
        folder,
        vocab_size=tokenizer.get_vocab_size(),
        max_position_embeddings=4096,
        bos_token_id=eos_token_id,
        eos_token_id=eos_token_id,
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    return folder
