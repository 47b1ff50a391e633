"""Pages that are written by a script are what the script writes."""

from __future__ import annotations

import re

import pytest

from minivllm.core.request import Request
from minivllm.sampling_params import SamplingParams
from minivllm.sourcemap.locate import locate
from minivllm.sourcemap.reference import PACKAGES
from tests.docs.generators import DOCS, ROOT, generator, page, without_line_numbers

OUTPUTS = generator("outputs")


@pytest.mark.parametrize(("name", "script"), [("index.md", "start"), ("architecture.md", "contracts")])
def test_a_generated_part_is_up_to_date(name: str, script: str) -> None:
    text = page(name)
    assert without_line_numbers(generator(script).filled(text)) == without_line_numbers(text), (
        f"run: PYTHONPATH=. python docs/generate_{script}.py"
    )


@pytest.mark.parametrize("scenario", generator("viewers").SCENARIOS)
def test_an_embedded_viewer_is_up_to_date(scenario: str) -> None:
    viewers = generator("viewers")
    written = viewers.path_of(scenario).read_text(encoding="utf-8")
    assert without_line_numbers(viewers.render(scenario)) == without_line_numbers(written), (
        "run: PYTHONPATH=. python docs/generate_viewers.py"
    )


def test_the_page_of_viewers_is_up_to_date() -> None:
    assert page("viewer.md") == generator("viewers").render_page(), "run: PYTHONPATH=. python docs/generate_viewers.py"


def test_the_glossary_is_up_to_date() -> None:
    glossary = generator("glossary")
    assert page("glossary.md") == glossary.render(), "run: PYTHONPATH=. python docs/generate_glossary.py"
    terms = glossary.terms()
    assert len({term.key for term in terms}) == len(terms) > 50
    assert [term.symbol for term in terms if locate(term.symbol) is None] == []


def test_the_reference_has_a_page_for_every_package() -> None:
    pages = generator("reference").pages()
    assert {path.name for path in pages} == {path.name for path in (DOCS / "reference").glob("*.md")}
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, "run: PYTHONPATH=. python docs/generate_reference.py"
    # These hold no part of the engine: commands, what learners edit, data, and names for vLLM's own users.
    elsewhere = {"entrypoints", "exercises", "assets", "walkthroughs", "v1", "utils"}
    packages = {path.parent.name for path in (ROOT / "minivllm").glob("*/__init__.py")}
    assert packages - elsewhere - set(PACKAGES) == set()


@pytest.mark.parametrize("name", OUTPUTS.PAGES)
def test_outputs_are_what_commands_and_programs_print(name: str) -> None:
    text = page(name)
    assert without_line_numbers(OUTPUTS.filled(text)) == without_line_numbers(text), (
        "run: PYTHONPATH=. python docs/generate_outputs.py"
    )


def test_every_difference_to_the_articles_has_its_proof() -> None:
    sections = re.split(r"^## ", page("articles.md"), flags=re.M)[1:]
    assert [section.split(".")[0] for section in sections] == [f"D{number}" for number in range(1, 23)]
    for number, section in enumerate(sections, 1):
        assert f"{{ #d{number} }}" in section.splitlines()[0]
        assert "```console\n$ " in section or re.search(r"```python\n.*?```text\n\S", section, re.S), section[:20]


def test_names_that_only_the_articles_and_vllm_have_are_told_as_theirs() -> None:
    """Each is on the page, and nothing of ours is called so."""
    text = page("articles.md")
    names = ("scheduled_requests", "scheduled_running_reqs", "req_to_new_blocks", "draft_tokens", "logprobs_tensors")
    for name in (*names, "cudagraph_manager", "input_budget", "gather_batch_req_state"):
        assert f"`{name}" in text
        assert locate(f"minivllm.core.scheduler_output:SchedulerOutput.{name}") is None


def test_the_debts_on_the_page_of_the_scheduler_are_what_a_request_owes() -> None:
    told = [int(number) for number in re.findall(r"debt (\d+) ", page("scheduling.md"))]
    assert told == [
        debt(known=600, computed=0),
        debt(known=600, computed=256),
        debt(known=601, computed=600),
        debt(known=601, computed=600, drafts=3),
        debt(known=640, computed=0),
    ]


def debt(known: int, computed: int, drafts: int = 0) -> int:
    """What the scheduler takes for a request's debt in a step."""
    request = Request("R0", range(known), SamplingParams())
    request.num_computed_tokens = computed
    request.spec_token_ids = [0] * drafts
    return request.num_tokens_with_spec + request.num_output_placeholders - request.num_computed_tokens
