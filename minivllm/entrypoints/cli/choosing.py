"""Owns what --iteration and --request mean for a run, and what is said when the run has no such thing."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

import typer


def check_iteration_option(spec: str | None) -> None:
    """Refuse what is no choice of iterations in any run.

    Raises:
        BadParameter: It is not N, A:B, last or all.
    """
    if spec not in (None, "all", "last") and not re.fullmatch(r"\d+|\d*:\d*", spec):
        raise typer.BadParameter(f"--iteration takes N, A:B, last or all, not {spec!r}")


def check_one_iteration(spec: str | None) -> None:
    """Refuse what is not one iteration: N or last.

    Raises:
        BadParameter: It is a range, all, or no choice at all.
    """
    if spec not in (None, "last") and not re.fullmatch(r"\d+", spec):
        raise typer.BadParameter(f"--iteration takes N or last here, not {spec!r}: which one is shown first")


def as_window(spec: str | None, last: int) -> tuple[int, int] | None:
    """First and last iteration of a choice; None if it is of all.

    Args:
        spec: N, A:B, last, all or None.
        last: The run's last iteration.
    """
    if spec is None or spec == "all":
        return None
    if spec == "last":
        return last, last
    first_text, colon, last_text = spec.partition(":")
    first = int(first_text or 0)
    return first, int(last_text) if last_text else last if colon else first


def choose_iterations(spec: str | None, numbers: Sequence[int]) -> list[int]:
    """The iterations of a run that are meant.

    Args:
        spec: N, A:B (both included), last, all; None for all.
        numbers: Those that the run has, in order.

    Raises:
        ValueError: The run has none of them; the message names the nearest.
    """
    if not numbers:
        raise ValueError("the run has no iterations: the log holds its header only")
    if spec is None or spec == "all":
        return list(numbers)
    if spec == "last":
        return [numbers[-1]]
    first_text, colon, last_text = spec.partition(":")
    first = int(first_text or 0)
    last = int(last_text) if last_text else None if colon else first
    chosen = [number for number in numbers if first <= number and (last is None or number <= last)]
    if not chosen:
        nearest = min(numbers, key=lambda number: abs(number - first))
        raise ValueError(
            f"there is no iteration {spec}: this run has {numbers[0]} to {numbers[-1]}; the nearest is {nearest}"
        )
    return chosen


def check_request(request: str | None, known: Sequence[str]) -> None:
    """Refuse a request that a run does not have.

    Raises:
        ValueError: It has none of that name; the message names the nearest.
    """
    if request is None or request in known:
        return
    close = difflib.get_close_matches(request, known, 1, cutoff=0.0)
    nearest = f"; the nearest is {close[0]}" if close and len(known) > 1 else ""
    shown = ", ".join(known[:12]) + (f" and {len(known) - 12} more" if len(known) > 12 else "")
    raise ValueError(f"this run has no request {request!r}; it has {shown or 'none'}{nearest}")
