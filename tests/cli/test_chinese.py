"""Commands that tell something tell it in Chinese where that is asked for, by option or by the environment."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rich.cells import cell_len

from minivllm.learning.progress import load_progress
from minivllm.scenarios import definition
from tests.cli.conftest import Run

PACKAGED = Path(definition.__file__).parent / "logs"
HAN = re.compile("[\u4e00-\u9fff]")

COMMANDS = {
    "map process -s two-processes --iteration 2": "第 2 轮计算了 R0 和 R1 的 6 个 token。",
    "map hot -s two-processes --iteration 2": "前向计算在调用处就地完成",
    "map timeline -s kv-pressure": "x 被抢占",
    "why R3 -s mixed-batch --iteration 13": "R3 在第 13 轮没有被调度：TOKEN_BUDGET",
    "explain budget -s mixed-batch": "第 0 轮的 260 个 token 预算用掉 260 个，分给 2 个请求。",
    "whatif -s mixed-batch --set max_num_seqs=1": "max_num_seqs 8 → 1：运行名额",
    "diff hello kv-pressure": "两次运行从第 0 轮起不同：arrived",
    "walkthrough list": "mixed-batch",
    "walkthrough run mixed-batch": "答案：c) 256。",
    "quiz mixed-batch --answers a": "不对：你的回答是 a。答案：c) 256。",
    "exercise hint block-hash --level 1": "提示 1/3",
}


@pytest.fixture(autouse=True)
def packaged_logs(monkeypatch: pytest.MonkeyPatch, own_place: Path) -> None:
    """What is told is of the runs that come with the package."""
    monkeypatch.setattr(definition, "LOGS", PACKAGED)


@pytest.mark.parametrize(("command", "said"), COMMANDS.items(), ids=COMMANDS)
def test_it_is_told_in_chinese(run: Run, command: str, said: str) -> None:
    width = () if command.startswith(("walkthrough list", "exercise")) else ("--width", "110")
    ended = run(*command.split(), *width, "--lang", "zh")
    assert said in ended.out
    assert HAN.search(ended.out)
    assert not HAN.search(run(*command.split(), *width).out), "but only where it is asked for"
    if width:
        assert max(cell_len(line.rstrip()) for line in ended.out.splitlines() if "vLLM" not in line) <= 110


def test_the_environment_says_which_language(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    assert "先来先服务" in run("why", "R2", "preempted", "-s", "kv-pressure").out
    assert "先来先服务" not in run("why", "R2", "preempted", "-s", "kv-pressure", "--ascii").out


def test_a_right_answer_in_chinese_counts(run: Run) -> None:
    ended = run("quiz", "plan", "--answers", "6; 2; 制定计划时", "--lang", "zh")
    assert "答对 3 题，共 3 题" in ended.out
    assert load_progress().right == ["plan/1", "plan/2", "plan/3"]
    assert ended.err == "下一步：minivllm walkthrough next\n"


def test_a_topic_that_is_told_in_english_only_says_so(run: Run) -> None:
    ended = run("explain", "graph", "-s", "hello", "--lang", "zh")
    assert ended.err.startswith("explain graph is told in English only\n")
    assert not HAN.search(ended.out)


def test_plain_ascii_cannot_be_chinese(run: Run) -> None:
    assert "--ascii cannot show --lang zh" in run("quiz", "plan", "--ascii", "--lang", "zh").error
