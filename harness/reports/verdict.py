"""One sentence per model, task and length: the method to use, its score, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from ropewalk.harness.reports._text import as_text, bound, change, counted, folded, signed, text
from ropewalk.harness.reports.cells import make as cells_of
from ropewalk.harness.reports.cells import scores
from ropewalk.harness.stats.cells import records
from ropewalk.harness.stats.decision import MARGIN
from ropewalk.harness.stats.measure import SHARES
from ropewalk.tasks._intervals import MIN_DOCUMENTS

Row = Mapping[str, Any]
MOST_SENTENCES = 3  # below the scores of a run
MOST_NAMED = 3  # methods that failed, in one sentence
NOTES = (
    "Brackets: 95 % intervals over documents or trials. Every comparison is paired.",
    "Use: the best method that a server's config can express. Of several that are as good as the "
    "best, it is the one that costs least inside the window.",
    "The best: better than every other method by its paired 95 % interval, or the only one that "
    "the bounds leave.",
    "At most … worse than the best: these bounds hold for all methods of a length together (95 %). "
    "They are percent of a perplexity, and percentage points (pp) of a share.",
)
CUT = (
    "Truncation: the unscaled model reads only its trained window, at the end of the text. "
    "Retrieval tasks (niah, ruler, passkey) show whether a method uses the longer text."
)


def make(frame: pd.DataFrame, *, margin: float = MARGIN) -> pd.DataFrame:
    """Return one row per model, task and length: the method to ``use`` and the ``sentence``."""
    table = verdicts(cells_of(frame, margin=margin))
    if table.empty:
        raise ValueError("no scores to choose by")
    return table


def verdicts(cells: pd.DataFrame) -> pd.DataFrame:
    """Return one row per model, task and length of a table of cells.

    ``winner`` is whether ``use`` is significantly better than all others, and ``regret`` how much
    worse than the best it is at most. ``truncation`` is the score of truncation, and ``truncate``
    whether that is significantly better on the text. ``retrieval`` are the tasks that gain there.
    """
    return pd.DataFrame([_row(group, gains) for group, gains in _groups(cells)])


def display(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return one table per model of a table of verdicts: the sentence of every length and task."""
    times = table["relative_length"].map("{:.3g}×".format)
    shown = pd.DataFrame({
        "model": table["model"], "length": table["length"].map("{:,} (".format) + times + ")",
        "task": table["task"], "answer": table["sentence"],
    })  # fmt: skip
    return {str(model): rows.drop(columns="model") for model, rows in shown.groupby("model")}


def notes(table: pd.DataFrame) -> list[str]:
    """Return what the words and numbers of the sentences mean."""
    return [*NOTES, *([CUT] if table["truncation"].notna().any() else [])]


def sentences(cells: pd.DataFrame) -> list[str]:
    """Return the sentence of every model, length and task, and of all tasks of a length."""
    return [line for _, line in _lines(cells)]


def summary(cells: pd.DataFrame) -> list[str]:
    """Return at most three sentences, on the farthest lengths."""
    pairs = list(_lines(cells))
    if cells["model"].nunique() > 1:  # the first sentence of each at a length
        firsts: dict[tuple[str, int], tuple[Row, str]] = {}
        for row, line in pairs:
            firsts.setdefault((row["model"], row["length"]), (row, line))
        pairs = list(firsts.values())
    pairs.sort(key=lambda pair: -pair[0]["length"])
    return [line for _, line in pairs[:MOST_SENTENCES]]


def screen(cells: pd.DataFrame) -> str:
    """Return the scores of a run and the summary as a text."""
    shown = [f"{title}\n\n{as_text(table)}" for title, table in scores(cells).items()]
    return "\n\n".join([*shown, "\n".join(map(folded, summary(cells)))])


def _groups(cells: pd.DataFrame) -> Iterator[tuple[list[dict[str, Any]], list[str]]]:
    """Yield the compared methods of each model, length and task, the best first.

    ``copies`` are the other methods that are the same measurement as one of them. Beside them are
    the retrieval tasks of the length in which the method to use finds significantly more than the
    share of the text that one window holds.
    """
    scored = cells[cells["score"].notna()]
    for _, here in scored.groupby(["model", "length"], sort=False):
        used = records(here[here["use"].fillna(False)])
        share = here["trained_length"].iloc[0] / here["length"].iloc[0]
        gains = [
            row["task"]
            for row in used
            if row["metric"] in SHARES and (row["compared_low"] or 0) > share
        ]
        for _, rows in here.groupby("task", sort=False):
            lower, once = bool(rows["lower"].iloc[0]), rows[rows["same_as"].isna()]
            order = once.sort_values("compared_score", ascending=lower, kind="stable")
            yield records(order.assign(copies=len(rows) - len(once))), gains


def _row(rows: Sequence[Row], gains: Sequence[str]) -> dict[str, Any]:
    use = next(row for row in rows if row["use"])
    facts = ("model", "task", "metric", "length", "relative_length")
    return {
        **{name: use[name] for name in facts}, "use": use["scaling"],
        **{name: use[name] for name in ("winner", "regret", "truncation")},
        "truncate": _truncate(use), "retrieval": ", ".join(gains),
        "sentence": sentence(rows, gains),
    }  # fmt: skip


def _lines(cells: pd.DataFrame) -> Iterator[tuple[Row, str]]:
    """Yield every sentence after what it is about, with a row of its model and length."""
    table, chosen = verdicts(cells), cells[cells["overall_regret"].notna()]
    models, tasks = cells["model"].nunique(), cells["task"].nunique()
    groups = table.groupby(["model", "length"], sort=False) if len(table) else ()
    for (model, length), here in groups:
        rows = records(here)
        where = f"{rows[0]['relative_length']:.3g}x" + f", {model}" * (models > 1)
        overall = records(chosen[(chosen["model"] == model) & (chosen["length"] == length)])
        # Where one task's answer is to truncate, or there is one method, no method is for all.
        cut = any(row["truncate"] and not row["retrieval"] for row in rows)
        several = any(row["above"] is not None for row in overall)
        if several and len(rows) > 1 and not cut:
            use = for_all(overall[0]["scaling"], overall[0]["overall_regret"])
            yield rows[0], f"{where}: {use}."
        for row in rows:
            task = f", {row['task']}" * (tasks > 1)
            yield row, f"{where}{task}: {row['sentence']}."


def for_all(name: str, regret: float | None) -> str:
    """Return what to use for several tasks, and its largest regret on one of them."""
    if regret == 0:
        return f"use {name} for all tasks, the best on each"
    size = bound(regret, relative=True, metric="")
    sure = f"at most {size} worse than the best on each (95 %)" if size else "no bound is known"
    return f"use {name} for all tasks, {sure}"


def sentence(rows: Sequence[Row], gains: Sequence[str] = ()) -> str:
    """Return the decision among the methods of one task at one length, the best first.

    "use yarn 8.37 [7.2, 9.8], the best; next ntk 28.3, +238 % [+201, +280]; truncation 7.31
    (better)". ``gains`` are the retrieval tasks that gain by the longer text.
    """
    use = next(row for row in rows if row["use"])
    best, left_out = rows[0], [row for row in rows if row["compared"] is None]
    if best["metric"] in SHARES and not best["compared_score"]:
        return f"every method scores 0 on {counted(use['compared'], use['unit'])}"
    count = len(rows) - len(left_out)
    if count > 1:
        sure = _sure(use, count)
    elif copies := use.get("copies"):
        sure = f"the same measurement for {copies + 1} methods"
    else:
        sure = "the only method compared"
    parts = [f"{'use ' * (count > 1)}{use['scaling']} {_score(use)}, {sure}"]
    if use["best"] and count > 1:
        after = f"next {rows[1]['scaling']} {_number(rows[1], 'compared_score')}"
        parts.append(", ".join(filter(None, [after, change(rows[1], "above")])))
    elif use["compared_score"] != best["compared_score"]:
        code = " (needs its own code)" * best["needs_code"]
        sure = "the best is" if best["winner"] else "lowest" if best["lower"] else "highest"
        parts.append(f"{sure} {best['scaling']}{code} {_score(best)}")
    low, high = use["cost_low"], use["cost_high"]
    if low is not None and high is not None and (low > 0 if use["lower"] else high < 0):
        parts.append(f"{change(use, 'cost')} inside the window")
    failed = [f"{row['scaling']} {row['failed']}" for row in rows if row["failed"]]
    few = [f"{row['scaling']} {row['n']}" for row in left_out]
    for names, why in ((failed, "failed on"), (few, "left out, with too few")):
        if names:
            named = ", ".join(names[:MOST_NAMED]) + ", …" * (len(names) > MOST_NAMED)
            parts.append(f"{why} {use['unit']} of {use['asked']}: {named}")
    cut = "" if use["truncation"] is None else _number(use, "truncation")
    if cut and _truncate(use) and not gains:
        less = signed(use["change"], use["change_low"], use["change_high"])
        window = f"{use['trained_length']:,} tokens"
        return f"truncate to {window}, {cut} ({use['scaling']} {less}); else " + "; ".join(parts)
    if cut:
        high = use["change_high"]
        lower = "lower, " * (use["change"] is not None and use["change"] > 0)
        unsure = f"{lower}no significant difference"
        worse = "worse" if high is not None and high < 0 else unsure
        parts.append(f"truncation {cut} ({'better' if _truncate(use) else worse})")
        if _truncate(use):
            parts[-1] += f", but {', '.join(gains)} gain{'s' * (len(gains) == 1)}"
    return "; ".join(parts)


def _sure(use: Row, count: int) -> str:
    if use["winner"]:
        return "the best"
    if use["regret"] == 0:
        return "no worse than the best (95 %)"
    if use["regret"] is not None:
        size = bound(use["regret"], relative=use["relative"], metric=use["metric"])
        return f"at most {size} worse than the best (95 %)"
    side = "lowest" if use["lower"] else "highest"
    few = use["compared"] < MIN_DOCUMENTS
    takes = f"a bound takes {MIN_DOCUMENTS} {use['unit']}" if few else "no bound is known"
    return f"the {side} of {count}; {takes}" if use["best"] else takes


def _score(row: Row) -> str:
    """Return "8.37 [7.2, 9.8]", and "(17 of 20)" where some units are missing."""
    n, asked = row["compared"], row["asked"]
    status = "ok" if n == asked else f"{n} of {asked} ok"
    ends = {end: row[f"compared_{end}"] for end in ("score", "low", "high")}
    return text({"metric": row["metric"], "status": status, **ends})


def _number(row: Row, name: str) -> str:
    """Return the score of this name without an interval."""
    return text({**row, "score": row[name], "low": None, "status": "ok"})


def _truncate(row: Row) -> bool:
    """Return whether truncation is significantly better than a method on the text."""
    beyond = row["truncation"] is not None
    return beyond and row["change_low"] is not None and bool(row["change_low"] > 0)
