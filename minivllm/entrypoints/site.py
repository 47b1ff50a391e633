"""Owns where the documentation's site is on this machine: in the package, or built from a checkout and kept."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from minivllm.entrypoints.cli.errors import LackingError

_PACKAGE = Path(__file__).parents[1]
PACKAGED = _PACKAGE / "site"
CHECKOUT = _PACKAGE.parent
BUILDER = CHECKOUT / "docs" / "build_site.py"
# What MkDocs needs for our configuration, as modules.
_TOOLS = ("mkdocs", "material", "mkdocstrings")


def needs_build(*, rebuild: bool = False) -> bool:
    """Whether `find_site` will build, which takes half a minute."""
    if rebuild or not BUILDER.is_file():
        return rebuild
    return not is_site(PACKAGED) and (not is_site(kept_site()) or is_outdated(kept_site()))


def find_site(*, rebuild: bool = False) -> Path:
    """The folder of a built site. A checkout's is built where it is missing or older than its sources.

    Args:
        rebuild: Build it in any case.

    Raises:
        LackingError: There is none, and it cannot be built here.
        ValueError: The build failed.
    """
    if is_site(PACKAGED) and not rebuild:
        return PACKAGED
    if not BUILDER.is_file():
        raise LackingError(
            "this minivllm was installed without its site; read it in a checkout: "
            'pip install -e ".[docs]" && minivllm docs'
        )
    if needs_build(rebuild=rebuild):
        if missing := [name for name in _TOOLS if importlib.util.find_spec(name) is None]:
            raise LackingError(
                f'the site has to be built first, and {missing[0]} is not installed; run: pip install -e ".[docs]"'
            )
        _build(kept_site())
    return kept_site()


def kept_site() -> Path:
    """Where a built site is kept: $MINIVLLM_HOME/site, or minivllm/site below $XDG_CACHE_HOME."""
    if own := os.environ.get("MINIVLLM_HOME"):
        return Path(own) / "site"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "minivllm" / "site"


def is_site(folder: Path) -> bool:
    """Whether a site stands there."""
    return (folder / "index.html").is_file()


def is_outdated(site: Path) -> bool:
    """Whether a source of the site is younger than the site."""
    built = (site / "index.html").stat().st_mtime
    return any(path.stat().st_mtime > built for path in _sources())


def _sources() -> Iterator[Path]:
    yield from CHECKOUT.glob("mkdocs*.yml")
    for folder, pattern in (("docs", "*"), ("minivllm", "*.py"), ("kernels", "*.py")):
        yield from (path for path in (CHECKOUT / folder).rglob(pattern) if path.is_file() and path.suffix != ".pyc")


def _build(site: Path) -> None:
    """Build beside it, and put it in its place when it is whole."""
    site.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=site.parent, prefix="site-") as place:
        new = Path(place) / "site"
        command = [sys.executable, str(BUILDER), str(new)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["it did not say why"]
            raise ValueError(f"the site could not be built: {lines[-1]}")
        shutil.rmtree(site, ignore_errors=True)
        os.replace(new, site)
