"""Owns what the runner of lessons and questions says itself, in English and in Chinese."""

from __future__ import annotations

from typing import Any

WORDING = {
    "en": {
        "lesson": "lesson",
        "what_it_asks": "what it asks",
        "minutes": "minutes",
        "page": "{page} of {pages}",
        "question": "**Question.** {text}",
        "answer": "{verdict} **Answer: {answer}.** {why}",
        "right": "Right.",
        "wrong": "No.",
        "you_said": "No: you said {given}.",
        "no_answer": "No answer.",
        "score": "{right} of {asked} right",
        "nothing_left": "There is nothing left to ask: everything was answered rightly.",
        "all_done": "All {count} lessons are done. Read one again: minivllm walkthrough run NAME",
        "going_on": "going on at page {page} of {pages}; from the beginning: --restart",
        "ask_in_lesson": "your answer (Enter shows it, q leaves): ",
        "ask_in_quiz": "your answer (q leaves): ",
        "asked_of": "About “{title}”. To look it up: minivllm map plan -s {scenario}",
        "goes_on": "Enter goes on, q leaves",
        "ends": "Enter ends the lesson",
        "next": "next: {command}",
        "not_kept": "your progress is not kept ({error}); set MINIVLLM_HOME to a folder of yours",
        "not_in_vllm": "has no such thing",
        "here": "here",
    },
    "zh": {
        "lesson": "课程",
        "what_it_asks": "主题",
        "minutes": "分钟",
        "page": "第 {page} 页，共 {pages} 页",
        "question": "**提问**：{text}",
        "answer": "{verdict}**答案：{answer}**。{why}",
        "right": "答对了。",
        "wrong": "不对。",
        "you_said": "不对：你的回答是 {given}。",
        "no_answer": "没有作答。",
        "score": "答对 {right} 题，共 {asked} 题",
        "nothing_left": "没有剩下的题目：全部都答对过了。",
        "all_done": "{count} 课都已学完。重读某一课：minivllm walkthrough run NAME",
        "going_on": "从第 {page} 页继续，共 {pages} 页；从头开始：--restart",
        "ask_in_lesson": "你的答案（回车看答案，q 退出）：",
        "ask_in_quiz": "你的答案（q 退出）：",
        "asked_of": "关于“{title}”。可以查看它的运行：minivllm map plan -s {scenario}",
        "goes_on": "回车继续，q 退出",
        "ends": "回车结束本课",
        "next": "下一步：{command}",
        "not_kept": "进度没有保存（{error}）；请把 MINIVLLM_HOME 设为你自己的目录",
        "not_in_vllm": "没有对应的实现",
        "here": "这里",
    },
}


def say(lang: str, key: str, **values: Any) -> str:
    """A sentence of the runner."""
    return WORDING[lang][key].format(**values).strip()
