"""The command line. Heavy modules load inside the commands, so that help and list are instant."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter
from rich.console import Console
from rich.markup import escape

from harness.errors import UserError

if TYPE_CHECKING:
    from harness.plan import Plan

COMPLETE, WITH_FAILURES, REFUSED, INTERRUPTED = 0, 1, 2, 130
MARKS = {"passed": "✓", "failed": "✗", "note": "·"}

app = App(
    name="ropewalk",
    help="Measure how far a rotary language model reads past its trained window, and which "
    "scaling method carries it furthest.",
    suppress_keyboard_interrupt=False,  # main says what an interrupt keeps
)
new = App(name="new", help="Write a file to begin a plug-in of your own with.")
app.command(new)
PIPED = 120  # columns where no terminal tells
screen = Console(width=None if sys.stdout.isatty() else PIPED)
err = Console(width=None if sys.stderr.isatty() else PIPED, stderr=True)

Many = Annotated[tuple[str, ...] | None, Parameter(consume_multiple=True, negative="")]
Switch = Annotated[bool | None, Parameter(negative="")]


@app.command
def run(
    sweep: Path | None = None,
    /,
    *,
    model: str | None = None,
    revision: str | None = None,
    scaling: Many = None,
    task: Many = None,
    length: Many = None,
    docs: str | None = None,
    out: Path | None = None,
    seed: int | None = None,
    dtype: str | None = None,
    device: str | None = None,
    trust_remote_code: Switch = None,
    allow_pickle: Switch = None,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Run a sweep: every scaling x task x length. The same command again goes on where it stopped.

    Args:
        sweep: A YAML file with the same settings; flags win over it.
        model: A folder or a hub name; default: the embedded reference model.
        revision: Branch, tag or commit on the hub.
        scaling: Methods: NAME, NAME:option=value,… or a path to your own .py file.
        task: Tasks: NAME, NAME:option=value,… or a path to your own .py file.
        length: Tokens: 512, 4k (4096) or 2x (twice the trained window).
        docs: A text file, a folder, or DATASET:split=…,field=…; default: embedded documents.
        out: The run folder; default: results/run-MODEL.
        seed: Seed of every random draw.
        dtype: auto, float32, bfloat16 or float16.
        device: auto, cpu, cuda, cuda:1, …
        trust_remote_code: Let code from the model's repository run.
        allow_pickle: Accept weights that are not safetensors.
        dry_run: Print the plan and its cost; read no weights and write nothing.
    """
    flags = {name: value for name, value in locals().items() if name not in ("sweep", "dry_run")}
    from harness.spec import parse

    spec = parse(sweep, {name: value for name, value in flags.items() if value is not None})
    from harness import show
    from harness.plan import make_plan

    with err.status("Reading config, tokenizer and documents"):
        plan = make_plan(spec)
    folder = spec.out or Path("results") / f"run-{plan.checkpoint.label}"
    if dry_run:
        show.plan(plan, folder, screen)
        return COMPLETE
    return _measure(plan, folder)


def _measure(plan: Plan, folder: Path) -> int:
    from harness import show
    from harness.sweep import measure

    show.left_out(plan, err)
    with show.progress(plan, folder, err) as watch:
        failed = measure(plan, folder, watch)
    _reports([folder], folder / "reports", None)
    return WITH_FAILURES if failed else COMPLETE


@app.command
def report(
    runs: Annotated[tuple[Path, ...], Parameter(help="Run folders; several are joined.")],
    /,
    *,
    report: Annotated[
        tuple[str, ...] | None, Parameter(consume_multiple=True, negative="", help="Which reports.")
    ] = None,
    out: Annotated[
        Path | None, Parameter(help="Where the files go; default: RUN/reports, for one run.")
    ] = None,
) -> int:
    """Make the tables and figures of one or more runs from their files."""
    if len(runs) > 1 and out is None:
        message = "several runs are joined: say with --out where their tables and figures go."
        raise UserError(message)
    _reports(list(runs), out or runs[0] / "reports", report)
    return COMPLETE


def _reports(runs: list[Path], folder: Path, chosen: tuple[str, ...] | None) -> None:
    with err.status("Making tables and figures"):
        from harness.frame import make_frame
        from harness.report import show, write_reports

        frame = make_frame(runs)
        files, skipped = write_reports(frame, folder, chosen)
    show(frame, screen)
    for name, reason in skipped.items():
        screen.print(f"No {name}: {reason}", highlight=False, markup=False)
    screen.print("Tables and figures:", highlight=False)
    for file in files:
        screen.print(f"  {file}", highlight=False, soft_wrap=True)


@app.command(name="inspect")
def inspect_(
    model: str | None = None,
    /,
    *,
    scaling: Many = None,
    length: Many = None,
    revision: str | None = None,
    trust_remote_code: Switch = None,
    out: Path | None = None,
) -> int:
    """Show what each scaling does to a model's channels; reads its config alone, no weights.

    Args:
        model: A folder or a hub name; default: the embedded reference model.
        scaling: Methods: NAME, NAME:option=value,… or a path to your own .py file.
        length: Tokens: 512, 4k (4096) or 2x (twice the trained window).
        revision: Branch, tag or commit on the hub.
        trust_remote_code: Let code from the model's repository run.
        out: Write channels and decay there, as CSV, PNG and SVG; default: print the table only.
    """
    flags = {name: value for name, value in locals().items() if name != "out"}
    from harness.spec import parse

    spec = parse(None, {name: value for name, value in flags.items() if value is not None})
    with err.status("Reading config"):
        from harness.inspection import inspect, show, write

        inspection = inspect(spec)
    show(inspection, screen)
    for file in write(inspection, out) if out else ():
        screen.print(f"  {file}", highlight=False, soft_wrap=True)
    return COMPLETE


@new.command(name="method")
def new_method(name: str, /, *, out: Path = Path()) -> int:
    """Write NAME.py, a scaling method of ten lines that runs as it is.

    Args:
        name: The method's name; the file is NAME.py.
        out: The folder it goes to; default: this one.
    """
    from harness.beginning import begin_method

    file = begin_method(name, out)
    given = file if file.is_absolute() else f"./{file}"
    told = f"Wrote {file}.\n  ropewalk check {given}\n  ropewalk run --scaling none {given}"
    screen.print(told, highlight=False, markup=False, soft_wrap=True)
    return COMPLETE


@app.command
def check(method: str, /) -> int:
    """Hold a method to its contract at many geometries, and say what it does.

    Args:
        method: A path to your own .py file or a NAME, with options as in --scaling.
    """
    with err.status("Checking"):
        from harness.check import check
        from harness.plugins import load

        plugin = load("method", method)
        ask = plugin.module.frequencies
        findings = check(lambda rope, length: ask(rope, length, **plugin.options))
    width = max(len(finding.about) for finding in findings)
    for finding in findings:
        line = f"{MARKS[finding.verdict]} {finding.about:<{width}}  {finding.text}"
        screen.print(line, highlight=False, markup=False, soft_wrap=True)
    failed = sum(finding.verdict == "failed" for finding in findings)
    screen.print(f"{plugin.label}: {failed} failed" if failed else f"{plugin.label}: passed")
    return WITH_FAILURES if failed else COMPLETE


@app.command(name="list")
def list_() -> int:
    """List the methods, tasks and reports, each with what it does and its source."""
    from harness.plugins import FOLDERS, catalogue

    for kind in FOLDERS:
        lines = catalogue(kind)
        width = max(map(len, lines), default=0)
        screen.print(f"[bold]{kind}s[/bold]")
        for name, line in lines.items():
            screen.print(
                f"  {name:<{width}}  {line}", highlight=False, markup=False, soft_wrap=True
            )
    return COMPLETE


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line; a user's error is one sentence on stderr and exit status 2."""
    try:
        status = app(arguments, result_action="return_value", exit_on_error=True)
    except UserError as error:
        err.print(
            f"[bold red]ropewalk:[/bold red] {escape(str(error))}", highlight=False, soft_wrap=True
        )
        status = REFUSED
    except KeyboardInterrupt:
        err.print("Interrupted; everything measured is kept. The same command goes on.")
        status = INTERRUPTED
    sys.exit(status)


if __name__ == "__main__":
    main()
