"""Owns the last step of the training: a short pass over stories with unusual beginnings.

    python finetune_openings.py --model stories-5m --data data --teacher data/train.jsonl --out tuned

After train.py the model tells its stories well, but a beginning unlike theirs throws it off the track. Here half of the
texts begin with a sentence about anything (openings.txt) and go on as a story; the others keep what was learned.
One CPU thread is enough. The result is averaged with the model before: that keeps the old stories as good as they were. Texts too near to a held-out story are left out, as before.
"""

import argparse
import json
import random
import time
from pathlib import Path

import numpy as np
import story_grammar as grammar
import torch
from filter_corpus import DIALOGUES, as_chat, nearness, shingles
from safetensors.torch import load_file
from tokenizers import Tokenizer
from train import SHORT, Model, held_out_batches, held_out_loss, save
from train_tokenizer import document

FIRST_SEED = 20_000_000  # far from the seeds of the corpus


def texts(count: int, teacher: list[dict], held: list[str]) -> list[dict]:
    """The mixture: 50 % unusual beginnings, 25 % grammar, 15 % teacher, 10 % dialogues."""
    rng, plots = random.Random(0), grammar.load_plots()
    sets = [shingles(x) for x in held]
    index: dict[int, list[int]] = {}
    for i, one in enumerate(sets):
        for s in one:
            index.setdefault(s, []).append(i)
    sizes, items = [len(x) for x in sets], []
    for seed in range(FIRST_SEED, FIRST_SEED + count):
        way = rng.random()
        if way < 0.75:
            make = grammar.opened_story if way < 0.5 else grammar.make_story
            text = make(seed, plots).text
            if nearness(([text], index, sizes))[0]:
                continue
            items.append({"text": text} if rng.random() < 0.9 else {"messages": as_chat(text, rng)})
        elif way < 0.9:
            items.append(rng.choice(teacher))
        else:
            items += [{"messages": grammar.make_dialogue(5 * seed + i, DIALOGUES)} for i in range(3)]
    return items


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder that train.py wrote")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--teacher", type=Path, required=True, help="train.jsonl, for its teacher stories")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=14_000)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument(
        "--share", type=float, default=0.4, help="weight of the tuned model in the average with the old"
    )
    parser.add_argument("--rate", type=float, default=6e-4)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    held_items = [json.loads(x) for x in (args.data / "held_out.jsonl").read_text().splitlines()]
    teacher = [x for x in map(json.loads, args.teacher.read_text().splitlines()) if x["kind"].startswith("teacher")]
    items = texts(args.count, teacher, [x["text"] for x in held_items])
    stream = np.concatenate([np.array(x.ids, np.int64) for x in tokenizer.encode_batch([document(x) for x in items])])
    windows = torch.from_numpy(stream[: (len(stream) - 1) // SHORT * SHORT + 1])
    starts = torch.randperm((len(windows) - 1) // SHORT, generator=torch.Generator().manual_seed(0)) * SHORT
    steps = min(args.steps, len(starts) // args.batch)
    print(f"{len(items)} texts, {len(stream)} tokens, {steps} steps", flush=True)

    model = Model()
    loaded = {k.removeprefix("model."): v.float() for k, v in load_file(args.model / "model.safetensors").items()}
    model.load_state_dict(loaded)
    hand = [x["text"] + "</s>" for x in held_items if x["kind"] == "hand-written"]
    batches = held_out_batches([np.array(x.ids, np.int16) for x in tokenizer.encode_batch(hand)], "cpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.rate, betas=(0.9, 0.95), weight_decay=0.01)
    began, log = time.time(), []
    for step in range(steps):
        rate = args.rate * min(1.0, (step + 1) / 20) * (1 - step / steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
        chosen = starts[step * args.batch : (step + 1) * args.batch]
        ids = torch.stack([windows[i : i + SHORT + 1] for i in chosen.tolist()])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(ids[:, :-1], ids[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 20 == 0 or step == steps - 1:
            log.append(
                {
                    "step": step,
                    "train": round(loss.item(), 4),
                    "hand_written": round(held_out_loss(model, batches, "cpu"), 4),
                }
            )
            print(log[-1], f"{time.time() - began:.0f} s", flush=True)
    tuned = model.state_dict()
    model.load_state_dict({k: (1 - args.share) * v + args.share * tuned[k] for k, v in loaded.items()})
    save(model, args.out)
    (args.out / "finetune.log.json").write_text(json.dumps({"tokens": steps * args.batch * SHORT, "curve": log}))


if __name__ == "__main__":
    main()
