"""The published values that are carried along, and runs set beside them."""

from __future__ import annotations

import pytest

from harness.errors import UserError
from harness.plugins import names
from harness.published import read_table, read_tables

TABLES = ["dca", "lceg-pg19", "lceg-proof-pile", "lceg-ruler", "pi-pg19", "pi-proof-pile",
          "yarn-table-1", "yarn-table-2"]  # fmt: skip
MOVES_POSITIONS = {"rerope", "lm_infinite", "self_extend", "dca"}


def value(table: str, model: str, scaling: str, length: int, tuned: str = "no") -> float:
    """Look one number up, which must stand there once."""
    rows = read_table(table)
    chosen = (rows["model"] == model) & (rows["scaling"] == scaling) & (rows["length"] == length)
    [found] = rows.loc[chosen & (rows["tuned"] == tuned), "value"]
    return float(found)


def test_values_are_those_of_the_papers() -> None:
    """Corners of the printed tables, looked up by hand."""
    assert value("dca", "Llama-2-7B", "yarn on ntk", 65536) == 41.57
    assert value("dca", "Llama-2-70B", "dca", 4096) == 5.24
    assert value("lceg-pg19", "Llama-2-7B", "self_extend", 65536) == 7.15
    assert value("lceg-ruler", "Llama-2-7B", "ntk", 65536, "1B tokens at 32k") == 46.26
    assert value("pi-pg19", "LLaMA-7B", "pi factor 8", 16384) == 112.13
    assert value("yarn-table-1", "Llama-2-7B", "pi", 10240, "tuned at 8k") == 8.07
    assert value("yarn-table-2", "Mistral-7B-v0.1", "native", 16384, "as published") == 36.8


def test_every_value_stands_once_and_has_its_source() -> None:
    """A table is found by its name, and no cell of it has two values."""
    frame = read_tables()
    assert list(frame["table"].unique()) == TABLES
    cell = ["table", "model", "scaling", "tuned", "length", "metric"]
    assert not frame.duplicated(cell).any()
    assert frame["source"].str.startswith("arXiv:").all()
    assert (frame["value"] >= 0).all()
    assert set(frame["relation"]) == {"=", ">"}
    assert set(frame["protocol"]) == {"overlap", "press", "prefix", "ruler"}


def test_a_method_is_one_that_can_be_asked_for() -> None:
    """The column ``method`` can be given to ``--scaling`` as it stands."""
    known = {*names("method"), *MOVES_POSITIONS, ""}
    assert {text.partition(":")[0] for text in read_tables()["method"]} <= known


def test_an_unknown_table_is_answered_with_the_known() -> None:
    """The message has the nearest name and all others."""
    with pytest.raises(UserError, match=r"called 'lceg_pg19'; did you mean 'lceg-pg19'\? known: d"):
        read_table("lceg_pg19")
