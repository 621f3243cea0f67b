"""The summary of methods that were not measured at the same lengths, or found nothing."""

from __future__ import annotations

import pandas as pd

from harness.reports import summary
from tests.frames import Row, asked


def shares(task: str, scaling: str, **shares: int) -> list[Row]:
    """Return cells of 20 trials with so many hits, by the length after a letter."""
    return [
        row
        for length, hits in shares.items()
        for row in asked(task, scaling, int(length[1:]), [1.0] * hits + [0.0] * (20 - hits))
    ]


def test_a_score_at_the_longest_length_is_of_that_length() -> None:
    """A method measured to 2048, or at half a window, has no score beside those at 4096 and 1024.

    Nor is a reach said to be none that was never judged.
    """
    rows = shares("passkey", "none", l512=20, l1024=20, l2048=20, l4096=0)
    rows += shares("passkey", "yarn", l1024=20, l2048=20) + shares("passkey", "pi", l512=20)
    table = summary.make(pd.DataFrame(rows))
    [shown] = summary.readable(table).values()
    by_name = shown.set_index("scaling")
    assert by_name.loc["none", "passkey at longest"] == "0% [0, 16]"
    assert by_name["passkey at longest"].drop("none").isna().all()
    assert by_name["passkey in window"].notna().to_dict() == {
        "none": True,
        "yarn": True,
        "pi": False,
    }
    assert by_name["passkey reach"].drop("pi").to_dict() == {"none": 2048, "yarn": 2048}
    assert pd.isna(by_name.loc["pi", "passkey reach"])


def test_a_reach_that_was_judged_and_is_nothing_is_said() -> None:
    """A method that finds no key at the first length holds nowhere; another model is not judged."""
    rows = shares("passkey", "none", l1024=20, l2048=0) + shares("passkey", "pi", l1024=0, l2048=0)
    other = [{**row, "model": "other"} for row in rows if row["scaling"] == "pi"]
    mine, theirs = summary.readable(summary.make(pd.DataFrame(rows + other))).values()
    assert mine.set_index("scaling")["passkey reach"].to_dict() == {"none": 1024, "pi": "none"}
    assert theirs["passkey reach"].isna().all()


def test_no_one_is_best_where_all_found_nothing_or_one_was_measured() -> None:
    """At 2048 no method found a key and at 4096 there is only one: neither is a place to win."""
    rows = [row for name, hits in (("none", 0), ("yarn", 20), ("ntk", 0))
            for row in shares("passkey", name, l1024=20, l2048=0)
            + shares("key_value", name, l1024=20, l2048=hits)]  # fmt: skip
    table = summary.make(pd.DataFrame(rows + shares("passkey", "none", l4096=3)))
    assert table["passkey best at"].isna().all()
    assert set(table["out_of"]) == {1}
    assert summary.words(table)[0].endswith("beyond the window: `yarn`, in 1 of 1 (task, length).")


def test_the_best_at_the_longest_length_comes_first() -> None:
    """Where no method has a place, the order is that of the scores, whatever was asked first."""
    rows = [row for name, far in (("none", 0.2), ("pi", 0.4), ("yarn", 0.9))
            for row in shares("passkey", name, l1024=20)
            + asked("passkey", name, 2048, [far] * 3)]  # fmt: skip
    assert summary.make(pd.DataFrame(rows))["scaling"].tolist() == ["yarn", "pi", "none"]


def test_a_name_with_an_equals_sign_is_a_name() -> None:
    """A method's file may be called so: it keeps its row, and its place by its score."""
    rows = shares("passkey", "a = b.py", l1024=20, l2048=20)
    rows += shares("passkey", "none", l1024=20, l2048=0)
    table = summary.make(pd.DataFrame(rows))
    assert table["scaling"].tolist() == ["a = b.py", "none"]
    assert table["passkey best at"].tolist()[:1] == ["2048"]
