"""Owns `minivllm where`: from a concept or a symbol to its place in our source and in vLLM's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from minivllm.entrypoints.cli.common import AsciiOption, JsonOption, WidthOption, examples, print_json, stdout_console
from minivllm.entrypoints.cli.errors import BAD_INPUT, say, user_errors
from minivllm.sourcemap.rows import not_built, rows

if TYPE_CHECKING:
    from minivllm.entrypoints.cli import where_view


def complete_concept(incomplete: str) -> list[str]:
    """Names of concepts, for the shell's completion."""
    return [row.concept for row in (*rows(), *not_built()) if row.concept.startswith(incomplete)]


def register(app: typer.Typer) -> None:
    """Add the command."""
    epilog = examples("minivllm where slot_mapping", "minivllm where --path request")
    app.command("where", epilog=epilog, no_args_is_help=True)(user_errors(where))


def where(
    concept: Annotated[
        str | None,
        typer.Argument(
            help="A concept in English or Chinese, our symbol or file, or vLLM's old or new one.",
            metavar="CONCEPT|SYMBOL",
            autocompletion=complete_concept,
            show_default=False,
        ),
    ] = None,
    path: Annotated[
        Literal["request", "step", "kv", "runner", "output"] | None,
        typer.Option("--path", help="A reading route: breakpoints in order, each with its question."),
    ] = None,
    tree: Annotated[bool, typer.Option("--tree", help="Every folder and file, its process, and what it owns.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Look for every symbol of the map in a vLLM.")] = False,
    vllm: Annotated[
        str | None,
        typer.Option("--vllm", help="With --verify: a folder, wheel or sdist, or installed.", metavar="PATH|installed"),
    ] = None,
    as_json: JsonOption = False,
    width: WidthOption = None,
    ascii_only: AsciiOption = False,
) -> None:
    """Find a concept or a symbol: its layer, process and owner, the place here, and vLLM's."""
    asked = [concept is not None, path is not None, tree, verify]
    if sum(asked) != 1:
        raise typer.BadParameter("give one of these: a concept, --path, --tree, or --verify")
    if vllm is not None and not verify:
        raise typer.BadParameter("--vllm belongs to --verify")
    from minivllm.entrypoints.cli.where_view import View, route_document, tree_document

    view = View(stdout_console(width), ascii_only)
    if concept is not None:
        _find(concept, as_json, view)
    elif path is not None:
        from minivllm.sourcemap.routes import ROUTES

        document = route_document(path, ROUTES[path])
        print_json("where-path", document) if as_json else view.draw_route(document)
    elif tree:
        from minivllm.sourcemap.tree import directory_map

        entries = directory_map()
        print_json("where-tree", tree_document(entries)) if as_json else view.draw_tree(entries)
    else:
        _verify(vllm or "installed", as_json, view)


def _find(concept: str, as_json: bool, view: where_view.View) -> None:
    from minivllm.entrypoints.cli.where_view import match_document
    from minivllm.sourcemap.search import search, suggestions

    found = search(concept)
    near = [] if found else suggestions(concept)
    if as_json:
        document = {"query": concept, "matches": [match_document(row) for row in found]}
        print_json("where", document if found else {**document, "suggestions": near})
    elif found:
        view.draw_matches(found)
    if not found:
        hint = f"nearest: {'; '.join(near)}" if near else "all of them: minivllm where --tree"
        say(f"nothing on the map is called {concept!r}; {hint}")
        raise typer.Exit(BAD_INPUT)


def _verify(where_it_is: str, as_json: bool, view: where_view.View) -> None:
    from minivllm.sourcemap.verify import verify
    from minivllm.sourcemap.vllm_source import open_vllm

    document = verify(open_vllm(where_it_is))
    print_json("where-verify", document) if as_json else view.draw_verdicts(document)
    drift = document["moved"] + document["renamed"] + document["gone"]
    if drift:
        total = drift + document["ok"]
        say(f"vLLM {document['version']} has drifted from {document['pinned']}: {drift} of {total} symbols")
        raise typer.Exit(BAD_INPUT)
