"""Two runs side by side: paired differences of what both have, and what only one of them has."""

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import ropewalk as rw
from tests.command_line import lines_of, put_lines, status, sweep
from tests.small_runs import changed

HIGHER = {"document-0.txt": 0.01, "document-1.txt": 0.02, "document-2.txt": 0.03}  # nats per token


@pytest.fixture(scope="module")
def before(tiny: Path, docs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of two methods at two lengths by a loss and by a text."""
    folder = tmp_path_factory.mktemp("runs") / "before"
    assert status(*sweep(tiny, docs, folder, scaling=["none", "pi"])) == 0
    return folder


def rewrite(run: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """Change every sample of a run in place."""
    samples = lines_of(run)
    for sample in samples:
        change(sample)
    put_lines(run, samples)
    return run


def higher(sample: dict[str, Any]) -> None:
    if sample["unit"] in HIGHER:
        sample["value"] += HIGHER[sample["unit"]] * sample["weight"]


def rows(table: pd.DataFrame, **where: object) -> Iterator[dict[str, Any]]:
    for row in table.to_dict("records"):
        if all(row[name] == value for name, value in where.items()):
            yield {str(name): value for name, value in row.items()}


def test_a_served_run_is_explained_by_a_method_of_the_weights(before, tmp_path):
    """A server that ignores pi has the losses of none, and one that does not has those of pi."""

    def served(record: dict[str, Any]) -> None:
        record["model"] |= {"served": "vllm", "name": "tiny-vllm"}

    same = rw.compare(before, changed(before, tmp_path / "same", served))
    assert [
        line for line in same.notes if line.startswith("vllm, pi: ") and "those of pi of" in line
    ]
    after = changed(before, tmp_path / "after", served)
    lines = lines_of(after)
    none = {(one["task"], one["length"], one["question"]): one for one in lines
            if one["cell"] in cells_of(after, "none")}  # fmt: skip
    for one in lines:
        one["facts"] = none[one["task"], one["length"], one["question"]]["facts"]
    put_lines(after, lines)
    for pair in ((before, after), (after, before)):
        (text,) = (line for line in rw.compare(*pair).notes if line.startswith("vllm, pi: "))
        assert "nearest to those of none of the weights, 0 nats" in text


def cells_of(run: Path, scaling: str) -> set[str]:
    record = json.loads((run / "run.json").read_text())
    return {cell["key"] for cell in record["cells"] if cell["scaling"] == scaling}


def test_every_cell_of_both_has_its_paired_difference(before, tmp_path):
    """Losses raised by known amounts raise a perplexity by the exponential of their mean."""
    after = rewrite(changed(before, tmp_path / "after", lambda _: None), higher)
    result = rw.compare(before, after)
    assert len(result.table) == 8
    for row in rows(result.table, metric="perplexity"):
        assert row["difference"] == pytest.approx(math.expm1(0.02), rel=1e-9)
        assert row["score"] == pytest.approx(row["baseline_score"] * math.exp(0.02), rel=1e-9)
        assert row["difference_low"] < row["difference"] < row["difference_high"]
        assert (row["n"], row["model"], row["baseline"]) == (3, "after", "before")
    assert {row["verdict"] for row in rows(result.table, metric="accuracy")} == {"same"}
    back = rw.compare(after, before).table
    assert back["difference"].min() == pytest.approx(math.expm1(-0.02), rel=1e-9)


def test_a_second_name_of_a_measurement_changes_no_probability(before, tmp_path):
    """Methods of equal frequencies in both runs are one comparison, as inside the window."""

    def twice(record: dict[str, Any]) -> None:
        of_pi = [cell for cell in record["cells"] if cell["scaling"] == "pi"]
        record["cells"] += [{**cell, "scaling": "again"} for cell in of_pi]

    after = rewrite(changed(before, tmp_path / "after", lambda _: None), higher)
    both = [changed(run, tmp_path / f"{run.name}-twice", twice) for run in (before, after)]
    known = [rw.compare(*runs).table for runs in ((before, after), both)]
    assert [len(table) for table in known] == [8, 12]
    first, second = (dict(tuple(table.groupby("scaling"))) for table in known)
    for name, of in (("none", "none"), ("pi", "pi"), ("again", "pi")):
        assert list(second[name]["p_all"]) == list(first[of]["p_all"])


def test_the_command_says_what_else_differs(before, tmp_path, ropewalk):
    """Other weights, another version of a package, a cell that one lacks."""

    def change(record: dict[str, Any]) -> None:
        record["cells"] = [cell for cell in record["cells"] if cell["scaling"] != "pi"]
        record["model"]["fingerprint"] = "0" * 64
        for session in record["sessions"]:
            session["versions"]["transformers"] = "5.0"

    done = ropewalk("compare", before, changed(before, tmp_path / "after", change))
    out = " ".join(done.out.split())
    for text in ("pi not in after 256, 320", "models (fingerprint)", "transformers: 5.0 (was "):
        assert text in out


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda record: record.update(seed=7), "they have different seeds"),
        (lambda record: record["documents"]["read"].pop(), "they have different documents"),
    ],
)
def test_runs_that_cannot_be_paired_are_an_error(before, tmp_path, rejected, change, told):
    assert told in rejected("compare", before, changed(before, tmp_path / "after", change))
