"""Builds the site: English, below it Chinese, and the pages once more as plain Markdown with a list of them, llms.txt.

python docs/build_site.py [FOLDER]     default: site/

With FOLDER = minivllm/site the site becomes part of the next wheel, and `minivllm docs` serves it from there.
Needs the extra "docs". Nothing is fetched.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
# Each language: its configuration, and the folder of the site that it goes to. The first one empties the whole folder.
LANGUAGES = (("mkdocs.yml", ""), ("mkdocs.zh.yml", "zh"))


def build(folder: Path) -> None:
    """Build all of it.

    Raises:
        subprocess.CalledProcessError: MkDocs found fault; its `stderr` says which.
    """
    for config, below in LANGUAGES:
        if (ROOT / config).exists():
            _mkdocs(ROOT / config, folder / below)
    _link_languages(folder)
    for page in folder.rglob("*.html"):
        if "assets" not in page.parts:
            text = without_indentation(page.read_text(encoding="utf-8"))
            page.write_text(with_search_on_demand(text), encoding="utf-8")
    _write_markdown(folder)


def _mkdocs(config: Path, folder: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    command += ["--config-file", str(config), "--site-dir", str(folder.resolve())]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(command, cwd=ROOT, env=env, check=True, stderr=subprocess.PIPE, text=True)


def _link_languages(folder: Path) -> None:
    """Let the switch of languages lead to the same page where both have it: MkDocs knows the other start page only."""
    sitemap = (folder / "sitemap.xml").read_bytes()  # without an address of the site it lists nothing
    for chinese in sorted((folder / "zh").rglob("*.html")):
        name = chinese.relative_to(folder / "zh")
        english = folder / name
        if name.name == "404.html" or not english.exists():
            continue
        for page, other, lang in ((english, chinese, "zh"), (chinese, english, "en")):
            link = Path(os.path.relpath(other, page.parent)).as_posix()
            text = page.read_text(encoding="utf-8")
            text = re.sub(rf'href="[^"]*"(?= hreflang="{lang}")', f'href="{link}"', text)
            page.write_text(text, encoding="utf-8")
            # The theme looks for one beside the page that a switch leads to, and a browser tells of each miss.
            page.with_name("sitemap.xml").write_bytes(sitemap)


# What is shown, or read, as it stands.
_VERBATIM = re.compile(r"(<(?:pre|script|style|textarea)\b.*?</(?:pre|script|style|textarea)>)", re.S)


def without_indentation(html: str) -> str:
    """A page without the blanks that the theme's templates leave in front of lines: up to a third of its bytes."""
    parts = _VERBATIM.split(html)
    parts[::2] = [re.sub(r"\s*\n\s*", "\n", part) for part in parts[::2]]
    return "".join(parts)


def with_search_on_demand(html: str) -> str:
    """A page whose search.js runs before the theme's script, which asks for the index of the search as soon as it runs.

    MkDocs puts scripts of a site behind the theme's. Built without this, a page works as well and weighs more.
    """
    found = re.search(r'<script src="[^"]*assets/search\.js"></script>\s*', html)
    theme = re.search(r'<script src="[^"]*javascripts/bundle\.', html)
    if not found or not theme:
        return html
    return html[: theme.start()] + found.group() + html[theme.start() : found.start()] + html[found.end() :]


def _write_markdown(folder: Path) -> None:
    """Each page as it was written, beside the one for browsers, for readers that take plain text."""
    lines = ["# minivllm", "", "> Watch a real vLLM-style engine think, one iteration at a time.", ""]
    for section, title, name in nav():
        if section:
            lines += ["", f"## {section}", ""]
        text = (DOCS / name).read_text(encoding="utf-8")
        lines.append(f"- [{title or _heading(text)}]({name}): {_first_sentence(text)}")
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(DOCS / name, folder / name)
    (folder / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def nav() -> Iterator[tuple[str, str, str]]:
    """Every page in the order of the menu: its section where one begins, its title ("" for its heading), its file."""
    import yaml

    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    sections: list[dict[str, list[Any]]] = yaml.safe_load(text[text.index("\nnav:") :])["nav"]
    for section in sections:
        for title, entries in section.items():
            for number, entry in enumerate(entries):
                ((name, path),) = entry.items() if isinstance(entry, dict) else (("", entry),)
                yield title if number == 0 else "", name, path


def _heading(text: str) -> str:
    return next(line.removeprefix("# ") for line in text.splitlines() if line.startswith("# "))


def _first_sentence(text: str) -> str:
    """The first sentence below the heading, without links."""
    after = text[f"\n{text}".index("\n# ") :].split("\n\n")[1:]
    prose = (part for part in after if re.match(r"\w|`\w", part) and not part.startswith("About "))
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(next(prose, "").split()))
    return re.split(r"(?<=[.?!])\s", words)[0]


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "site"
    try:
        build(target)
    except subprocess.CalledProcessError as failed:
        sys.exit(failed.stderr or str(failed))
    print(f"built {target}")
