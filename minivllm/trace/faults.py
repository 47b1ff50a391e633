"""Owns finding what is wrong with a log that was changed after it was written.

Reading a log stays fast: nobody asks here before a log has turned out not to fit together.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from minivllm.trace.reader import LogError, read_log
from minivllm.trace.schema import check_event


def first_fault(path: Path) -> str | None:
    """The first event of a log that is none of those that are ever written; None if all of them are.

    Args:
        path: The log.
    """
    try:
        events = read_log(path).events
    except (LogError, OSError) as error:
        return str(error)
    for event in events:
        try:
            check_event(event)
        except (msgspec.ValidationError, KeyError, ValueError) as error:
            return (
                f"{path}: event {event.seq} ({event.kind!r}, iteration {event.step}) is not as it was written: {error}"
            )
    return None
