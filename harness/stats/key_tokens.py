"""Find the key tokens of the scored text, and take losses and gains over them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ropewalk.harness.stats.cells import CELL, in_option
from ropewalk.tasks._intervals import ratio

DROP, MOST = 2.0, 2.0  # nats, of the rule as its authors have it
NONE = (
    "the run has no losses per token: measure perplexity with protocol=tail, without slide, at two "
    "or more lengths inside the trained window"
)


@dataclass(frozen=True)
class Rule:
    """Which tokens are key: those that a longer context makes clear (arXiv:2410.23771, eq. 5).

    The evaluator's loss falls by more than ``drop`` nats from the context ``short`` to ``long``,
    in tokens, to less than ``most``.
    """

    evaluator: str
    short: int
    long: int
    drop: float
    most: float

    def keys(self, short: NDArray[np.float64], long: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which targets are key."""
        key: NDArray[np.bool_] = (short - long > self.drop) & (long < self.most)
        return key


RULE = [field.name for field in fields(Rule)]


def measured(
    frame: pd.DataFrame,
    evaluator: str,
    drop: float = DROP,
    most: float = MOST,
    evaluator_model: str = "",
) -> pd.DataFrame:
    """Return the key perplexity and the gain of every cell that has the losses, by CELL.

    ``evaluator`` is a method of the same model, or of ``evaluator_model``. Raises ValueError where
    none has the losses, or where the evaluator has no two lengths in its window.
    """
    rows: list[dict[str, Any]] = []
    every = each(frame)
    for (model, task), samples in every.groupby(["model", "task"], sort=False):
        judge = evaluator_model or model
        judged = every[(every["model"] == judge) & (every["task"] == task)]
        of = rule(judged, evaluator, drop, most)
        masks = key_masks(judged, of)
        if judge != model:
            of = replace(of, evaluator=f"{of.evaluator} of {judge}")
            masks = carried(samples, judged, masks)
        for scaling, known in samples.groupby("scaling", sort=False):
            by_length = {int(str(n)): losses(cell) for n, cell in known.groupby("length")}
            short = by_length.get(of.short, {})
            rows += [
                {
                    "model": model, "task": task, "scaling": scaling, "length": length,
                    **over_keys(cell, masks), **gains(cell, short, drop),
                    "tokens": sum(map(len, cell.values())), **asdict(of),
                }
                for length, cell in by_length.items()
            ]  # fmt: skip
    return pd.DataFrame(rows).set_index(CELL)


def each(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the samples that have the loss of every target; raise ValueError where none has."""
    if not {"losses", "bucket", "window"} <= set(frame.columns):
        raise ValueError(NONE)
    kept = frame[(frame["bucket"] == 1) & (frame["status"] == "ok") & frame["window"].notna()]
    if kept.empty:
        raise ValueError(NONE)
    return kept


def losses(cell: pd.DataFrame) -> Losses:
    """Return the losses of every window of a cell."""
    windows = zip(zip(*(cell[name] for name in WINDOW), strict=True), cell["losses"], strict=True)
    return {window: np.array(values) for window, values in windows}


def rule(samples: pd.DataFrame, evaluator: str, drop: float, most: float) -> Rule:
    """Return the rule of one model and task: the evaluator's shortest and longest window.

    Raises ValueError where it has no two lengths inside its trained window.
    """
    if samples.empty:
        raise ValueError(
            "the evaluator's model has no losses of this task; see scores for the names"
        )
    evaluator = in_option(evaluator, samples["scaling"].unique())
    known = samples[samples["scaling"] == evaluator]
    inside = known.loc[known["length"] <= known["trained_length"], "length"]
    if inside.nunique() < 2:
        raise ValueError(
            f"key tokens need two lengths of {evaluator!r} inside the trained window, such as "
            "--length 0.25x 1x; choose another method by key_tokens:evaluator=NAME"
        )
    return Rule(evaluator, int(inside.min()), int(inside.max()), drop, most)


def key_masks(samples: pd.DataFrame, of: Rule) -> Masks:
    """Return for every window which of its targets are key, by the evaluator's two losses."""
    known = samples[samples["scaling"] == of.evaluator]
    short, long = (losses(known[known["length"] == length]) for length in (of.short, of.long))
    return {window: of.keys(short[window], long[window]) for window in short if window in long}


def over_keys(cell: Losses, masks: Masks) -> dict[str, Any]:
    """Return exp(mean loss over the key tokens), its interval over documents, and the counts."""
    windows = {
        window: (values[masks[window]].sum(), masks[window].sum())
        for window, values in cell.items()
        if window in masks
    }
    sums, counts = _by_document(windows)
    score, low, high = ratio(sums, counts).exp() if counts else (None, None, None)
    keys = int(sum(counts))
    return {"score": score, "low": low, "high": high, "n": len(counts), "keys": keys}


def gains(cell: Losses, short: Losses, drop: float) -> dict[str, Any]:
    """Return the mean loss that the longer context saves, in nats per token, and its large part.

    ``large`` is the share of all targets that gain more than ``drop`` nats.
    """
    saved = {window: short[window] - cell[window] for window in cell if window in short}
    if not saved:
        return {"gain": None, "gain_low": None, "gain_high": None, "large": None}
    result = ratio(*_by_document({w: (values.sum(), len(values)) for w, values in saved.items()}))
    low, high = result.interval()
    every = np.concatenate(list(saved.values()))
    large = (every > drop).mean()
    return {"gain": result.value, "gain_low": low, "gain_high": high, "large": large}


def _by_document(windows: dict[Any, tuple[float, int]]) -> tuple[list[float], list[int]]:
    """Return the sums and the counts of the documents that count something: the unit of chance."""
    totals: dict[str, list[float]] = {}
    for (unit, _), (value, count) in windows.items():
        total = totals.setdefault(unit, [0.0, 0])
        total[0] += float(value)
        total[1] += int(count)
    some = [total for total in totals.values() if total[1]]
    return [total[0] for total in some], [int(total[1]) for total in some]


Losses = dict[Any, NDArray[np.float64]]  # of every target, by document and window
Masks = dict[Any, NDArray[np.bool_]]  # which targets are key, likewise
Spans = NDArray[np.int64]  # first byte and the byte after the last, (n, 2)
WINDOW = ["unit", "window"]  # of the same targets at every length
TARGETS = ["begin", "sizes"]  # which these are: where the first stands, and the bytes of each


def carried(samples: pd.DataFrame, judged: pd.DataFrame, masks: Masks) -> Masks:
    """Return which targets of a model are key by the masks of another.

    For the same targets these are the same. For others, a target is key if it lies completely in
    the text of key tokens, joined if they touch, as in LongPPL (arXiv:2410.23771).
    Raises ValueError if samples do not say where targets are, or no text is scored by both.
    """
    own, known = (rows.drop_duplicates(WINDOW) for rows in (samples, judged))
    if not set(TARGETS) <= set(samples) or pd.concat([own, known])["sizes"].isna().any():
        raise ValueError(NO_PLACES)
    one, other = (rows.set_index(WINDOW)[TARGETS].sort_index() for rows in (own, known))
    if one.equals(other):
        return masks
    scored = _texts(known, {window: np.ones_like(mask) for window, mask in masks.items()})
    keys, result = _texts(known, masks), Masks()
    for row in own.to_dict("records"):
        if row["unit"] in scored:
            places = spans(row)
            if inside(places, scored[row["unit"]]).any():
                result[row["unit"], row["window"]] = inside(places, keys[row["unit"]])
    if not result:
        raise ValueError(NOTHING_SHARED)
    return result


def _texts(rows: pd.DataFrame, masks: Masks) -> dict[str, Spans]:
    """Return where the masked targets of every document are, joined if they touch."""
    result: dict[str, list[Spans]] = {}
    for row in rows.to_dict("records"):
        mask = masks.get((row["unit"], row["window"]))
        if mask is not None:
            result.setdefault(row["unit"], []).append(spans(row)[mask])
    return {unit: joined(np.concatenate(every)) for unit, every in result.items()}


def spans(row: dict[Any, Any]) -> Spans:
    """Return where the targets of a window are in their document."""
    sizes = np.array([int(size) for size in row["sizes"].split()], np.int64)
    ends = int(row["begin"]) + np.cumsum(sizes)
    return np.stack([ends - sizes, ends], axis=1)


def joined(places: Spans) -> Spans:
    """Return runs of text, each as long as possible."""
    ordered = places[np.argsort(places[:, 0], kind="stable")]
    if not len(ordered):
        return ordered
    separate = ordered[1:, 0] > np.maximum.accumulate(ordered[:, 1])[:-1]
    starts = np.append(0, np.flatnonzero(separate) + 1)
    return np.stack([ordered[starts, 0], np.maximum.reduceat(ordered[:, 1], starts)], axis=1)


def inside(places: Spans, runs: Spans) -> NDArray[np.bool_]:
    """Return which spans lie whole in one of the runs, which are in order and separate."""
    if not len(runs):
        return np.zeros(len(places), np.bool_)
    place = np.searchsorted(runs[:, 0], places[:, 0], side="right") - 1
    held: NDArray[np.bool_] = (place >= 0) & (places[:, 1] <= runs[place, 1])
    return held


NO_PLACES = (
    "these samples do not give the place of their tokens in the text, which key tokens of another "
    "model need; measure them again"
)
NOTHING_SHARED = (
    "the evaluator and the model score no text in common; measure both with more targets, such as "
    "perplexity:tail=1024"
)
