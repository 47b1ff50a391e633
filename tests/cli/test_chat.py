"""A conversation goes on until one ends it; one answer alone ends like any other command."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minivllm.engine.llm_engine import LLMEngine
from minivllm.entrypoints.cli.chat import Session
from minivllm.sampling_params import SamplingParams
from tests.cli.conftest import Run


def piped(text: str) -> Any:
    return io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8")


def test_one_message_gets_one_answer(run: Run) -> None:
    ended = run("chat", "Hi", "--max-tokens", "5")
    assert (ended.code, ended.err) == (0, "(stopped at its length limit)\n")
    assert ended.out.endswith("\n")
    assert run("chat", "Hi", "--max-tokens", "5").out == ended.out


@pytest.mark.parametrize("args", [["chat"], ["chat", "-"]])
def test_a_message_can_be_piped_in(run: Run, monkeypatch: pytest.MonkeyPatch, args: list[str]) -> None:
    expected = run("chat", "Hi", "--max-tokens", "5").out
    monkeypatch.setattr("sys.stdin", piped("Hi\n"))
    assert run(*args, "--max-tokens", "5").out == expected


def test_stop_strings_and_a_system_message_count(run: Run) -> None:
    text = run("chat", "Hi", "--max-tokens", "20").out
    stop = text[3:6]
    sampling = json.dumps({"stop": [stop], "max_tokens": 20})
    assert run("chat", "Hi", "--sampling", sampling).out == text.split(stop)[0] + "\n"
    assert run("chat", "Hi", "--max-tokens", "20", "--system", "Be rude").out != text


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["chat", "word " * 5000], 1, "max_model_len 4096"),
        (["chat", " "], 1, "the message is empty: say something"),
        (["chat", "Hi", "--sampling", '{"n": 2, "temperature": 1}'], 1, "n must be 1, got 2"),
        (["chat", "Hi", "--sampling", '{"stop": ""}'], 1, "stop string must have at least 1"),
        (["chat", "Hi", "-m", "nosuch"], 1, "'nosuch'"),
        (["chat", "Hi", "-m", ""], 2, "the name is empty"),
        (["chat", "caf\udce9"], 1, "the message is not text in UTF-8"),
        (["chat", "Hi", "--system", "caf\udce9"], 1, "--system is not text in UTF-8"),
        (["chat", "Hi", "there"], 2, "unexpected extra argument"),
    ],
)
def test_a_wrong_call_is_told_in_one_line(run: Run, args: list[str], code: int, message: str) -> None:
    ended = run(*args)
    assert (ended.code, ended.out) == (code, "")
    assert message in ended.error


def talk(run: Run, monkeypatch: pytest.MonkeyPatch, *said: str) -> tuple[Any, list[list[dict[str, Any]]]]:
    """A conversation on a terminal. Returns how it ended, and what the model was given for each answer."""
    lines: Iterator[str] = iter(said)
    given: list[list[dict[str, Any]]] = []

    def read(_: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    def answer(session: Session, message: str, own: Any = Session.answer) -> bool:
        result: bool = own(session, message)
        given.append(session.messages)
        return result

    monkeypatch.setattr("builtins.input", read)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr(Session, "answer", answer)
    return run("chat", "--max-tokens", "3"), given


def test_a_conversation_remembers_until_it_is_reset(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    ended, given = talk(run, monkeypatch, "One", "", "Two", "/reset", "Three", "/what", "/quit", "never said")
    assert ended.code == 0
    assert [[m["content"] for m in messages if m["role"] == "user"] for messages in given] == [
        ["One"],
        ["One", "Two"],
        ["Three"],
    ]
    assert [m["role"] for m in given[1]] == ["user", "assistant"] * 2
    assert ended.err.count("/reset begins anew") == 2


def test_what_cannot_be_said_is_forgotten_and_the_conversation_goes_on(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, given = talk(run, monkeypatch, "One", "word " * 5000, "Two")
    assert ended.code == 0
    assert "max_model_len 4096" in ended.error
    assert [m["content"] for m in given[-1] if m["role"] == "user"] == ["One", "Two"]


def interrupt_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    count = iter(range(10**6))

    def step(engine: LLMEngine, own: Any = LLMEngine.step) -> Any:
        if next(count) == steps:
            os.kill(os.getpid(), signal.SIGINT)
        return own(engine)

    monkeypatch.setattr(LLMEngine, "step", step)


def test_ctrl_c_stops_an_answer_and_keeps_the_conversation(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_after(monkeypatch, 1)
    ended, given = talk(run, monkeypatch, "One", "Two")
    assert ended.code == 0
    assert [m["content"] for m in given[1] if m["role"] == "user"] == ["One", "Two"]


def test_ctrl_c_ends_a_single_answer_with_130(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_after(monkeypatch, 2)
    ended = run("chat", "Hi", "--max-tokens", "500")
    assert (ended.code, ended.error) == (130, "interrupted")


def test_an_interrupted_answer_leaves_nothing_in_the_engine(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from minivllm.engine.arg_utils import EngineArgs

    engine = LLMEngine.from_engine_args(EngineArgs(model=str(tiny_model), num_gpu_blocks_override=33))
    session = Session(engine, SamplingParams(temperature=0.0, max_tokens=100), None)
    interrupt_after(monkeypatch, 2)
    assert not session.answer("Hi")
    assert not engine.engine_core.scheduler.requests
    assert engine.engine_core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == 32
    assert session.answer("Go on")


def test_on_a_real_terminal(tiny_model: Path) -> None:
    parent, child = pty.openpty()
    code = "import sys; from minivllm.entrypoints.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "chat", "-m", str(tiny_model), "--max-tokens", "3"]
    process = subprocess.Popen(command, stdin=child, stdout=child, stderr=child, start_new_session=True)
    os.close(child)
    seen = b""
    for wanted, typed in ((b"> ", b"Hello\n"), (b"limit)\r\n> ", b"/quit\n")):
        deadline = time.monotonic() + 60
        while wanted not in seen and time.monotonic() < deadline:
            seen += os.read(parent, 1000)
        assert wanted in seen
        seen = b""
        os.write(parent, typed)
    assert process.wait(timeout=30) == 0
    os.close(parent)
