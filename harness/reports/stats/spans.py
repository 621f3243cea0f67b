"""Carry key tokens from one model's tokens to another's, by where they stand in the text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Losses = dict[Any, NDArray[np.float64]]  # of every target, by document and window
Masks = dict[Any, NDArray[np.bool_]]  # which targets are key, likewise
Spans = NDArray[np.int64]  # first byte and the byte after the last, (n, 2)
WINDOW = ["unit", "window"]  # of the same targets at every length
TARGETS = ["begin", "sizes"]  # which these are: where the first stands, and the bytes of each


def carried(samples: pd.DataFrame, judged: pd.DataFrame, masks: Masks) -> Masks:
    """Return which targets of a model are key by the masks of another.

    Of the same targets these are the same. Of others a target is key that lies whole in the text of
    key tokens, joined where they touch, as the authors of LongPPL have it (arXiv:2410.23771).
    Raises ValueError where samples do not say where targets stand, or no text is scored by both.
    """
    own, known = (rows.drop_duplicates(WINDOW) for rows in (samples, judged))
    if not set(TARGETS) <= set(samples) or pd.concat([own, known])["sizes"].isna().any():
        raise ValueError(NO_PLACES)
    if _alike(own, known):
        return masks
    scored = _texts(known, {window: np.ones_like(mask) for window, mask in masks.items()})
    keys, found = _texts(known, masks), Masks()
    for row in own.to_dict("records"):
        if row["unit"] in scored:
            places = spans(row)
            if inside(places, scored[row["unit"]]).any():
                found[row["unit"], row["window"]] = inside(places, keys[row["unit"]])
    if not found:
        raise ValueError(NOTHING_SHARED)
    return found


def _alike(own: pd.DataFrame, known: pd.DataFrame) -> bool:
    """Return whether two models have the same targets."""
    one, other = (rows.set_index(WINDOW)[TARGETS].sort_index() for rows in (own, known))
    return one.equals(other)


def _texts(rows: pd.DataFrame, masks: Masks) -> dict[str, Spans]:
    """Return where the masked targets of every document stand, joined where they touch."""
    found: dict[str, list[Spans]] = {}
    for row in rows.to_dict("records"):
        mask = masks.get((row["unit"], row["window"]))
        if mask is not None:
            found.setdefault(row["unit"], []).append(spans(row)[mask])
    return {unit: joined(np.concatenate(every)) for unit, every in found.items()}


def spans(row: dict[Any, Any]) -> Spans:
    """Return where the targets of a window stand in their document."""
    sizes = np.array([int(size) for size in row["sizes"].split()], np.int64)
    ends = int(row["begin"]) + np.cumsum(sizes)
    return np.stack([ends - sizes, ends], axis=1)


def joined(found: Spans) -> Spans:
    """Return runs of text, each as long as possible."""
    ordered = found[np.argsort(found[:, 0], kind="stable")]
    if not len(ordered):
        return ordered
    apart = ordered[1:, 0] > np.maximum.accumulate(ordered[:, 1])[:-1]
    starts = np.append(0, np.flatnonzero(apart) + 1)
    return np.stack([ordered[starts, 0], np.maximum.reduceat(ordered[:, 1], starts)], axis=1)


def inside(found: Spans, runs: Spans) -> NDArray[np.bool_]:
    """Return which spans lie whole in one of the runs, which are in order and apart."""
    if not len(runs):
        return np.zeros(len(found), np.bool_)
    place = np.searchsorted(runs[:, 0], found[:, 0], side="right") - 1
    held: NDArray[np.bool_] = (place >= 0) & (found[:, 1] <= runs[place, 1])
    return held


NO_PLACES = (
    "these samples do not say where their tokens stand in the text, which key tokens of another "
    "model need; measure them again"
)
NOTHING_SHARED = (
    "the evaluator and the model score no text in common; measure both with more targets, such as "
    "perplexity:tail=1024"
)
