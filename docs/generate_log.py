"""Writes docs/log.md and docs/assets/log.schema.json from `minivllm.trace.schema`. A test fails when they are outdated.

python docs/generate_log.py
"""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path

import msgspec

from minivllm.trace.schema import CLOCKED_KINDS, KINDS, json_schema

PAGE = Path(__file__).parent / "log.md"
SCHEMA_FILE = Path(__file__).parent / "assets" / "log.schema.json"

HEAD = """# The event log

Everything that is drawn, asked or checked is read from one file: the event log of a run. It is written by
probes on the running engine, and whoever reads it needs neither the engine nor torch.

```bash
minivllm trace "Once upon a time" --out run.jsonl
minivllm trace -s kv-pressure --mp --level function --out run.jsonl
minivllm simulate -s kv-pressure --out run.jsonl
```

## The file of a trace, and its format { #the-file }

JSON, one object a line: a header, the events in the order in which they happened, and one last line. A name
that ends in `.gz` is compressed. A file that was cut off anywhere is read up to the cut: without the last line
it is known to be cut.

| line | what it says |
|---|---|
| first | `schema` ("minivllm.log/2"), what ran (`config`, `model`, `scenario`, `seed`), how, where and when |
| others | an event: `seq` (0, 1, 2 ... without a gap), `step`, `process`, `kind`, `data` and what is below |
| last | `{"end": {"events": N, "dropped": M, "index": [[step, byte, seq], ...]}}`: where keyframes stand |

An event has, where it makes sense, `request`, `block`, `row`, `cause` (the `seq` of the event that made it
happen), `src` (our symbol) and `ref` (vLLM's), `wall_ns` (the monotonic clock at its end; all processes of a
machine share it), `dur_ns`, and `thread` (none for the main one).

**Two clocks.** A *logical* log (recorded scenarios, `simulate`) has no times, no process ids and no versions:
the same run gives the same bytes on any machine. A log with a *wall* clock has, besides, the kinds marked
"clock" below.

**Levels.** `step` tells what happened and how long its phases took. `function` adds every call of every
function on the source map, with the call around it. `kernel` adds what each kernel took in some of the steps.

**Bounded.** A log holds at most a million events. What is beyond that is dropped and counted, except the ends
of steps: a reader still sees how long the run was, and every view says how many are missing.

**Keyframes.** Every 64 steps, where a keyframe is small beside what was logged since the last, the whole state
is read off the live engine and logged before the step. So a reader opens the 9,000th step without the 8,999
before it.

**Two processes.** With the core in a process of its own, each process records itself: the core gets the
settings in its start message, puts its probes on before its threads start, and writes a file of its own. At the
end they are made one log: the core's events in their order, the frontend's where their clock says. A core that
is killed leaves what it had written, up to its last whole step (beside a GPU, where a step is written while the
next one computes, up to a step before that; where the CPU never waits for the GPU, up to 4,096 events before).
In a scenario the core holds every request until its iteration and waits for the frontend's answer to each
output, so its plans are byte for byte those of a run in one process (`minivllm.trace.projection` is what is
compared).

## What the probes do to the engine

With the trace off: nothing. A function on the map is a plain function with a line of decoration above it that
registers it and returns it unchanged. While a trace runs, the function is replaced by a wrapper, wherever a
module had bound it; then the very same object is put back (tests compare by identity). Coroutines are timed
until they are done, generators until they are exhausted. A probe that makes a mistake is switched off, and the
log says so (`probe.failed`); the engine goes on. What it costs stands in
[Performance](performance.md#the-trace).

## Kinds

Made from `minivllm/trace/schema.py`; the [JSON Schema](assets/log.schema.json) of a line is made from the same
types. A test holds every event of every recorded scenario to them. New kinds and new keys may come within
version 2: a reader passes over what it does not know.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for kind, facts in KINDS.items():
        is_struct = isinstance(facts, type) and issubclass(facts, msgspec.Struct)
        text = inspect.getdoc(facts) if is_struct else "Drafts that the next step is to verify, by request."
        mark = " (clock)" if kind in CLOCKED_KINDS else ""
        parts.append(f"### `{kind}`{mark}\n\n{text}\n")
        if is_struct and facts.__struct_fields__:
            fields = msgspec.structs.fields(facts)
            names = (f"`{field.encode_name}`" + ("" if field.required else " (optional)") for field in fields)
            parts.append(f"Data: {', '.join(names)}.\n")
    return "\n".join(parts)


def schema_text() -> str:
    """The JSON Schema, as it is published."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    SCHEMA_FILE.write_text(schema_text(), encoding="utf-8")
    print(f"wrote {PAGE} and {SCHEMA_FILE}", file=sys.stderr)
