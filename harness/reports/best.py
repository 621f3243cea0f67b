"""Which method to use at each length, and how much worse than the best it is at most."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from ropewalk.harness.reports.writing import sentences
from ropewalk.harness.reports.writing.tables import heading
from ropewalk.harness.stats.cells import records
from ropewalk.harness.stats.decision import MARGIN, Decision, Place, decide, decisions, overall
from ropewalk.harness.stats.measure import SHARES
from ropewalk.tasks._intervals import MIN_DOCUMENTS

TERMS = (
    "A winner is better than every other method by its paired 95 % interval, or the only method "
    "that the bounds leave. The regret of a method is how much worse it is at most than the best "
    "of all; these bounds hold for all methods together (95 %). As good as the best: a regret of "
    "at most {margin:g} % (percentage points of a share). Brackets: 95 % intervals."
)
SERVABLE = (
    "The method to use is the best that a server's config can express; methods marked * need "
    "their own modelling code."
)
RETRIEVAL = (
    "A method that is not significantly better than truncation gains nothing measurable from the "
    "longer text; retrieval tasks (niah, ruler, passkey) show whether it uses it."
)
MOST_NEEDED = 20  # times the documents measured: more are not suggested
FAILED = "†: it failed on documents or trials, which are left out for all methods."
RARE = (
    "{counted} without a failure of a method {leave} failures on up to {share} of all {units} "
    "possible (95 %)."
)


def make(frame: pd.DataFrame, *, margin: float = MARGIN) -> pd.DataFrame:
    """Return one row per model, task and length: the method to use, and what is known of it.

    ``use`` is the method to use, ``regret`` how much worse than the best it is at most, relative
    for perplexity. ``best`` has the best mean; if ``winner``, significantly so, by ``lead`` over
    the ``next``. ``as_good`` are methods as good as the best, within the ``margin`` (percent);
    ``possible`` those that are not significantly worse. ``cost`` is what ``use`` costs inside the
    trained window in the form it has at this length, ``gain`` its score less that of
    ``truncation``, the plain model that reads the trained window alone, which is significantly
    better if ``truncate``; ``retrieval`` are the tasks that gain there. ``needed`` is how many
    documents would bound the regret of ``best`` by the margin. If ``all_zero``, no method scores
    anything and none is better to use.
    """
    rows = _rows(frame, margin)
    return pd.DataFrame(rows).astype({"trained_length": "Int64", "relative_length": float})


def _rows(frame: pd.DataFrame, margin: float) -> list[dict[str, Any]]:
    rows, groups = [], dict[tuple[str, int], list[Decision]]()
    for (model, _, length), decision in _decided(frame, margin).items():
        groups.setdefault((model, length), []).append(decision)
        rows.append(_row(decision))
    chosen = {key: overall(group) for key, group in groups.items() if len(group) > 1}
    for row in rows:
        key = row["model"], row["length"]
        row["overall"], row["overall_regret"] = chosen.get(key) or (None, None)
        row["truncate"] = row["gain_low"] is not None and row["gain_low"] > 0
        row["retrieval"] = [  # what finds significantly more than the window of a longer text holds
            other["task"]
            for other in rows
            if (other["model"], other["length"]) == key
            and other["metric"] in SHARES
            and None not in (other["low"], other["trained_length"])
            and other["low"] > other["trained_length"] / other["length"]
        ] or None
    return rows


def _decided(frame: pd.DataFrame, margin: float) -> dict[Place, Decision]:
    return decisions(frame) if margin == MARGIN else decide(frame, margin)


def _row(decision: Decision) -> dict[str, Any]:
    of, best, use = decision.family, decision.best, decision.recommended
    order = sorted(of.names, key=lambda name: of.score(name).score, reverse=not of.how.lower)
    rivals = order[1:]
    lead = decision.less(rivals[0]) if rivals else None

    def named(chosen: Callable[[str], bool]) -> list[str] | None:
        names = filter(chosen, order)
        return [each for name in names for each in of.everyone(name)] or None

    return {
        **decision.facts, "measure": of.how.name, "better": "lower" if of.how.lower else "higher",
        "relative": of.how.relative, "units": of.how.units, "n": of.n, "asked": of.requested,
        "status": of.status(use), "methods": len(of.names), "margin": decision.margin,
        "use": use, "same": of.groups[use] or None, **_ends("", of.score(use)),
        "regret": decision.regret(use), "servable": use not in of.code,
        "best": best, **_ends("best_", of.score(best)), "all_zero": decision.all_zero,
        "winner": decision.winner, "next": rivals[0] if rivals else None,
        **_difference("lead", lead),
        "better_on": lead and (lead.lower if of.how.lower else lead.higher),
        "as_good": named(decision.as_good), "possible": named(decision.possible),
        "needed": decision.needed, **_difference("cost", decision.costs.get(use)),
        **_ends("truncation_", decision.truncation),
        **_difference("gain", decision.change(use) if decision.beyond else None),
        "apart": [f"{name} {of.own[name]}" for name in of.excluded] or None,
        "failed": [f"{name} {len(units)}" for name, units in of.lost.items() if units] or None,
        "code": sorted(of.code) or None,
    }  # fmt: skip


def _bound(row: Mapping[str, Any]) -> str:
    return sentences.bound(row["regret"], relative=row["relative"], metric=row["metric"])


def _ends(prefix: str, score: Any) -> dict[str, float | None]:
    return {f"{prefix}{end}": getattr(score, end, None) for end in ("score", "low", "high")}


def _difference(name: str, difference: Any) -> dict[str, float | None]:
    ends = {"": "value", "_low": "low", "_high": "high"}
    return {f"{name}{end}": getattr(difference, part, None) for end, part in ends.items()}


def display(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the table for people, one per model and task."""
    tables = {}
    for (model, task), rows in table.groupby(["model", "task"], sort=False):
        texts = []
        for row in records(rows):
            best = sentences.method(row, row["best"]) + " (winner)" * bool(row["winner"])
            good = row["as_good"] or []
            others = [name for name in row["possible"] or [] if name not in good]
            texts.append(
                {
                    "length": f"{row['length']} ({sentences.times(row)})".removesuffix(" ()"),
                    "use": sentences.method(row, _used(row)),
                    "score [95 %]": sentences.score(row),
                    "regret, at most": _bound(row),
                    "best": "" if row["all_zero"] else best,
                    "as good as the best": ", ".join(sentences.method(row, name) for name in good),
                    "not significantly worse": ", ".join(
                        sentences.method(row, name) for name in others
                    ),
                }
            )
        tables[heading(str(task), rows["metric"].iloc[0], str(model))] = pd.DataFrame(texts)
    return tables


def summary(table: pd.DataFrame) -> list[str]:
    """Return sentences on what to use at every length."""
    texts = []
    many = table["model"].nunique() > 1
    for (model, _), rows in table.groupby(["model", "length"], sort=False):
        facts = records(rows)
        start = sentences.at(facts[0]) + (f", {model}" if many else "")
        texts += [f"{start}: {sentence(row, sentences.named(row, table))}" for row in facts]
        first = facts[0]
        if first["overall"] is not None and any(row["next"] for row in facts):
            texts.append(
                f"{start}, on all {len(facts)} tasks: use `{first['overall']}`, {_overall(facts)}."
            )
    if whole := [row for row in records(table) if not row["failed"] or row["n"] == row["asked"]]:
        least = min(whole, key=lambda row: row["n"])
        share = sentences.at_most(min(1.0, 3 / max(1, least["n"])))
        leave = "leaves" if least["n"] == 1 else "leave"
        counted, units = _counted(least), least["units"]
        texts.append(RARE.format(counted=counted, leave=leave, units=units, share=share))
    return texts


def sentence(row: Mapping[str, Any], measured: str) -> str:
    """Return the decision of one task at one length in sentences."""
    if row["all_zero"]:
        return f"no method has a {measured} above 0 on {_counted(row)}. {_units(row)}".strip()
    gain = "" if row["truncate"] else _gain(row)
    parts = [_truncate(row), _use(row, measured), _needed(row), _cost(row), gain, _best(row)]
    parts.append(_units(row))
    return " ".join(part for part in parts if part)


def _truncate(row: Mapping[str, Any]) -> str:
    if not row["truncate"]:
        return ""
    worse = f"the best scaling, `{row['use']}`, is {sentences.gap(row, 'gain')} worse"
    window = f"{row['trained_length']:,} tokens"
    if not row["retrieval"]:
        return f"on this text, truncate to {window}: {worse}. Of the scalings,"
    tasks = sentences.listed(row["retrieval"])
    return f"on this text, truncation to {window} is better ({worse}), but {tasks} gains;"


def _use(row: Mapping[str, Any], measured: str) -> str:
    same = f" ({sentences.listed(row['same'])}: the same measurement)" if row["same"] else ""
    use, score = f"`{row['use']}`{same}", sentences.score(row)
    if row["next"] is None:
        only = "all methods are the same here" if row["same"] else _only(row)
        return f"{use} has a {measured} of {score} ({only})."
    start = f"use {use}. Its {measured}, {score}, is"
    if row["winner"] and row["use"] == row["best"]:
        side = "below" if row["better"] == "lower" else "above"
        return (
            f"{start} the best of {row['methods']} methods: {sentences.gap(row, 'lead')} {side} "
            f"`{row['next']}`, the next best ({_counted(row)}, better on {row['better_on']:g})."
        )
    if row["regret"] is None:
        extreme = "lowest" if row["better"] == "lower" else "highest"
        why = "its samples give no bound on its regret"
        if row["n"] < MIN_DOCUMENTS:
            why = f"a bound on its regret needs at least {MIN_DOCUMENTS} {row['units']}"
        return f"{start} the {extreme} of {row['methods']} methods; {why}."
    side = "above" if row["better"] == "lower" else "below"
    return (
        f"{start} at most {_bound(row)} {side} that of the best of {row['methods']} "
        f"methods (95 %, {_counted(row)})."
    )


def _best(row: Mapping[str, Any]) -> str:
    if row["use"] == row["best"] or row["score"] == row["best_score"]:
        return ""
    why = ", which needs its own modelling code," * (row["best"] in (row["code"] or []))
    extreme = "lowest" if row["better"] == "lower" else "highest"
    sure = ", significantly" if row["winner"] else ""
    return f"`{row['best']}`{why} has the {extreme} score{sure}: {sentences.score(row, 'best_')}."


def _cost(row: Mapping[str, Any]) -> str:
    if sentences.inside(row) or row["next"] is None or not row["trained_length"]:
        return ""
    if row["cost"] is None:
        return f"What `{row['use']}` costs inside the window in this form was not measured."
    if row["cost"] == 0 and row["cost_low"] == 0:
        return f"Inside the window `{row['use']}` changes nothing."
    unit = " %" if row["relative"] else " percentage points" if row["metric"] in SHARES else ""
    change = sentences.signed(row["cost"], row["cost_low"], row["cost_high"], unit)
    return f"In this form `{row['use']}` changes the score inside the window by {change}."


def _gain(row: Mapping[str, Any]) -> str:
    if row["gain"] is None:
        return ""
    window = f"truncating the text to {row['trained_length']:,} tokens"
    change = sentences.signed(row["gain"], row["gain_low"], row["gain_high"])
    if row["gain_high"] is not None and row["gain_high"] < 0:
        return f"`{row['use']}` is better than {window}: {change}."
    worse = row["gain_low"] is not None and row["gain_low"] > 0
    verdict = "worse" if worse else "not significantly better"
    return f"`{row['use']}` is {verdict} than {window}: {change}."


def _needed(row: Mapping[str, Any]) -> str:
    needed = row["needed"]
    if row["winner"] or needed is None or row["use"] != row["best"]:
        return ""
    if not row["n"] < needed <= MOST_NEEDED * row["n"]:
        return ""
    points = f"percentage point{'' if row['margin'] == 1 else 's'}"
    unit = points if row["metric"] in SHARES else "%"
    return f"About {int(needed):,} {row['units']} would bound that by {row['margin']:g} {unit}."


def _only(row: Mapping[str, Any]) -> str:
    """Return why a method is compared with no other one."""
    return "no other method has enough samples" if row["apart"] else "the only method measured"


def _units(row: Mapping[str, Any]) -> str:
    parts = []
    if row["n"] < row["asked"]:
        parts.append(f"on the {row['n']} of {row['asked']} {row['units']} that all methods have")
    for kind, text in (("failed", "failed"), ("apart", "left out, with too few")):
        if row[kind]:
            pairs = [pair.rpartition(" ") for pair in row[kind]]
            each = (f"`{name}` on {n} of {row['asked']}" for name, _, n in pairs)
            parts.append(f"{text}: {', '.join(each)}")
    return f"({'; '.join(parts)}.)" if parts else ""


def _counted(row: Mapping[str, Any]) -> str:
    return sentences.counted(row["n"], row["units"])


def notes(table: pd.DataFrame) -> list[str]:
    """Return what the terms and marks of the table mean."""
    texts = [TERMS.format(margin=table["margin"].iloc[0])]
    texts += [SERVABLE] if table["code"].notna().any() else []
    texts += [FAILED] if table["failed"].notna().any() else []
    texts += [RETRIEVAL] if table["gain_high"].ge(0).any() else []
    return texts


def answer(best: pd.DataFrame) -> list[dict[str, Any]]:
    """Return, for every model, its tasks and one row per length, of the table of ``best``.

    A row has the length, the one method for all tasks, and per task the method to use, its score,
    and its bound or its lead.
    """
    shown = []
    for model, rows in best.groupby("model", sort=False):
        tasks = list(rows["task"].unique())
        lengths = []
        for _, facts in rows.groupby("length", sort=True):
            known = {row["task"]: row for row in records(facts)}
            first = next(iter(known.values()))
            answer = {
                "length": int(first["length"]),
                "relative": sentences.times(first),
                "beyond": not sentences.inside(first),
                "use": first["overall"] if len(known) > 1 else _used(first),
                "bound": _overall([*known.values()]) if len(known) > 1 else _verdict(first),
                "tasks": [_task(known[task]) if task in known else None for task in tasks],
            }
            cut = next((row for row in known.values() if row["truncate"]), None)
            if cut and not cut["retrieval"]:
                answer["use"] = f"truncation to {cut['trained_length']:,} tokens"
                size = sentences.gap(cut, "gain")
                answer["bound"] = f"the best scaling, {cut['use']}, is {size} worse on this text"
            lengths.append(answer)
        heads = [
            {"task": task, "measure": measure, "better": f"{better} is better"}
            for task, measure, better in rows.drop_duplicates("task")[
                ["task", "measure", "better"]
            ].itertuples(index=False)
        ]
        shown.append({"model": model, "tasks": heads, "lengths": lengths})
    return shown


def _overall(rows: Sequence[dict[str, Any]]) -> str:
    regret = rows[0]["overall_regret"]
    if regret is None:
        return ""
    if not any(row["next"] for row in rows):
        return "" if rows[0]["same"] else _only(rows[0])
    if regret == 0:
        return "the best on every task"
    size = sentences.at_most(regret)
    return f"at most {size} (or percentage points) worse than the best on every task (95 %)"


def _task(row: dict[str, Any]) -> dict[str, Any]:
    same, use = row["same"] or [], _used(row)
    if use and same:
        use = f"{use} and {len(same)} equal" if len(same) > 2 else " = ".join([use, *same])
    more = []
    if row["use"] != row["best"] and row["best_score"] != row["score"]:
        why = " needs modelling code and" * (row["best"] in (row["code"] or []))
        more.append(f"{row['best']}{why} has {sentences.score(row, 'best_')}")
    if row["gain"] is not None:
        change = sentences.signed(row["gain"], row["gain_low"], row["gain_high"])
        more.append(f"{change} against truncation to {row['trained_length']:,} tokens")
    return {
        "use": use,
        "score": sentences.score(row),
        "n": sentences.counted(row["n"], row["units"]),
        "told": _verdict(row),
        "more": "; ".join(more),
    }


def _used(row: dict[str, Any]) -> str:
    return "" if row["all_zero"] else row["use"]


def _verdict(row: dict[str, Any]) -> str:
    """Return the lead of a winner, or the bound on the regret of the method to use."""
    if row["all_zero"]:
        return "no method scores above 0"
    if row["next"] is None:
        return "" if row["same"] else _only(row)
    if row["winner"] and row["use"] == row["best"]:
        side = "below" if row["better"] == "lower" else "above"
        return f"winner: {sentences.gap(row, 'lead')} {side} {row['next']}, the next best"
    if row["regret"] is None:
        return "too few samples for a bound"
    return f"at most {_bound(row)} worse than the best of {row['methods']}"
