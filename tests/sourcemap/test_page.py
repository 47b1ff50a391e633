"""The page of the source map is what the rows say."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from minivllm.sourcemap.reference import reference_link
from minivllm.sourcemap.rows import not_built, rows

ROOT = Path(__file__).parents[2]


def test_the_page_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("generate_source_map", ROOT / "docs" / "generate_source_map.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (ROOT / "docs" / "source-map.md").read_text(encoding="utf-8")
    absent = (ROOT / "docs" / "not-built-yet.md").read_text(encoding="utf-8")
    assert module.render() == page, "run: python docs/generate_source_map.py"
    assert module.render_not_built() == absent, "run: python docs/generate_source_map.py"
    for text, told in ((page, rows()), (absent, not_built())):
        assert len(re.findall(r"^\| \*\*", text, re.MULTILINE)) == len(told)


def test_its_links_lead_to_pages_of_the_reference() -> None:
    page = (ROOT / "docs" / "source-map.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\((reference/\w+\.md)#minivllm[\w.]+\)", page)
    with_a_page = [row for row in rows() if row.ours is not None and reference_link(row.ours)]
    assert len(links) == len(with_a_page) > 0.9 * len(rows())
    assert [link for link in set(links) if not (ROOT / "docs" / link).exists()] == []
