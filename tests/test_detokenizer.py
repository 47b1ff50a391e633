"""Text streams out in pieces that add up to the text of the whole output, and never contains a part of the prompt."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models

from minivllm.engine.detokenizer import DecodeStream
from minivllm.models.model_zoo import find_model, list_models, local_path
from minivllm.tokenizer import Tokenizer, load_tokenizer
from tests.tokenizers import TEXT, byte_fallback, byte_level

BYTE_LEVEL = Tokenizer(byte_level(), None, None, {})
BYTE_FALLBACK = Tokenizer(byte_fallback(), None, None, {})


def pieces(tokenizer: Tokenizer, prompt: list[int], token_ids: list[int], skip: bool = True) -> list[str]:
    stream = DecodeStream(tokenizer, prompt, skip)
    return [stream.step(token_id) for token_id in token_ids]


def is_all_but_a_broken_end(output: str, whole: str) -> bool:
    """Only bytes that are no character, or not yet one, may be missing, and only at the end."""
    rest = whole[len(output) :]
    return whole.startswith(output) and (not rest or rest.endswith("\ufffd"))


text = st.text(st.characters(exclude_characters="\ufffd", exclude_categories=["Cs"]), max_size=30)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, BYTE_LEVEL.vocab_size - 1), max_size=40), st.booleans())
def test_any_tokens_after_a_whole_prompt_add_up_to_their_own_text(ids: list[int], skip: bool) -> None:
    prompt = BYTE_LEVEL.encode("Once upon a time 😀")
    output = "".join(pieces(BYTE_LEVEL, prompt, ids, skip))
    assert is_all_but_a_broken_end(output, BYTE_LEVEL.decode(ids, skip))


@settings(max_examples=100, deadline=None)
@given(text, text)
def test_text_cut_anywhere_even_inside_a_character_goes_on_there(left: str, right: str) -> None:
    ids = BYTE_LEVEL.encode(left + right)
    whole = BYTE_LEVEL.decode(ids, False)
    for split in range(len(ids)):
        settled = BYTE_LEVEL.decode(ids[:split], False).rstrip("\ufffd")
        output = "".join(pieces(BYTE_LEVEL, ids[:split], ids[split:], skip=False))
        assert output == whole[len(settled) :], "nothing of the prompt comes out again"


@pytest.mark.parametrize("character", ["é", "€", "😀", "👨\u200d👩\u200d👧"])
def test_a_prompt_that_ends_inside_a_character_does_not_leak(character: str) -> None:
    prompt = "a secret prompt " + character
    ids = BYTE_LEVEL.encode(prompt)
    known = BYTE_LEVEL.decode(ids[:-1]).rstrip("\ufffd")
    output = "".join(pieces(BYTE_LEVEL, ids[:-1], [ids[-1], *BYTE_LEVEL.encode(" and on")]))
    assert known + output == prompt + " and on"


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(TEXT), st.integers(0, 200))
def test_a_space_at_the_seam_is_kept_where_tokens_carry_it(text: str, split: int) -> None:
    ids = BYTE_FALLBACK.encode(text)
    split = 1 + split % len(ids)
    output = "".join(pieces(BYTE_FALLBACK, ids[:split], ids[split:]))
    whole, settled = BYTE_FALLBACK.decode(ids), BYTE_FALLBACK.decode(ids[:split]).rstrip("\ufffd")
    assert whole == settled + output


def test_nothing_comes_out_before_its_character_is_complete() -> None:
    ids = BYTE_LEVEL.encode("😀")
    assert len(ids) > 1
    *early, last = pieces(BYTE_LEVEL, BYTE_LEVEL.encode("a"), ids)
    assert (set(early), last) == ({""}, "😀")


def test_a_character_that_is_never_completed_never_comes_out() -> None:
    ids = BYTE_LEVEL.encode("a😀")[:-1]
    assert "".join(pieces(BYTE_LEVEL, [], ids)) == "a"


def test_special_tokens_are_left_out_or_kept() -> None:
    ids = BYTE_LEVEL.encode("a<|end|>b")
    assert "".join(pieces(BYTE_LEVEL, [], ids, skip=True)) == "ab"
    assert "".join(pieces(BYTE_LEVEL, [], ids, skip=False)) == "a<|end|>b"


@pytest.mark.parametrize(("spaces", "text"), [(True, "x <a> <b> x <a>"), (False, "x <a><b> x <a>")])
def test_spaces_between_added_tokens_are_as_asked(spaces: bool, text: str) -> None:
    words = tokenizers.Tokenizer(models.WordLevel({"x": 0}, unk_token="x"))  # decodes with a space between any two
    words.add_special_tokens(["<a>", "<b>"])
    tokenizer = Tokenizer(words, None, None, {})
    stream = DecodeStream(tokenizer, [0], skip_special_tokens=False, spaces_between=spaces)
    assert "".join(map(stream.step, [0, 1, 2, 0, 1])).strip() == text


LOCAL = [info.name for info in list_models() if local_path(info) is not None]


@pytest.mark.parametrize("name", LOCAL)
def test_models_at_hand_stream_any_tokens(name: str) -> None:
    tokenizer = load_tokenizer(Path(find_model(name).path))
    prompt = tokenizer.encode("Once upon a time")

    @settings(max_examples=100, deadline=None)
    @given(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=30))
    def check(ids: list[int]) -> None:
        output = "".join(pieces(tokenizer, prompt, ids))
        assert is_all_but_a_broken_end(tokenizer.decode(prompt) + output, tokenizer.decode([*prompt, *ids]))

    check()
