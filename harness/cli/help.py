"""Print the help of a command: labels on the left, text on the right, without boxes.

The boxes and tables of rich take half of the time of printing a help.
"""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cyclopts.help import HelpEntry, HelpPanel
    from rich.console import Console, ConsoleOptions

LABEL = 26  # columns of the labels
WIDEST = 100  # columns of all


class Columns:
    """The formatter of cyclopts for every panel of a help."""

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:  # noqa: ARG002
        """Print one group of flags."""
        if panel.entries:
            lines = [_entry(entry, console) for entry in panel.entries]
            _print(console, "\n".join([f"{panel.title}:", *lines]))

    def render_usage(self, console: Console, options: ConsoleOptions, usage: Any) -> None:  # noqa: ARG002
        """Print the first line."""
        _print(console, str(usage).rstrip())

    def render_description(self, console: Console, options: ConsoleOptions, text: Any) -> None:  # noqa: ARG002
        """Print what the command does."""
        paragraphs = _plain(text).split("\n\n")
        for paragraph in filter(None, paragraphs):
            _print(console, fill(paragraph, _width(console), break_on_hyphens=False))


def _entry(entry: HelpEntry, console: Console) -> str:
    names = ", ".join(entry.display_labels_with_metavar)
    notes = [
        f"One of {', '.join(entry.choices)}." if entry.choices else "",
        "Required." if entry.required else "",
        f"[default: {entry.default}]" if entry.default is not None else "",
    ]
    text = " ".join(filter(None, [_plain(entry.description), *notes]))
    label = f"  {names:<{LABEL - 4}}  "
    first = "" if len(label) <= LABEL else f"{label.rstrip()}\n"
    begin = " " * LABEL if first else label
    width = _width(console)
    after = " " * LABEL
    return first + fill(
        text, width, initial_indent=begin, subsequent_indent=after, break_on_hyphens=False
    )


def _plain(text: Any) -> str:
    """Return a text that cyclopts has parsed as it was written."""
    text = getattr(text, "primary_renderable", text)
    return "" if text is None else str(text).strip()


def _width(console: Console) -> int:
    return min(WIDEST, console.width)


def _print(console: Console, text: str) -> None:
    console.print(f"{text}\n", markup=False, highlight=False, soft_wrap=True)
