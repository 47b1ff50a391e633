"""What the docs mention exists, and what is generated is up to date."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
from functools import cache
from pathlib import Path

import pytest

import minivllm
from minivllm.core.decisions import Reason

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md"), *ROOT.glob("walkthroughs/*/*.md")])
PAGES = [page for page in PAGES if page.name != "CHANGELOG.md"]

CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"(?:minivllm|kernels|walkthroughs|tests|docs|\.ci)/[\w./-]*\w/?(?:::[\w.]+)?")
DOTTED = re.compile(r"minivllm(?:\.\w+)+")
MEMBER = re.compile(r"([A-Z]\w*[a-z]\w*)((?:\.\w+)*)")
SNAKE = re.compile(r"[a-z]+(?:_[a-z0-9]+)+")

# Names of other projects, and of the world.
FOREIGN = {"PyTorch", "Triton", "NumPy"}


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def code_of(page: Path) -> list[str]:
    """Everything in backticks, outside fenced blocks, that is not vLLM's."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return [code for code in CODE.findall(text) if not code.startswith("vllm/")]


def resolve(dotted: str) -> object:
    """The module, class, function or attribute of a dotted name. Fields without a default count as there."""
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        name = ".".join(parts[:end])
        try:
            found: object = importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        for attribute in parts[end:]:
            found = member(found, attribute)
        return found
    raise AttributeError(dotted)


def member(owner: object, name: str) -> object:
    if hasattr(owner, name):
        return getattr(owner, name)
    annotations = getattr(owner, "__annotations__", {})
    if name in annotations:
        return annotations[name]
    raise AttributeError(f"{owner} has no {name}")


@cache
def all_classes() -> dict[str, list[type]]:
    classes: dict[str, list[type]] = {}
    for info in pkgutil.walk_packages(minivllm.__path__, "minivllm."):
        if ".assets." in info.name:
            continue
        for value in vars(importlib.import_module(info.name)).values():
            if isinstance(value, type):
                classes.setdefault(value.__name__, []).append(value)
    return classes


@cache
def source_words() -> set[str]:
    files = [*ROOT.glob("minivllm/**/*.py"), *ROOT.glob("kernels/**/*.py"), *ROOT.glob("tests/**/*.py")]
    files += [ROOT / "pyproject.toml", ROOT / "mkdocs.yml"]
    return {word for file in files for word in re.findall(r"\w+", file.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_paths_exist(page):
    for code in code_of(page):
        if not PATH.fullmatch(code):
            continue
        path, _, symbol = code.partition("::")
        assert (ROOT / path).exists(), f"{page_id(page)} mentions {code}"
        if symbol:
            resolve(path.removesuffix(".py").replace("/", ".") + "." + symbol)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_dotted_names_resolve(page):
    text = page.read_text(encoding="utf-8")
    names = [code for code in code_of(page) if DOTTED.fullmatch(code)]
    names += re.findall(r"^::: (\S+)", text, flags=re.M)
    for name in names:
        resolve(name)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_classes_and_members_exist(page):
    for code in code_of(page):
        match = MEMBER.fullmatch(code.removesuffix("()"))
        if match is None or match[1] in FOREIGN:
            continue
        name, members = match[1], match[2].split(".")[1:]
        owners = all_classes().get(name)
        assert owners, f"{page_id(page)} mentions the class {name}"
        for owner in owners[:1]:
            found: object = owner
            for attribute in members:
                found = member(found, attribute)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_names_with_underscores_occur_in_the_source(page):
    for code in code_of(page):
        if SNAKE.fullmatch(code):
            assert code in source_words(), f"{page_id(page)} mentions {code}"


def test_every_reason_is_explained():
    text = (ROOT / "docs/scheduling.md").read_text(encoding="utf-8")
    table = text[text.index("## Reasons") :]
    missing = [reason for reason in Reason if f"`{reason}`" not in table]
    assert not missing


def test_every_place_that_asks_for_the_semantics_is_in_the_table_of_differences():
    table = (ROOT / "docs/differences.md").read_text(encoding="utf-8")
    for file in ROOT.glob("minivllm/core/*.py"):
        switches = len(re.findall(r"semantics [!=]= ", file.read_text(encoding="utf-8")))
        name = "minivllm/core/admission.py" if file.name == "scheduler.py" else str(file.relative_to(ROOT))
        assert table.count(f"(`{name}`)") >= switches, f"{file.name} asks {switches} times"


def test_the_command_line_page_is_up_to_date():
    spec = importlib.util.spec_from_file_location("generate_cli", ROOT / "docs/generate_cli.py")
    assert spec is not None
    assert spec.loader is not None
    generate_cli = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate_cli)
    from minivllm.entrypoints.cli.main import app

    expected = generate_cli.render(app)
    assert (ROOT / "docs/cli.md").read_text(encoding="utf-8") == expected, "run: python docs/generate_cli.py"


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text):
            assert (page.parent / target).exists(), f"{page_id(page)} links to {target}"
