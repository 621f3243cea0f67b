"""Differences of every method from a baseline on the same documents, trials or seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from ropewalk.harness.reports.writing import sentences
from ropewalk.harness.reports.writing.tables import across
from ropewalk.harness.stats.cells import cells, in_option, records
from ropewalk.harness.stats.checkpoints import labels, lengths
from ropewalk.harness.stats.decision import Family, families, family
from ropewalk.harness.stats.measure import SHARES, differences, measure, values_of, weights_of
from ropewalk.harness.stats.paired import ALPHA, NO_DIFFERENCE, Difference, adjusted, holm_once
from ropewalk.harness.stats.seeds import ENDING, over_seeds, paired_seeds

PLAIN = ("none", "native")  # the model as it was trained: without scaling, else with what it ships
COPIED = ("model", "task", "metric", "trained_length", "length", "relative_length", "scaling")
Compared = dict[str, tuple[Difference, float | None]]  # by method, with the corrected probability
PAIRED = (
    "Paired by {units}. Brackets: 95 % intervals of each comparison alone. “pp” means percentage "
    "points, and “=” the same measurement. “?” marks no significant difference (5 %, corrected for "
    "all comparisons with the same baseline at one length of a task)."
)
SEEDS = (
    "The mean over seeds of the difference on the same documents or trials, with its own 95 % "
    "interval over seeds (Student's t; the documents are held fixed). “pp” means percentage "
    "points. “?” marks no significant difference (5 %, corrected for all comparisons at a length "
    "by Holm's method)."
)
FAILED = (
    "†: the better one failed on documents, trials or seeds that are left out; what is left "
    "favours it, so it is not called better."
)
NOT_COMPARED = (
    "Not compared: the two must have at least two common seeds with the same questions, a document "
    "or trial that all of them have, and scores that are made of these."
)
EQUAL = "Without an interval: equal with every seed."


def make(
    frame: pd.DataFrame,
    *,
    baseline: str | None = None,
    seeds: bool | None = None,
    ending: str = ENDING,
) -> pd.DataFrame:
    """Return one row per cell with its difference from the ``baseline`` at the same length.

    The baseline is ``none`` by default, else ``native``, or the first model where models are
    compared as methods. Commas in its name are written as plus signs. Models with the same
    questions also have one row per cell with its difference from the same method of the first of
    them, whose name is then the baseline.

    With ``seeds``, the default if every model is one of several seeds, there is one row per model
    name without its ``ending``, scaling, task and length. The baseline is then a model, by default
    the first, or ``MODEL · SCALING``. Differences of perplexity are relative (of its logarithm, by
    seed), others in the score's unit; ``single`` has those of the seeds, and ``better_with`` is
    how many of them favour the model.
    """
    if over_seeds(frame, seeds, ending):
        return paired_seeds(frame, baseline, ending)
    known, models = list(frame["scaling"].unique()), checkpoints(frame)
    baseline = baseline and in_option(baseline, known)
    table = pd.concat([against(frame, baseline), models], ignore_index=True)
    if table.empty:
        name = baseline or _baseline(known, None, models="of_model" in frame)
        if name not in known or len(known) < 2:
            reason = f"the sweep has {', '.join(known)}; choose differences:baseline=NAME"
        elif name in set(frame.dropna(subset="score")["scaling"]):
            reason = "no other method has a score where it has one"
        else:
            reason = "it has no score"
        raise ValueError(f"nothing to compare with {name!r}: {reason}")
    return table


def _baseline(names: Sequence[str], baseline: str | None, *, models: bool) -> str:
    plain = next((name for name in PLAIN if name in names), names[0] if models else PLAIN[0])
    return baseline or plain


def against(frame: pd.DataFrame, baseline: str | None) -> pd.DataFrame:
    """Return one row per cell with its difference from the baseline's cell.

    ``low``, ``high`` and ``p`` are of one comparison; ``p_all``, by which the ``verdict`` says
    better or worse, is corrected for all comparisons with the baseline at a length of a task.
    Methods with the baseline's frequencies are "same"; those with too few documents or trials in
    common with the others are "not compared"; a relative difference of -0.1 is 10 % lower.
    """
    table = cells(frame).dropna(subset="score")
    bases = {
        model: _baseline(list(names.unique()), baseline, models="of_model" in frame)
        for model, names in frame.groupby("model", sort=False)["scaling"]
    }
    groups = dict(tuple(table.groupby(["model", "task", "length"])))
    rows = []
    for key, here in families(frame).items():
        known, base = groups[key], bases[key[0]]
        if base in set(known["scaling"]):
            compared = _compared(here, base)
            others = records(known[known["scaling"] != base])
            rows += [_row(cell, here, base, compared) for cell in others]
    return pd.DataFrame(rows)


def checkpoints(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row per cell, compared with the same method of the first model like its own.

    Models are alike if they have the same questions; ``baseline`` is the first of them. The
    comparisons with one method of the first model are corrected together.
    """
    rows, named = [], labels(frame)
    for models, samples, how in lengths(frame):
        here, table = family(samples, how), cells(samples).dropna(subset="score")
        known = {cell["scaling"]: cell for cell in records(table)}
        for model in models[1:]:
            for scaling in frame.loc[frame["model"] == model, "scaling"].unique():
                name, other = named[model, scaling], named.get((models[0], scaling), "")
                if name in known and other in known:
                    row = _row(known[name], here, other, _compared(here, other))
                    rows.append({**row, "model": model, "scaling": scaling, "baseline": models[0]})
    return pd.DataFrame(rows)


def between(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row per cell that two runs have, each a ``model`` here: the second less the first.

    Cells are compared that have a score and the same requests in both; ``baseline_score`` is that
    of the first run. Cells of equal samples are "same". ``p_all`` is corrected for all methods of a
    task at one length (Holm); methods that are the same measurement in both runs count once.
    """
    first, second = frame["model"].unique()
    rows = []
    for _, samples in frame.groupby("task", sort=False):
        how = measure(samples.assign(scaling=samples["model"] + " " + samples["scaling"]))
        for _, here in samples.groupby("length"):
            of_both, frequencies = [], []
            for _, cell in here.groupby("scaling", sort=False):
                parts = [cell[cell["model"] == name] for name in (first, second)]
                questions = [set(part["question"]) for part in parts]
                scored = all(part["score"].notna().any() for part in parts)
                if scored and questions[0] == questions[1]:
                    of_both.append(cell)
                    firsts = cell.drop_duplicates("model")
                    frequencies.append(tuple(firsts["frequencies"].fillna(firsts["scaling"])))
            pairs = [  # the runs as two methods, whatever their frequencies
                family(cell.assign(scaling=cell["model"], frequencies=cell["model"]), how)
                for cell in of_both
            ]
            compared = [_compared(pair, first).get(second, (None, None)) for pair in pairs]
            corrected = holm_once(frequencies, [p for _, p in compared])
            for cell, pair, (difference, _), p in zip(
                of_both, pairs, compared, corrected, strict=True
            ):
                facts = records(cells(cell[cell["model"] == second]))[0]
                known = {second: (difference, p)} if difference else {}
                row = _row({**facts, "scaling": second}, pair, first, known)
                row |= {"scaling": facts["scaling"], "model": second, "baseline": first}
                if difference and pair.shared[first] == pair.shared[second]:
                    row |= {"same": True, "verdict": "same"}
                rows.append({**row, "baseline_score": pair.score(first).score})
    return pd.DataFrame(rows)


def _row(cell: dict[str, Any], here: Family, baseline: str, compared: Compared) -> dict[str, Any]:
    name, other = here.first(cell["scaling"]), here.first(baseline)
    same, how = name == other, here.how
    better = "lower" if how.lower else "higher"
    difference, p = compared.get(name, (None, None))
    return {
        **{column: cell[column] for column in COPIED},
        "score": here.score(name).score, "measure": how.name, "baseline": baseline,
        "better": better, "relative": how.relative, "units": how.units,
        "n": difference.n if difference else here.own[name], "asked": here.requested,
        "status": here.status(name),
        "difference": 0.0 if same else getattr(difference, "value", None), "measured_as": name,
        **{end: getattr(difference, end, None) for end in ("low", "high", "p")},
        "p_all": p, "same": same, "better_on": getattr(difference, better, None),
        "failed": len(here.lost[name] - here.lost[other]),
        "verdict": "same" if same else _verdict(here, name, other, difference, p),
    }  # fmt: skip


def _compared(here: Family, baseline: str) -> Compared:
    other = here.first(baseline)
    names = [name for name in here.names if name != other]
    if other not in here.shared:
        return {}
    shared = [here.shared[name] for name in names]
    results = differences(shared, here.shared[other], here.how)
    if not results:
        return {}
    less = values_of(shared) - values_of([here.shared[other]])
    corrected = adjusted(less, weights_of(here.shared[other]), results, shares=here.how.share)
    return dict(zip(names, zip(results, corrected, strict=True), strict=True))


def _verdict(
    here: Family, name: str, other: str, difference: Difference | None, p: float | None
) -> str:
    if difference is None:
        return "not compared"
    better = (difference.value < 0) == here.how.lower
    first, second = (name, other) if better else (other, name)
    if p is None or p >= ALPHA or here.lost[first] - here.lost[second]:
        return NO_DIFFERENCE  # also where the better one failed on what the other has
    return "better" if better else "worse"


def display(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return one table per model and task with lengths side by side; per task over seeds."""
    if "seeds" in table:
        windows = table["trained_length"].map(", window of {:,} tokens".format)
        window = windows if windows.nunique() > 1 else ""
        model = "less " + table["baseline"] + window
        shown = across(table.assign(scaling=table["name"], model=model), _text)
        return {title: of.rename(columns={"scaling": "model"}) for title, of in shown.items()}
    return {
        f"{title}, less {baseline}": shown
        for baseline, rows in table.groupby("baseline", sort=False)
        for title, shown in across(rows, _text).items()
    }


def _text(row: dict[str, Any]) -> str:
    """Return "−26.8 % [−33, −20]", with marks and, if some are missing, how many were compared."""
    if row.get("same"):
        return "="
    lacking = ""
    if "seeds" not in row:
        lacking = f" ({row['n']} of {row['asked']})" * (row["n"] < row["asked"])
    elif row["difference"] is not None:
        lacking = f" ({row['seeds']} of {row['asked']} seeds)" * (row["seeds"] < row["asked"])
        lacking += f" ({row['n']} of {row['of']} {row['units']})" * (row["n"] < row["of"])
    failed = " †" if row.get("failed") else ""
    if row["difference"] is None:
        return f"not compared{lacking}{failed}"
    unit = " %" if row["relative"] else " pp" if row["metric"] in SHARES else ""
    text = sentences.signed(row["difference"], row["low"], row["high"], unit)
    unsure = row["verdict"] == NO_DIFFERENCE and ("seeds" not in row or row["difference"])
    return f"{text}{lacking}{' ?' if unsure else ''}{failed}"


def notes(table: pd.DataFrame) -> list[str]:
    """Return how scores are paired and what the marks mean."""
    if "seeds" in table:
        equal = table["difference"].fillna(0).ne(0) & table["p"].isna()
        texts = [SEEDS, *([EQUAL] if equal.any() else [])]
        texts += [NOT_COMPARED] if table["verdict"].eq("not compared").any() else []
    else:
        real, units = table[~table["same"]], " and ".join(dict.fromkeys(table["units"]))
        texts = [PAIRED.format(units=units)]
        if table["baseline"].nunique() > 1:
            texts.append("Less another model: the same method on the same documents and trials.")
        if (real["n"] < real["asked"]).any():
            texts.append(f"(… of …): on the {units} that all compared methods have.")
    failed = table.get("failed", pd.Series(dtype=float)).fillna(0).gt(0).any()
    return [" ".join([*texts, FAILED] if failed else texts)]
