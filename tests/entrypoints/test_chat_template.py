"""A chat template writes a conversation as the model knows it, and can do nothing else."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from minivllm.entrypoints.chat_template import ChatTemplateError, render
from minivllm.entrypoints.chat_utils import apply_chat_template
from minivllm.tokenizer import Tokenizer
from tests.tokenizers import byte_level

USER = [{"role": "user", "content": 'Hi <you> & "me" 😀'}]
CHATML = (
    "{% for message in messages %}{{'<|user|>' + message['role'] + '\n' + message['content'] + '<|end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|user|>assistant\n' }}{% endif %}"
)
TOKENIZER = Tokenizer(byte_level(), None, CHATML, {"bos_token": "<|end|>"})


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ messages[0].content }}", USER[0]["content"]),
        ("{{ messages[0]['content'] | trim }}", USER[0]["content"]),
        ("{{ messages | tojson }}", json.dumps(USER, ensure_ascii=False)),
        ("{{ {'a': 1} | tojson(indent=2) }}", '{\n  "a": 1\n}'),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),  # blocks leave no line behind
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        (
            "{% for i in [1, 2, 3] %}{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}{% endfor %}",
            "1/3,2/3,3/3",
        ),
        ("{% for m in messages if m.role == 'bot' %}x{% else %}none{% endfor %}", "none"),
        ("{% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "3"),
        ("{% macro twice(x) %}{{ x ~ x }}{% endmacro %}{{ twice('ab') }}", "abab"),
        ("{% set t %}a{{ 1 }}{% endset %}{{ t | upper }}", "A1"),
        ("{% generation %}said{% endgeneration %}", "said"),
        ("{{ '%s-%02d' | format('x', 3) }} {{ '{} b'.format(1) }} {{ '=' * 4 }}", "x-03 1 b ===="),
        ("{{ strftime_now('%d') | length }}", "2"),
        ("{{ missing }}{{ tools is none }}{{ bos_token is defined }}", "TrueFalse"),
        ("{{ messages | map(attribute='role') | join(',') }}", "user"),
    ],
)
def test_what_templates_are_written_with_works(template: str, text: str) -> None:
    assert render(template, messages=USER, tools=None) == text


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% if %}", "the chat template is broken: line 1"),
        ("a\n{{ 'x", "the chat template is broken: line 2"),
        ("{{ raise_exception('no system role') }}", "the chat template refuses the messages: no system role"),
        ("{{ messages[7].role }}", "the chat template failed: list object has no element 7"),
        ("{{ 1 / 0 }}", "the chat template failed: ZeroDivisionError"),
        ("{{ nosuch() }}", "the chat template failed: 'nosuch' is undefined"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{{ messages.__init__.__globals__ }}", "unsafe"),
        ("{{ cycler.__init__.__globals__.os }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% include '/etc/passwd' %}", "the chat template failed"),
        ("{% import 'os' as os %}", "the chat template failed"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "more than 1000000 rounds"),
        ("{% for i in range(10000000) %}{% endfor %}", "OverflowError"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}", "RecursionError"),
        ("{{ 'a' * 10 ** 9 }}", "more than 10000000 characters"),
        ("{{ 9 ** 9 ** 9 }}", "more than 256 bits"),
        ("{{ 9 ** 99999999 }}", "too large an exponent"),
        ("{% set n = namespace(s='ab') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}", "characters"),
        ("{% set n = namespace(s='ab') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}", "characters"),
        (
            "{% set n = namespace(s='ab') %}{% for i in range(60) %}{% set n.s %}{{ n.s }}{{ n.s }}{% endset %}"
            "{% endfor %}",
            "characters",
        ),
        ("{{ '%1000000000d' % 1 }}", "characters"),
        ("{{ '%1000000000d' | format(1) }}", "characters"),
        ("{{ 'a'.ljust(1000000000) }}", "characters"),
        ("{{ 'a' | center(1000000000) }}", "characters"),
        ("{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}", "characters"),
        ("{% for i in range(99999) %}{{ 'a' * 9999 }}{% endfor %}", "characters"),
        ("{{ lipsum(n=1000000) }}", "'lipsum' is undefined"),
        ("{{ range(9) | slice(9999999) | list }}", "slice of more than 100000 characters or parts"),
        ("{{ ('a ' * 4999999) | wordwrap(1) }}", "wordwrap of more than 100000 characters or parts"),
    ],
)
def test_a_broken_or_hostile_template_is_one_error_soon(template: str, message: str) -> None:
    start = time.monotonic()
    with pytest.raises(ChatTemplateError, match=message) as caught:
        render(template, messages=USER)
    assert "\n" not in str(caught.value)
    assert time.monotonic() - start < 5


def test_a_template_is_read_up_to_a_size() -> None:
    with pytest.raises(ChatTemplateError, match="at most 1000000 are read"):
        render("x" * 1_000_001)


def test_a_conversation_becomes_tokens_with_the_templates_own_special_tokens() -> None:
    prompt = apply_chat_template(TOKENIZER, [{"role": "user", "content": "Hello"}])
    assert prompt["prompt"] == "<|user|>user\nHello<|end|>\n<|user|>assistant\n"
    assert prompt["prompt_token_ids"] == TOKENIZER.encode(prompt["prompt"], add_special_tokens=False)


@pytest.mark.parametrize(
    ("options", "end"),
    [
        ({}, "<|end|>\n<|user|>assistant\n"),
        ({"add_generation_prompt": False}, "yes<|end|>\n"),
        ({"add_generation_prompt": False, "continue_final_message": True}, "\nyes"),
        ({"chat_template": "{{ messages[-1].content }}!"}, "yes!"),
        ({"chat_template": "{{ word }}", "word": "given"}, "given"),
        ({"chat_template": "{{ tools[0].name }}", "tools": [{"name": "f"}]}, "f"),
        ({"chat_template": "{{ bos_token }}"}, "<|end|>"),
    ],
)
def test_how_the_prompt_ends(options: dict[str, Any], end: str) -> None:
    messages = [{"role": "user", "content": "Is it?"}, {"role": "assistant", "content": "yes"}]
    assert apply_chat_template(TOKENIZER, messages, **options)["prompt"].endswith(end)


def test_content_may_come_in_parts_of_text() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    prompt = apply_chat_template(TOKENIZER, [{"role": "user", "content": parts}])
    assert "one\ntwo" in prompt["prompt"]


@pytest.mark.parametrize(
    ("messages", "options", "message"),
    [
        ([], {}, "the conversation is empty"),
        (["hi"], {}, "message 0 must be a dict"),
        ([{"content": "hi"}], {}, "message 0 must be a dict"),
        ([{"role": "user", "content": 7}], {}, "the content of message 0 must be text, got int"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], {}, "a part of type 'image_url'"),
        (USER, {"continue_final_message": True}, "exclude each other"),
    ],
)
def test_a_conversation_that_makes_no_sense_is_refused(messages: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        apply_chat_template(TOKENIZER, messages, **options)


def test_a_model_without_a_template_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="pass one as chat_template, or use generate"):
        apply_chat_template(Tokenizer(byte_level(), None, None, {}), USER)
