"""Owns `minivllm explain`: the arithmetic behind one number of a run."""

from __future__ import annotations

import difflib
from typing import Annotated

import typer

from minivllm.entrypoints.cli.common import (
    AsciiOption,
    JsonOption,
    LangOption,
    LogOption,
    ScenarioOption,
    WidthOption,
    check_rates,
    choose_log,
    examples,
    language,
    note,
    print_json,
    stdout_console,
)
from minivllm.entrypoints.cli.errors import user_errors
from minivllm.entrypoints.cli.map_ import FreshOption, fresh_log

_TOPICS = ("slot", "budget", "alloc", "hit-rate", "memory", "graph", "weights", "roofline", "ledger")
_WHOLE_RUN = ("memory", "weights")
_ENGLISH_ONLY = ("graph", "roofline")


def complete_topic(incomplete: str) -> list[str]:
    """Topics, for the shell's completion."""
    return [topic for topic in _TOPICS if topic.startswith(incomplete)]


TopicArgument = Annotated[
    str, typer.Argument(help=f"One of: {', '.join(_TOPICS)}.", metavar="TOPIC", autocompletion=complete_topic)
]
WhoOption = Annotated[str | None, typer.Option("--request", "-r", help="About which request, e.g. R1.")]
PosOption = Annotated[int | None, typer.Option("--pos", min=0, help="slot: which position of its sequence, from 0.")]
WhenOption = Annotated[int | None, typer.Option("--iteration", "-i", min=0, help="About which iteration.")]
BandwidthOption = Annotated[
    float | None, typer.Option("--bandwidth-gb-s", help="roofline: GB/s that the machine reads at best.")
]
RateOption = Annotated[
    float | None, typer.Option("--tflops", help="roofline: 10^12 operations a second that it does at best.")
]
MeasureOption = Annotated[bool, typer.Option("--measure", help="roofline: measure both on this machine's CPU.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    epilog = examples(
        "minivllm explain slot --request R1 --pos 37 -s chunked", "minivllm explain ledger -s two-processes"
    )
    app.command(epilog=epilog)(user_errors(explain))


def explain(
    topic: TopicArgument,
    request: WhoOption = None,
    pos: PosOption = None,
    iteration: WhenOption = None,
    log: LogOption = None,
    scenario: ScenarioOption = None,
    fresh: FreshOption = False,
    bandwidth: BandwidthOption = None,
    tflops: RateOption = None,
    measure: MeasureOption = False,
    as_json: JsonOption = False,
    width: WidthOption = None,
    ascii_only: AsciiOption = False,
    lang_: LangOption = None,
) -> None:
    """Show how a number of a run came about: the formula, this run's numbers in it, and its place in the source.

    slot: where a token's key and value lie. budget: what an iteration's tokens were spent on; with --request, its
    prompt's chunks. alloc: who got which blocks when. hit-rate: what the prefix cache counts. memory: KV blocks and
    weights. graph: launch mode and padding. weights: the checkpoint's tensors and our parameters. roofline: the floor
    of a step. ledger: the five accounts of a request: time, memory, communication, CPU, and itself.
    """
    _check_topic(topic)
    _check_options(topic, pos, bandwidth, tflops, measure)
    lang = language(lang_, ascii_only=ascii_only)
    if topic in _ENGLISH_ONLY and lang != "en":
        note(f"explain {topic} is told in English only")
        lang = "en"
    from minivllm.analysis.explain import explain as answer
    from minivllm.analysis.explain_answer import Ask
    from minivllm.entrypoints.cli.choosing import check_request, choose_iterations
    from minivllm.maps.stages import requests_of

    chosen = fresh_log(log, scenario) if fresh else choose_log(log, scenario)
    check_request(request, requests_of(chosen))
    if iteration is not None:
        choose_iterations(str(iteration), list(chosen.by_step()))
    if topic in _WHOLE_RUN and (request is not None or iteration is not None):
        note(f"{topic} is the same for the whole run: --request and --iteration change nothing")
    rates = _measured(chosen.header.device, chosen.header.model_shape.get("dtype", "float32")) if measure else None
    bytes_per_s, flops_per_s = rates or (
        None if bandwidth is None else bandwidth * 1e9,
        None if tflops is None else tflops * 1e12,
    )
    explanation = answer(chosen, topic, Ask(request, pos, iteration, bytes_per_s, flops_per_s, lang))
    if as_json:
        print_json("explain", {"log": str(chosen.path), **explanation.as_dict()})
        return
    from minivllm.entrypoints.cli.explain_view import draw_explanation

    source = f"-s {scenario}" if scenario is not None and not fresh else f"--log {chosen.path}"
    draw_explanation(explanation, chosen, source, stdout_console(width), ascii_only=ascii_only, lang=lang)


def _check_topic(topic: str) -> None:
    if topic in _TOPICS:
        return
    close = difflib.get_close_matches(topic, _TOPICS, 1)
    hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(_TOPICS)}"
    raise typer.BadParameter(f"there is no topic {topic!r}; {hint}")


def _check_options(topic: str, pos: int | None, bandwidth: float | None, tflops: float | None, measure: bool) -> None:
    """Refuse options that mean nothing for a topic, or contradict each other."""
    if pos is not None and topic != "slot":
        raise typer.BadParameter(f"--pos is for slot, not for {topic}")
    rates = {"--bandwidth-gb-s": bandwidth, "--tflops": tflops}
    given = [name for name, rate in rates.items() if rate is not None]
    if topic != "roofline" and (given or measure):
        raise typer.BadParameter(f"{given[0] if given else '--measure'} is for roofline, not for {topic}")
    if measure and given:
        raise typer.BadParameter(f"--measure and {given[0]} exclude each other: give one")
    check_rates(bandwidth, tflops)


def _measured(device: str, dtype: str) -> tuple[float, float]:
    """Bytes and operations a second that this machine's CPU does at best, in the precision of the run."""
    if device != "cpu":
        raise ValueError(
            f"the run was on {device}, and --measure measures this machine's CPU; give --bandwidth-gb-s and --tflops"
        )
    from minivllm.bench.floor import floor

    note("measuring bandwidth and rate of this machine ...")
    # Which model does not matter: of what is told, only the machine's two numbers are taken.
    told = floor("stories-5m", [dtype], 1, 1)[0]
    return told["read_gb_per_s"] * 1e9, told["multiply_gflops"] * 1e9
