"""Owns `minivllm generate`: plain use of the engine."""

from __future__ import annotations

import difflib
import json
import math
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minivllm.entrypoints.cli.common import ModelOption, check_text, examples, for_screen, name_option, note
from minivllm.entrypoints.cli.engine_options import (
    AheadOption,
    DtypeOption,
    EnforceEagerOption,
    KVCacheDtypeOption,
    LoadFormatOption,
    MultiprocessOption,
    engine_settings,
)
from minivllm.entrypoints.cli.errors import user_errors
from minivllm.sampling_params import INTERNAL_FIELDS, SamplingParams

if TYPE_CHECKING:
    from minivllm.entrypoints.llm import LLM

_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a text",
    "array": "a list",
    "object": "an object",
}


def register(app: typer.Typer) -> None:
    """Add the command."""
    epilog = examples(
        'minivllm generate "Once upon a time"',
        "minivllm generate --prompts prompts.jsonl --sampling '{\"seed\": 1}' --json",
    )
    app.command(epilog=epilog)(user_errors(generate))


def generate(
    prompts: Annotated[
        list[str] | None, typer.Argument(help="Prompts; - reads one from stdin.", show_default=False)
    ] = None,
    model: ModelOption = None,
    prompts_file: Annotated[
        Path | None, typer.Option("--prompts", help='JSON lines, each {"prompt": ...} or {"prompt_token_ids": [...]}.')
    ] = None,
    sampling: Annotated[str, typer.Option("--sampling", help="Sampling parameters as JSON.")] = "{}",
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Output limit of each prompt; default: the model's, or 64.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(min=0.0, help="0 is greedy; default: the model's, or 0.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the draws; default: 0.")] = None,
    max_model_len: Annotated[int | None, typer.Option(min=1, help="Longest sequence; default: the model's.")] = None,
    load_format: LoadFormatOption = "auto",
    dtype: DtypeOption = "auto",
    multiprocess: MultiprocessOption = False,
    async_scheduling: AheadOption = None,
    enforce_eager: EnforceEagerOption = False,
    kv_cache_dtype: KVCacheDtypeOption = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON line a prompt.")] = False,
) -> None:
    """Generate a completion for each prompt."""
    asked = _collect(prompts or [], prompts_file)
    if not asked:
        raise typer.BadParameter("give at least one prompt, or --prompts FILE")
    flags = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    flags = {name: value for name, value in flags.items() if value is not None}
    from minivllm.engine.arg_utils import DEFAULT_MODEL
    from minivllm.entrypoints.llm import LLM
    from minivllm.models.generation_config import recommended_sampling

    model = model or DEFAULT_MODEL
    # A seed of its own, so that the same command gives the same text.
    params = read_sampling(
        sampling, flags, {"temperature": 0.0, "max_tokens": 64, "seed": 0, **recommended_sampling(model)}
    )
    settings = engine_settings(
        load_format, dtype, multiprocess, async_scheduling, max_model_len, enforce_eager, kv_cache_dtype
    )
    llm = LLM(model=model, **settings)
    all_prompts = [prompt for prompt, _ in asked]
    for prompt, where in asked:
        _check_prompt(llm, prompt, where)
    for output in llm.generate(all_prompts, params):
        if as_json:
            print(json.dumps(_document(output), ensure_ascii=False))
        else:
            if len(all_prompts) > 1:
                note(f"[{output.request_id}]")
            for completion in output.outputs:
                print(for_screen((output.prompt or "") + completion.text))


def _collect(prompts: list[str], file: Path | None) -> list[tuple[Any, str]]:
    """Every prompt, and where it stands: empty if on the command line."""
    if prompts.count("-") > 1:
        raise typer.BadParameter("- stands for the whole of stdin: give it once")
    collected: list[tuple[Any, str]] = [(read_stdin() if prompt == "-" else prompt, "") for prompt in prompts]
    for number, (prompt, _) in enumerate(collected, 1):
        check_text(prompt, "the prompt" if len(prompts) == 1 else f"prompt {number}")
    if file is None:
        return collected
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(
            f"{file}: not a text file in UTF-8; convert it first, for instance with iconv -f latin1 -t utf-8"
        ) from None
    # Not splitlines(): JSON strings may hold other line separators than \n.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            where = f"{file}, line {number}"
            collected.append((_prompt_of_line(line, where), where))
    if len(collected) == len(prompts):
        raise ValueError(f'{file}: there is no prompt in it; write one a line: {{"prompt": "Once upon a time"}}')
    return collected


def _check_prompt(llm: LLM, prompt: Any, where: str) -> None:
    """Refuse a prompt of a file with its line; the engine itself does not know from where a prompt is."""
    if where:
        try:
            llm.llm_engine.input_processor.process_inputs("check", prompt, SamplingParams())
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None


def read_stdin() -> str:
    """Everything that is piped in. Raises ValueError if it is no text."""
    try:
        return sys.stdin.read().rstrip("\n")
    except UnicodeDecodeError:
        raise ValueError(
            "stdin: not a text in UTF-8; convert it first, for instance with iconv -f latin1 -t utf-8"
        ) from None


def _prompt_of_line(line: str, where: str) -> Any:
    document = _parse(line, where)
    unknown = sorted(set(document) - {"prompt", "prompt_token_ids"}) if isinstance(document, dict) else []
    if unknown and len(unknown) < len(document):
        raise ValueError(f"{where}: unknown key {unknown[0]!r}; sampling is the same for all prompts: use --sampling")
    if isinstance(document, dict) and "prompt" in document and "prompt_token_ids" in document:
        raise ValueError(f"{where}: it has both prompt and prompt_token_ids; leave one out")
    if isinstance(document, dict) and isinstance(document.get("prompt"), str):
        return document["prompt"]
    token_ids = document.get("prompt_token_ids") if isinstance(document, dict) else None
    if isinstance(token_ids, list) and all(type(i) is int for i in token_ids):
        return {"prompt_token_ids": token_ids}
    raise ValueError(f'{where}: expected {{"prompt": "text"}} or {{"prompt_token_ids": [1, 2, 3]}}')


def read_sampling(text: str, flags: dict[str, Any], defaults: dict[str, Any]) -> SamplingParams:
    """Sampling parameters from JSON; options of the command line go before it, and defaults behind.

    Args:
        text: Of --sampling.
        flags: Other options.
        defaults: Ours, and what the model's generation_config.json recommends.

    Raises:
        ValueError: The JSON is broken, or a parameter is unknown or out of range.
    """
    import msgspec

    given = _parse(text, "--sampling")
    if not isinstance(given, dict):
        raise ValueError('--sampling takes a JSON object, such as {"temperature": 0.8, "max_tokens": 64}')
    known = [name for name in SamplingParams.__struct_fields__ if name not in INTERNAL_FIELDS]
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
            raise ValueError(f"--sampling: unknown parameter {name!r}; {hint}")
    merged = {**defaults, **given, **flags}
    try:
        # JSON has no keys but strings, and logit_bias has token ids for keys.
        return msgspec.convert(merged, SamplingParams, str_keys=True)
    except msgspec.ValidationError as error:
        message = _plain(str(error), merged)
        name = message.partition(" ")[0]
        if name in defaults.keys() - given.keys() - flags.keys():
            raise ValueError(f"the model's generation_config.json: {message}; mend it there") from None
        named = name_option(message, flags)
        raise ValueError(named if named != message else f"--sampling: {message}") from None


def _plain(message: str, given: dict[str, Any]) -> str:
    """msgspec's message in a user's words: "top_p must be a number, got 'high'"."""
    if message.endswith("`key` in `$.logit_bias`"):
        return f"logit_bias must have token ids for keys, got {given.get('logit_bias')!r:.80}"
    wrong = re.match(r"Expected `([\w |]+)`.* - at `\$\.(\w+)", message)
    if wrong is None:
        return message
    kinds = " or ".join(_KINDS.get(kind, kind) for kind in wrong[1].split(" | "))
    inside = "" if message.endswith(f"$.{wrong[2]}`") else "hold "
    return f"{wrong[2]} must {inside or 'be '}{kinds}, got {given.get(wrong[2])!r}"


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: not valid JSON: {error.msg} (column {error.colno})") from None
    except RecursionError:
        raise ValueError(f"{where}: nested too deeply") from None
    except ValueError:
        raise ValueError(f"{where}: not JSON that can be read: a number has thousands of digits") from None


def _document(output: Any) -> dict[str, Any]:
    return {
        "request": output.request_id,
        "prompt": output.prompt,
        "prompt_token_ids": output.prompt_token_ids,
        "outputs": [
            {
                "index": completion.index,
                "text": completion.text,
                "token_ids": completion.token_ids,
                "finish_reason": completion.finish_reason,
                "stop_reason": completion.stop_reason,
                "logprobs": _logprobs(completion.logprobs),
            }
            for completion in output.outputs
        ],
        **({} if output.prompt_logprobs is None else {"prompt_logprobs": _logprobs(output.prompt_logprobs)}),
    }


def _logprobs(positions: Any) -> list[dict[str, Any] | None] | None:
    """Per position the scores by token id; JSON has no minus infinity, so a token that is ruled out has null."""
    if positions is None:
        return None
    return [
        position
        and {
            str(token_id): {
                "logprob": entry.logprob if math.isfinite(entry.logprob) else None,
                "rank": entry.rank,
                "decoded_token": entry.decoded_token,
            }
            for token_id, entry in position.items()
        }
        for position in positions
    ]
