"""Owns `minivllm simulate`: the real scheduler and KV manager, without a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from minivllm.entrypoints.cli.common import JsonOption, ScenarioOption, check_outputs, examples, note, print_json
from minivllm.entrypoints.cli.errors import user_errors

if TYPE_CHECKING:
    from minivllm.scenarios.driver import RunResult
    from minivllm.scenarios.workload import Workload

_MAX_NAMES = 8


def register(app: typer.Typer) -> None:
    """Add the command."""
    epilog = examples("minivllm simulate workload.json --plans plans.jsonl", "minivllm simulate -s mixed-batch")
    app.command(epilog=epilog)(user_errors(simulate))


def simulate(
    workload: Annotated[Path | None, typer.Argument(help="A workload file.", show_default=False)] = None,
    scenario: ScenarioOption = None,
    plans: Annotated[
        Path | None, typer.Option("--plans", help="Write one line a step in vLLM's comparison format.")
    ] = None,
    semantics: Annotated[
        Literal["fixed", "vllm-0.27.1"] | None,
        typer.Option(
            help="Which rules to follow where vLLM 0.27.1 has a known bug. Default: vllm-0.27.1 for a workload file, "
            "fixed for a scenario.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Where to write the log.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Plan a workload, or a scenario's recorded run again, in virtual time.

    Tokens come from a rule (workload) or from the record (scenario), so everything repeats exactly.
    """
    if (workload is None) == (scenario is None):
        raise typer.BadParameter("give a workload file or --scenario, and not both")
    check_outputs({"--out": out, "--plans": plans}, inputs=[workload])
    from minivllm.scenarios.replay import workload_from_log
    from minivllm.scenarios.simulate import simulate_to_log
    from minivllm.scenarios.workload import load_workload
    from minivllm.trace.plan_lines import summary_line, write_plan_lines

    if workload is not None:
        run = load_workload(workload, semantics or "vllm-0.27.1")
        token_rule = None
    else:
        from minivllm.entrypoints.cli.common import choose_log

        run, token_rule = workload_from_log(choose_log(None, scenario), semantics or "fixed")
    log, result = simulate_to_log(run, out, token_rule)
    if plans is not None:
        is_async = run.vllm_config.scheduler_config.async_scheduling
        write_plan_lines(plans, log.events, is_async=bool(is_async), summary=summary_line(result))
    summary = summary_line(result)
    if as_json:
        print_json("simulate", {"name": run.name, **summary, "refused": result.refused, "truncated": result.truncated})
        return
    ended = sum(entry["finish_reason"] is not None for entry in summary["summary"].values())
    preemptions = sum(entry["num_preemptions"] for entry in summary["summary"].values())
    print(
        f"{run.name or workload}: {result.steps} steps, {ended} of {len(result.requests)} requests finished, "
        f"{preemptions} preemptions, {summary['free_blocks']} blocks free at the end"
    )
    for request_id, message in result.refused.items():
        note(f"refused {request_id}: {message}")
    if result.truncated:
        _tell_unfinished(run, result)
    for path, what in ((plans, "plans"), (out, "log")):
        if path is not None:
            note(f"{what}: {path}")


def _tell_unfinished(run: Workload, result: RunResult) -> None:
    from minivllm.scenarios.simulate import never_finished

    reasons = never_finished(run, result)
    names = list(reasons)
    shown = ", ".join(names[:_MAX_NAMES]) + (f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else "")
    note(f"stopped after {result.steps} steps (max_steps): not every request finished: {shown or 'some arrive later'}")
    for request_id, reason in reasons.items():
        if reason is not None:
            note(f"{request_id} can never run: {reason} With --semantics fixed it is refused, and blocks nobody.")
            break
