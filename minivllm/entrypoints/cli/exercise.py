"""Owns `minivllm exercise`: the commands around a learner's file. What watches it is in `exercise_watch.py`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from minivllm.entrypoints.cli.common import (
    AsciiOption,
    JsonOption,
    LangOption,
    WidthOption,
    examples,
    language,
    note,
    print_json,
    stdout_console,
)
from minivllm.entrypoints.cli.errors import BAD_INPUT, USAGE, fail, user_errors

if TYPE_CHECKING:
    from minivllm.exercises.course import Exercise
    from minivllm.exercises.progress import ExerciseProgress
    from minivllm.exercises.report import Report
    from minivllm.exercises.workshop import Workshop

_JSON_WIDTH = 100


def complete_exercise(incomplete: str) -> list[str]:
    """Names of exercises, for the shell's completion."""
    from minivllm.exercises.course import exercises

    return [exercise.name for exercise in exercises() if exercise.name.startswith(incomplete)]


NameArgument = Annotated[
    str | None,
    typer.Argument(
        help="Name of an exercise; default: the one that was started last.",
        metavar="NAME",
        autocompletion=complete_exercise,
        show_default=False,
    ),
]
DirOption = Annotated[
    Path | None,
    typer.Option("--dir", help="Your folder; default: ./minivllm-exercises, or the last one.", show_default=False),
]

_EXAMPLES = {
    "list": ("minivllm exercise list", "minivllm exercise list --json"),
    "start": ("minivllm exercise start block-hash", "minivllm exercise start"),
    "watch": ("minivllm exercise watch", "minivllm exercise watch block-hash --ascii"),
    "check": ("minivllm exercise check", "minivllm exercise check block-hash --json"),
    "hint": ("minivllm exercise hint block-hash", "minivllm exercise hint block-hash --level 3"),
    "reset": ("minivllm exercise reset block-hash", "minivllm exercise reset block-hash --yes"),
    "solution": ("minivllm exercise solution block-hash", "minivllm exercise solution block-hash --give-up"),
    "progress": ("minivllm exercise progress", "minivllm exercise progress --json"),
    "lint": ("minivllm exercise lint block-hash", "minivllm exercise lint block-hash --json"),
}


def register(app: typer.Typer) -> None:
    """Add the group."""
    own = examples("minivllm exercise start", "minivllm exercise list")
    words = "Write a part of the engine, or find what is wrong with one: your file runs in the real engine."
    group = typer.Typer(help=words, epilog=own, no_args_is_help=True)
    commands: list[Callable[..., None]] = [list_, start, watch, check, hint, reset, solution, progress_, lint]
    for (name, shown), command in zip(_EXAMPLES.items(), commands, strict=True):
        group.command(name, epilog=examples(*shown))(user_errors(command))
    app.add_typer(group, name="exercise")


def list_(as_json: JsonOption = False, width: WidthOption = None, ascii_only: AsciiOption = False) -> None:
    """List the exercises, easy ones first, and which you have passed."""
    from minivllm.exercises.course import exercises
    from minivllm.exercises.progress import load_exercise_progress

    progress = load_exercise_progress()
    if as_json:
        entries = [_document(exercise, progress) for exercise in exercises()]
        print_json("exercise-list", {"exercises": entries})
        return
    _view(width, ascii_only).listing(exercises(), progress)
    note("next: minivllm exercise start")


def _document(exercise: Exercise, progress: ExerciseProgress) -> dict[str, Any]:
    return {
        "name": exercise.name,
        "kind": exercise.kind,
        "level": exercise.level,
        "status": progress.status(exercise.name),
        "title": exercise.title,
        "minutes": exercise.minutes,
        "file": exercise.file,
        "hints_read": progress.hints.get(exercise.name, 0),
    }


def start(
    name: NameArgument = None, folder: DirOption = None, width: WidthOption = None, ascii_only: AsciiOption = False
) -> None:
    """Put an exercise's file into your folder, and say what is to be done. Without a name: the next one.

    A file that is there already stays as it is.
    """
    from minivllm.exercises.course import find_exercise
    from minivllm.exercises.progress import load_exercise_progress

    progress = load_exercise_progress()
    exercise = find_exercise(name) if name is not None else next_exercise(progress)
    if exercise is None:
        print("You have passed every exercise. Look at one again: minivllm exercise solution NAME")
        return
    workshop = take_up(exercise, folder, progress)
    _view(width, ascii_only).task(exercise, workshop.file(exercise))
    note(f"next: minivllm exercise watch{workshop.option if folder else ''}")


def take_up(exercise: Exercise, folder: Path | None, progress: ExerciseProgress) -> Workshop:
    """Put the learner's file there if it is not, and remember that this exercise is the current one."""
    from minivllm.exercises.workshop import find_workshop

    workshop = find_workshop(folder, progress)
    if not workshop.start(exercise):
        note(f"{workshop.file(exercise)} is there already, and stays as it is")
    progress.start(exercise.name)
    progress.folder = str(workshop.folder.resolve())
    keep(progress)
    return workshop


def keep(progress: ExerciseProgress) -> None:
    """Write progress, if it can be written: an exercise can be done without it."""
    try:
        progress.save()
    except OSError as error:
        note(f"your progress is not kept ({error.strerror}: {error.filename}); set MINIVLLM_HOME to a folder of yours")


def next_exercise(progress: ExerciseProgress, after: str | None = None) -> Exercise | None:
    """The next one that has not been passed: the first behind another one, or the first of all."""
    from minivllm.exercises.course import exercises

    names = [exercise.name for exercise in exercises()]
    place = names.index(after) + 1 if after in names else 0
    ordered = exercises()[place:] + exercises()[:place]
    return next((each for each in ordered if each.name not in progress.passed and each.name != after), None)


def current_exercise(name: str | None, progress: ExerciseProgress) -> Exercise:
    """The exercise of that name, or the one that was started last."""
    from minivllm.exercises.course import ExerciseError, find_exercise

    if name is None and progress.current is None:
        raise ExerciseError("no exercise was started yet; run: minivllm exercise start")
    return find_exercise(name or progress.current or "")


def check(
    name: NameArgument = None,
    folder: DirOption = None,
    as_json: JsonOption = False,
    width: WidthOption = None,
    ascii_only: AsciiOption = False,
) -> None:
    """Check your file. Ends with 1 if a task does not hold, and shows the call, what it gave, and the map.

    After passing, the explanation is shown.
    """
    from minivllm.exercises.progress import load_exercise_progress
    from minivllm.exercises.workshop import find_workshop

    progress = load_exercise_progress()
    exercise = current_exercise(name, progress)
    workshop = find_workshop(folder, progress)
    workshop.written(exercise)
    if not as_json:
        note(f"Checking {exercise.file} ...")
    report = judged(exercise, workshop, progress)
    view = _view(width, ascii_only)
    if as_json:
        print_json("exercise-check", _with_maps(report))
    else:
        view.report(report)
        if report.passed:
            view.say(f"All {len(report.tasks)} tasks hold.", "bold green")
            view.say("")
            view.explanation(exercise)
            note(f"next: minivllm exercise start{workshop.option if folder else ''}")
        else:
            note(f"next: minivllm exercise hint {exercise.name}")
    if not report.passed:
        raise typer.Exit(BAD_INPUT)


def judged(exercise: Exercise, workshop: Workshop, progress: ExerciseProgress) -> Report:
    """Check the learner's file, and remember it if it passes."""
    from minivllm.exercises.checking import check as check_file

    report = check_file(exercise, workshop.written(exercise), workshop.runs)
    progress.start(exercise.name)
    if report.passed:
        progress.passes(exercise.name)
    keep(progress)
    return report


def _with_maps(report: Report) -> dict[str, Any]:
    import msgspec

    from minivllm.entrypoints.cli.exercise_view import map_text

    for task in report.tasks:
        if task.map is not None:
            task.map = msgspec.structs.replace(task.map, text=map_text(task.map, _JSON_WIDTH))
    document: dict[str, Any] = msgspec.to_builtins(report)
    return document


def hint(
    name: NameArgument = None,
    level: Annotated[
        int | None, typer.Option(min=1, max=3, help="Which hint; default: the next one.", show_default=False)
    ] = None,
    width: WidthOption = None,
    ascii_only: AsciiOption = False,
    lang: LangOption = None,
) -> None:
    """Show a hint: a nudge, then where to look, then almost the answer. Each call shows the next."""
    from minivllm.exercises.progress import load_exercise_progress

    progress = load_exercise_progress()
    exercise = current_exercise(name, progress)
    shown = level or min(progress.hints.get(exercise.name, 0) + 1, len(exercise.hints))
    show_hint(exercise, shown, _view(width, ascii_only), language(lang, ascii_only=ascii_only))
    progress.hints[exercise.name] = max(shown, progress.hints.get(exercise.name, 0))
    keep(progress)


def show_hint(exercise: Exercise, level: int, view: Any, lang: str) -> None:
    """Draw one hint."""
    hints = exercise.hints_in(lang)
    view.say(f"提示 {level}/{len(hints)}" if lang == "zh" else f"Hint {level} of {len(hints)}", "bold")
    view.markdown(hints[level - 1])


def reset(
    name: NameArgument = None,
    folder: DirOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Begin an exercise anew. What you had is kept beside it, as FILE.before-reset."""
    from minivllm.exercises.progress import load_exercise_progress
    from minivllm.exercises.workshop import find_workshop

    progress = load_exercise_progress()
    exercise = current_exercise(name, progress)
    workshop = find_workshop(folder, progress)
    file = workshop.file(exercise)
    if file.exists() and not yes and not _agrees(f"Put {file} back to its beginning?"):
        note("nothing was changed")
        return
    kept = workshop.reset(exercise)
    note(f"{file} is as it was at the beginning{f'; yours is in {kept}' if kept else ''}")


def _agrees(question: str) -> bool:
    if not sys.stdin.isatty():
        fail(f"{question} Nobody can answer here; to go ahead: --yes", USAGE)
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def solution(
    name: NameArgument = None,
    give_up: Annotated[bool, typer.Option("--give-up", help="Show it although you have not passed.")] = False,
    width: WidthOption = None,
    ascii_only: AsciiOption = False,
) -> None:
    """Show a solution and the explanation: after passing, or when you give up."""
    from minivllm.exercises.progress import load_exercise_progress

    progress = load_exercise_progress()
    exercise = current_exercise(name, progress)
    if give_up and exercise.name not in progress.given_up and exercise.name not in progress.passed:
        progress.given_up.append(exercise.name)
        keep(progress)
    if not progress.may_see_solution(exercise.name):
        _refuse(exercise)
    view = _view(width, ascii_only)
    view.solution(exercise)
    view.explanation(exercise)


def _refuse(exercise: Exercise) -> NoReturn:
    fail(
        f"you have not passed {exercise.name} yet; a hint: minivllm exercise hint {exercise.name}; "
        f"to see the solution all the same: minivllm exercise solution {exercise.name} --give-up",
        BAD_INPUT,
    )


def progress_(as_json: JsonOption = False, width: WidthOption = None, ascii_only: AsciiOption = False) -> None:
    """Show how far you are, and where your files are."""
    from minivllm.exercises.course import exercises
    from minivllm.exercises.progress import load_exercise_progress

    progress = load_exercise_progress()
    names = [exercise.name for exercise in exercises()]
    passed = [name for name in names if name in progress.passed]
    if as_json:
        started = [name for name in names if progress.status(name) == "started"]
        facts = {"passed": passed, "started": started, "total": len(names), "given_up": progress.given_up}
        print_json("exercise-progress", {**facts, "current": progress.current, "folder": progress.folder})
        return
    view = _view(width, ascii_only)
    view.bar(len(passed), len(names))
    view.say(f"Current: {progress.current or 'none'}")
    view.say(f"Your files: {progress.folder or 'none yet'}")
    note("next: minivllm exercise start")


def watch(
    name: NameArgument = None, folder: DirOption = None, width: WidthOption = None, ascii_only: AsciiOption = False
) -> None:
    """Check your file each time you save it; one key for the next exercise, a hint, the list, a reset.

    Needs a terminal.
    """
    from minivllm.entrypoints.cli.exercise_watch import Watch
    from minivllm.entrypoints.cli.terminal import is_terminal
    from minivllm.exercises.progress import load_exercise_progress

    progress = load_exercise_progress()
    if not is_terminal():
        fail("watch needs a terminal for its keys; to check once: minivllm exercise check", USAGE)
    wanted = name or progress.current
    exercise = current_exercise(wanted, progress) if wanted else next_exercise(progress)
    if exercise is None:
        print("You have passed every exercise.")
        return
    lang = language(None, ascii_only=ascii_only)
    Watch(exercise, folder, progress, _view(width, ascii_only), lang).run()


def lint(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Exercises; default: all.", metavar="NAME...", autocompletion=complete_exercise),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Try only the first slip of each solution.")] = False,
    as_json: JsonOption = False,
) -> None:
    """For authors: an exercise fails unsolved, passes solved, has hints and links, and matters to the engine."""
    import msgspec

    from minivllm.exercises.course import exercises, find_exercise
    from minivllm.exercises.lint_run import lint_aside

    chosen = [find_exercise(name) for name in names] if names else list(exercises())
    note(f"Checking {len(chosen)} ..." if len(chosen) > 1 else f"Checking {chosen[0].name} ...")
    verdicts = lint_aside(chosen, lambda name: note(f"checked {name}"), quick=quick)
    if as_json:
        print_json("exercise-lint", {"exercises": msgspec.to_builtins(verdicts)})
    else:
        for verdict in verdicts:
            print(f"{'ok ' if not verdict.faults else 'BAD'} {verdict.exercise} ({verdict.seconds:.1f} s)")
            for fault in verdict.faults:
                print(f"    {fault}")
    if any(verdict.faults for verdict in verdicts):
        raise typer.Exit(BAD_INPUT)


def _view(width: int | None, ascii_only: bool) -> Any:
    from minivllm.entrypoints.cli.exercise_view import ExerciseView

    return ExerciseView(stdout_console(width), ascii_only=ascii_only)
