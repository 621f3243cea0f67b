"""How numbers, sentences and tables are written: for the screen, in Markdown and in LaTeX."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from shutil import get_terminal_size
from textwrap import wrap
from typing import Any, ClassVar

import pandas as pd
from tabulate import LATEX_ESCAPE_RULES

from ropewalk.harness.stats.cells import records
from ropewalk.harness.stats.measure import SHARES

SMALL = 0.1  # scores below it, as divergences in nats, differ by less than a hundredth
LARGE = 1_000_000  # bounds above it are written with a power of ten
MOST_NAMED = 6  # methods in one list; the table has them all


def text(cell: Mapping[Any, Any], digits: int | None = None) -> str:
    """Return "12.3 [11.0, 13.9]", "85 % [76, 91]", or the status where there is no score.

    Unset, ``digits`` after the point are as many as the size of the score calls for.
    """
    score, status = cell["score"], cell["status"]
    if pd.isna(score):
        return str(status).replace("_", " ")
    scale, unit = (100, " %") if cell["metric"] in SHARES else (1, "")
    if digits is None:
        size = abs(score)
        digits = 0 if unit or size >= 100 else 1 if size >= 10 else 2 if size >= SMALL else 4

    def written(end: float) -> str:
        return percent(end) if unit and not digits else f"{scale * end:.{digits}f}"

    value = f"{written(score)}{unit}"
    if pd.notna(cell["low"]) and pd.notna(cell["high"]):
        value += f" [{written(cell['low'])}, {written(cell['high'])}]"
    return value if status == "ok" else f"{value} ({status.split(' ok')[0]})"


def percent(share: float) -> str:
    """Return a share in whole percent; halves are rounded up."""
    return f"{math.floor(round(100 * share, 6) + 0.5)}"


def bound(regret: float | None, *, relative: bool, metric: str) -> str:
    """Return a regret rounded up: "2.2 %", "13 pp" (percentage points), or "" without a bound."""
    if regret is None:
        return ""
    shown = unit(relative=relative, metric=metric)
    return f"{rounded_up(100 * regret if shown else regret)}{shown}"


def unit(*, relative: bool, metric: str) -> str:
    """Return the unit of a difference: percent, percentage points, or that of the score itself."""
    return " %" if relative else " pp" if metric in SHARES else ""


def rounded_up(value: float) -> str:
    """Return a bound of 0 or more in two digits, or as a whole number; it is not below the value.

    An error of the last binary digit is no reason to round up: 5.000000000000001 is "5".
    """
    whole = math.floor(math.log10(value)) + 1 if 1 <= value < LARGE else 2
    rounding = Context(prec=max(2, whole), rounding=ROUND_CEILING)
    rounded = rounding.create_decimal(f"{value:.9g}").normalize()
    return f"{rounded:,f}" if value < LARGE else f"{rounded:.1e}"


def signed(
    value: float | None, low: float | None = None, high: float | None = None, unit: str = " %"
) -> str:
    """Return a difference as tables have it: "+1.2 % [−0.3, +2.6]"; "" where it is not known.

    With a ``unit``, % or percentage points, the numbers are shares.
    """
    texts = []
    for end in (value, low, high):
        if end is not None and not pd.isna(end):
            share = f"{100 * end:+.1f}" if abs(end) < 0.1 else f"{100 * end:+,.0f}"
            written = share if unit else f"{end:+.3g}"
            texts.append("0" if end == 0 else written.replace("-", "−"))
    around = f" [{texts[1]}, {texts[2]}]" if len(texts) == 3 else ""
    return f"{texts[0]}{unit}{around}" if texts else ""


def change(row: Mapping[Any, Any], name: str = "change") -> str:
    """Return the difference of this name in a row, with its interval."""
    shown = unit(relative=row["relative"], metric=row["metric"])
    return signed(row[name], row[f"{name}_low"], row[f"{name}_high"], shown)


def listed(names: Sequence[str]) -> str:
    """Return "`a`, `b` and `c`"; of many the first and how many more."""
    marked = [f"`{name}`" for name in names]
    if len(marked) > MOST_NAMED:
        marked[MOST_NAMED - 1 :] = [f"{len(marked) - MOST_NAMED + 1} more"]
    return marked[0] if len(marked) == 1 else f"{', '.join(marked[:-1])} and {marked[-1]}"


def counted(count: int, nouns: str) -> str:
    """Return "1 document" or "3 documents"."""
    return f"{count:,} {nouns.removesuffix('s') if count == 1 else nouns}"


MARKUP = re.compile(r"([\\*<|~$]|](?=[(\[:]))")


def escaped(text: Any) -> Any:
    """Return a text whose signs Markdown takes as they are; `names` in backticks stay code.

    A ``_`` inside a word, a ``#`` inside a line and brackets without a link are no markup. A number
    is returned unchanged.
    """
    if not isinstance(text, str):
        return text
    parts = " ".join(text.split()).split("`")
    parts[::2] = [MARKUP.sub(r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


@dataclass(frozen=True)
class RenderedTable:
    """A table: what it is about, its rows, its tables for people by title, and what they mean."""

    about: str
    table: pd.DataFrame
    display: Mapping[str, pd.DataFrame]
    notes: Sequence[str] = ()

    JSON: ClassVar[tuple[str, ...]] = ("about", "table", "notes")

    def __str__(self) -> str:
        shown = [f"{title}\n\n{as_text(part)}\n" for title, part in self.display.items()]
        return "\n".join([*shown, *self.notes])

    def contents(self, formats: Collection[str] = ()) -> dict[str, bytes]:
        """Return the contents of its files by suffix: whole for programs, readable for people."""
        whole = self.table.reset_index() if self.table.index.name is not None else self.table
        files = {
            "csv": whole.to_csv(index=False).encode(),
            "md": page(self.display, self.notes).encode(),
        }
        if "tex" in formats:
            named = enumerate(self.display.items(), 1)
            texts = [latex(part, f"{title}.", f"table-{i}") for i, (title, part) in named]
            files["tex"] = "\n".join(texts).encode()
        if "parquet" in formats:
            files["parquet"] = whole.to_parquet(index=False)
        return files


ESCAPES = str.maketrans(dict[str, Any](LATEX_ESCAPE_RULES))
LATEX_SIGNS = str.maketrans({"−": "$-$", "×": r"$\times$", "|": "$|$", "†": r"$\dagger$"})


def across(
    table: pd.DataFrame, written: Callable[[dict[str, Any]], str] = text
) -> dict[str, pd.DataFrame]:
    """Put the texts of the rows of every length side by side, one table per model and task."""
    tables, table = {}, table.assign(text=list(map(written, records(table))))
    for (model, task), rows in table.groupby(["model", "task"], sort=False):
        relative = rows.set_index("length")["relative_length"]
        texts = rows.pivot(index="scaling", columns="length", values="text").fillna("")
        texts = texts.reindex(rows["scaling"].unique())
        texts.columns = [f"{n} ({relative.loc[[n]].iloc[0]:.3g}×)" for n in texts.columns]
        # A task that is named for its metric needs no other name of it.
        metric = rows["metric"].iloc[0]
        named = task if str(task).partition(":")[0] == metric else f"{task}, {metric}"
        tables[f"{named} [95 % interval], {model}"] = texts.rename_axis("scaling").reset_index()
    return tables


def as_text(table: pd.DataFrame) -> str:
    """Return a table as wide as the terminal, in parts where it is too wide."""
    first, *others = table.columns
    shown = without_missing(table)
    if not others:
        return shown.to_string(index=False)
    shown = shown.set_index(first).rename_axis(index=None, columns=first)
    widths = [len(str(name)) + 1 for name in others]  # two spaces between the names, too
    text = shown.to_string(line_width=get_terminal_size((100, 24)).columns, col_space=widths)
    return re.sub(r" +\\?$", "", text, flags=re.MULTILINE)  # pandas marks parts with a backslash


def folded(text: str, width: int = 80) -> str:
    """Return a text in lines of this width, none of which breaks a number with its interval."""
    kept = re.sub(r"(?<=\d)(,?) (?=[\[+−\d%]|pp)", "\\1\u00a0", text)
    lines = wrap(kept, width, subsequent_indent="  ", break_long_words=False)
    return "\n".join(lines).replace("\u00a0", " ")


def markdown(table: pd.DataFrame) -> str:
    """Return a pipe table; what is missing is empty."""
    plain = without_missing(table).map(escaped).rename(columns=escaped)
    return plain.to_markdown(index=False, disable_numparse=True)


def page(tables: Mapping[str, pd.DataFrame], sentences: Sequence[str] = ()) -> str:
    """Return a Markdown page: the sentences, then each table under its title."""
    texts = [f"{escaped(sentence)}\n" for sentence in sentences]
    for title, table in tables.items():
        texts.append(f"### {escaped(title)}\n\n{markdown(table)}\n")
    return "\n".join(texts)


def without_missing(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with empty texts for what is missing."""
    return table.astype(object).where(table.notna(), "")


def latex(table: pd.DataFrame, caption: str, label: str, bold: pd.DataFrame | None = None) -> str:
    """Return a table of LaTeX, which needs the package booktabs.

    ``bold`` is a table of the same shape with a text in the place of every cell that is bold.
    """
    shown = without_missing(table).astype(str)
    style = shown.style.hide(axis="index").format(escape="latex")
    style = style.format_index(escape="latex", axis=1)
    if bold is not None:
        marks = (bold == "bold").reindex(columns=shown.columns, fill_value=False)
        marks = marks.replace({True: "textbf:--rwrap;", False: ""})
        style = style.apply(lambda _: marks, axis=None)
    text = style.to_latex(
        hrules=True,
        caption=caption.translate(ESCAPES),
        label=f"tab:{label}",
        column_format="l" + "r" * (len(table.columns) - 1),
        position_float="centering",
    )
    return str(text).translate(LATEX_SIGNS)
