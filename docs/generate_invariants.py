"""Writes docs/invariants.md from the invariants themselves. A test fails when the page is not what this would write.

python docs/generate_invariants.py
"""

from __future__ import annotations

import sys
from pathlib import Path

from minivllm.analysis.invariants import all_invariants

PAGE = Path(__file__).parent / "invariants.md"

HEAD = """# Invariants

A correct engine keeps these sentences true in every iteration. `minivllm check` holds a log against all of them, one
line each, and shows the part of the map where one does not hold:

```bash
minivllm check -s kv-pressure
minivllm check --log run.jsonl --invariant INV-19
minivllm trace -s thrash --check
minivllm trace -s condense --check --logits
```

With `--check` a sentence that is broken is told at the end of the iteration in which it happened, and the run goes on
(with a core in a process of its own, where the log has two authors, when the run is over). With `--logits` the log
holds the likeliest tokens before each sampled one, and INV-31 can hold the one against the other. A log without a
complete iteration proves nothing: `check` says so, and ends with 1.

Each check is a function of the event log alone (`minivllm/analysis/invariants/`), so it works on any log: recorded
here or copied from another machine. It believes no event that can be computed from others: the books of blocks, the
arrays of a batch and the ends of requests are worked out again and compared. Two tests keep the checks honest: every
invariant has a broken run that it catches, and of a thousand random slips in logs (a swapped row, a stale slot, a
leaked block, a lost token, a counter off by one) at least 95 % are caught (`tests/invariants`). What is missed is of
two kinds: a block published under a wrong hash that nobody asks for later, and two requests' tokens exchanged in a
simulated run, where no input, no text and no logits show it.

The [bug lab](exercises.md) plants faults that real engines had, and lets you write such a sentence yourself.

INV-01 to INV-12 are also checked inside the running scheduler (`minivllm/core/integrity.py`), where more can be seen
than a log holds: the links of the free queue, the entries of the hash map.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for rule in all_invariants():
        where = f"{rule.check.__module__.removeprefix('minivllm.').replace('.', '/')}.py::{rule.check.__name__}"
        parts.append(
            f"## {rule.id}\n\n**{rule.sentence}**\n\n{rule.reason}\n\n"
            f"Seen before: {rule.bug}. Map: `{rule.map}`. Reads: {', '.join(f'`{kind}`' for kind in rule.needs)}. "
            f"Check: `{where}`.\n"
        )
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}", file=sys.stderr)
