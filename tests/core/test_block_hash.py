"""Names of cached blocks: equal exactly if the KV inside is equal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minivllm.core.block_hash import generate_block_hash_extra_keys, get_request_block_hasher, hash_block_tokens
from minivllm.core.request import LoRARequest, MultiModalItem, Request
from minivllm.sampling_params import SamplingParams
from tests.core.building import make_request

PROMPT = list(range(12))  # three blocks of 4


def hashes(**fields: object) -> list[bytes]:
    return make_request("any", PROMPT, **fields).block_hashes


def test_only_full_blocks_have_a_hash() -> None:
    for length in range(1, 13):
        assert len(make_request("a", length, block_size=4).block_hashes) == length // 4


def test_a_hash_names_the_whole_prefix() -> None:
    one = make_request("a", [1, 1, 2, 2], block_size=2).block_hashes
    other = make_request("b", [9, 9, 2, 2], block_size=2).block_hashes
    same_start = make_request("c", [1, 1, 3, 3], block_size=2).block_hashes
    assert one[1] != other[1], "equal tokens after different prefixes are different blocks"
    assert one[0] == same_start[0]
    assert one[1] != same_start[1]


def test_the_same_tokens_have_the_same_hashes_whoever_asks_and_however_they_came() -> None:
    grown = make_request("a", PROMPT[:5])
    for token in PROMPT[5:]:
        grown.append_output_token_ids(token)
    assert grown.block_hashes == make_request("b", PROMPT).block_hashes


def test_blocks_are_hashed_when_somebody_asks_for_their_hashes() -> None:
    hasher, calls = get_request_block_hasher(4, b"seed"), []

    def counted(request: Request) -> list[bytes]:
        calls.append(request.num_tokens)
        return hasher(request)

    counted.block_size = 4  # type: ignore[attr-defined]
    request = Request("a", PROMPT[:6], SamplingParams(), block_hasher=counted)  # type: ignore[arg-type]
    assert not calls
    assert len(request.block_hashes) == len(request.block_hashes) == 1
    for token in (7, 8):
        request.append_output_token_ids(token)
    assert calls == [6]
    assert len(request.block_hashes) == len(request.block_hashes) == 2
    assert calls == [6, 8]


def test_the_start_of_the_chain_is_secret_unless_a_seed_is_given() -> None:
    request = make_request("a", PROMPT)
    chains = []
    for seed in (b"s", b"s", None, None):
        request._block_hashes = []
        chains.append(get_request_block_hasher(4, seed)(request))
    assert chains[0] == chains[1]
    assert chains[0] != chains[2] != chains[3]


@given(st.lists(st.integers(0, 3), min_size=8, max_size=8), st.lists(st.integers(0, 3), min_size=8, max_size=8))
def test_hashes_agree_exactly_as_far_as_the_tokens_do(a: list[int], b: list[int]) -> None:
    common = next((i for i in range(8) if a[i] != b[i]), 8)
    one, other = make_request("a", a, block_size=2), make_request("b", b, block_size=2)
    equal = [x == y for x, y in zip(one.block_hashes, other.block_hashes, strict=True)]
    assert equal == [end <= common for end in (2, 4, 6, 8)]


class TestExtraKeys:
    """What the tokens do not show. Each key is tagged with its kind (vLLM 0.27.1 mixes bare strings, vllm#44701)."""

    def test_an_adapter_named_like_a_salt_is_not_that_salt(self) -> None:
        adapter = LoRARequest("x", "/adapters/x")
        assert hashes(lora_request=adapter)[0] != hashes(cache_salt="x")[0]
        assert hashes(lora_request=LoRARequest("x", "x"))[0] != hashes(cache_salt="x")[0]

    def test_adapters_of_one_name_and_other_weights_are_kept_apart(self) -> None:
        assert hashes(lora_request=LoRARequest("x", "/a"))[0] != hashes(lora_request=LoRARequest("x", "/b"))[0]

    def test_name_and_path_of_an_adapter_do_not_run_into_each_other(self) -> None:
        assert hashes(lora_request=LoRARequest("ab", "c"))[0] != hashes(lora_request=LoRARequest("a", "bc"))[0]

    def test_an_adapter_is_in_every_block(self) -> None:
        request = make_request("a", PROMPT, lora_request=LoRARequest("x", "/x"))
        for start in (0, 4, 8):
            assert generate_block_hash_extra_keys(request, start, start + 4) == [("lora", "x", "/x")]

    def test_a_salt_is_in_the_first_block_and_reaches_the_others_through_the_chain(self) -> None:
        request = make_request("a", PROMPT, cache_salt="pepper")
        assert generate_block_hash_extra_keys(request, 0, 4) == [("salt", "pepper")]
        assert generate_block_hash_extra_keys(request, 4, 8) == []
        for plain, salted in zip(hashes(), hashes(cache_salt="pepper"), strict=True):
            assert plain != salted

    def test_an_empty_salt_is_still_a_salt(self) -> None:
        assert hashes(cache_salt="")[0] != hashes()[0]

    @pytest.mark.parametrize(
        ("offset", "length", "expected"),
        [
            (0, 4, [True, False, False]),
            (3, 2, [True, True, False]),
            (4, 4, [False, True, False]),
            (7, 1, [False, True, False]),
            (2, 10, [True, True, True]),
        ],
    )
    def test_an_image_is_in_the_blocks_that_it_overlaps(self, offset: int, length: int, expected: list[bool]) -> None:
        request = make_request("a", PROMPT, mm_features=(MultiModalItem("cat", offset, length),))
        keys = [generate_block_hash_extra_keys(request, start, start + 4) for start in (0, 4, 8)]
        assert [bool(key) for key in keys] == expected

    def test_an_image_two_tokens_further_on_is_another_block(self) -> None:
        here = hashes(mm_features=(MultiModalItem("cat", 0, 2),))
        there = hashes(mm_features=(MultiModalItem("cat", 2, 2),))
        assert here[0] != there[0]

    def test_images_in_other_places_are_told_apart(self) -> None:
        """The same two images in the same block, places exchanged (vllm#36708)."""
        one = hashes(mm_features=(MultiModalItem("cat", 0, 2), MultiModalItem("dog", 2, 2)))
        other = hashes(mm_features=(MultiModalItem("dog", 0, 2), MultiModalItem("cat", 2, 2)))
        assert one[0] != other[0]

    def test_no_extra_keys_hash_like_none(self) -> None:
        assert hash_block_tokens(b"p" * 32, [1, 2]) == hash_block_tokens(b"p" * 32, [1, 2], [])


def test_the_tokens_of_a_block_are_hashed_as_numbers_of_fixed_width() -> None:
    assert hash_block_tokens(b"p" * 32, [1, 23]) != hash_block_tokens(b"p" * 32, [12, 3])
    assert hash_block_tokens(b"p" * 32, [1 << 31, 0]) != hash_block_tokens(b"p" * 32, [0, 1 << 31])
