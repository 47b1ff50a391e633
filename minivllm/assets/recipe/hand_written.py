"""Owns the texts written by hand: stories with a title, and short chats. They teach the teacher what we want.

A story file has blocks of `== title` and the story's lines; chats.txt has chats of `U:` and `A:` lines with blank lines between.
"""

from pathlib import Path

HERE = Path(__file__).parent
FILES = ("first", "people", "animals", "plain", "wonders")
CHECKED = 20  # one story in this many is not taught but tells when the teacher has learned enough


def read_stories(name: str) -> list[tuple[str, str]]:
    """(title, text) of every story in a file."""
    blocks = (HERE / f"stories_{name}.txt").read_text().removeprefix("== ").strip().split("\n\n== ")
    return [(title.strip(), text.strip()) for title, text in (block.split("\n", 1) for block in blocks)]


def stories() -> list[tuple[str, str]]:
    """All stories that may be learned from."""
    return [story for name in FILES for story in read_stories(name)]


def held_out_stories() -> list[tuple[str, str]]:
    """Neither the teacher nor the model ever sees these."""
    return read_stories("held_out")


def chats() -> list[str]:
    """All chats, as lines of `U: ...` and `A: ...`."""
    return [block.strip() for block in (HERE / "chats.txt").read_text().split("\n\n") if block.strip()]


def messages_of(chat: str) -> list[dict[str, str]]:
    """A chat as messages."""
    roles = {"U": "user", "A": "assistant"}
    return [{"role": roles[line[0]], "content": line[3:].strip()} for line in chat.split("\n")]
