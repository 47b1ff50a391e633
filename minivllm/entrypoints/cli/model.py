"""Owns `minivllm model`: which models are at hand, and fetching one."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from minivllm.entrypoints.cli.common import JsonOption, examples, note, print_json, stdout_console
from minivllm.entrypoints.cli.errors import user_errors

NameArgument = Annotated[str, typer.Argument(help="Name of a model.")]


def register(app: typer.Typer) -> None:
    """Add the group."""
    group_epilog = examples("minivllm model list", "minivllm model info stories-5m")
    group = typer.Typer(help="Models at hand.", epilog=group_epilog, no_args_is_help=True)
    list_epilog = examples("minivllm model list", "minivllm model list --json")
    group.command("list", epilog=list_epilog)(user_errors(list_))
    info_epilog = examples("minivllm model info smollm2", "minivllm model info stories-5m --json")
    group.command("info", epilog=info_epilog)(user_errors(info))
    pull_epilog = examples("minivllm model pull smollm2", "minivllm trace --model smollm2")
    group.command("pull", epilog=pull_epilog)(user_errors(pull))
    app.add_typer(group, name="model")


def list_(as_json: JsonOption = False) -> None:
    """List the models known by name."""
    from minivllm.models.model_zoo import list_models, local_path
    from minivllm.models.registry import ARCHITECTURES

    rows = [
        {
            "name": model.name,
            "description": model.description,
            "path": str(path) if (path := local_path(model)) else None,
        }
        for model in list_models()
    ]
    architectures = {entry.name: entry.models for entry in ARCHITECTURES.values()}
    if as_json:
        print_json("model-list", {"models": rows, "architectures": architectures})
        return
    table = Table(box=None, pad_edge=False)
    for column in ("model", "what", "where"):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(row["name"], row["description"], row["path"] or f"not here: minivllm model pull {row['name']}")
    console = stdout_console(None)
    console.print(table)
    console.print("\nAlso folders, .gguf files and hub names (owner/model) of these architectures:")
    for architecture, models in architectures.items():
        console.print(f"  {architecture:<22}{models}", highlight=False)


def info(name: NameArgument, as_json: JsonOption = False) -> None:
    """Show what a model is made of: any model name, folder or .gguf file."""
    from minivllm.models.facts import describe
    from minivllm.models.model_zoo import find_model

    facts = describe(find_model(name))
    if as_json:
        print_json("model-info", facts)
        return
    for key, value in facts.items():
        shown = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        print(f"{key:<26}{shown}")


def pull(name: NameArgument) -> None:
    """Fetch a model into the user's data folder."""
    from minivllm.models.model_zoo import pull as pull_model

    path = pull_model(name, note)
    print(path)
    note(f"next: minivllm trace --model {name}")
