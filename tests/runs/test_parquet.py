"""Runs in a Parquet file are the runs that were written to it."""

import json
import shutil

import pandas as pd
import pytest

import ropewalk as rw
from ropewalk.harness.runs.store import SAMPLES, read_run, read_samples
from tests import ROOT

REFERENCE = ROOT / "results" / "reference"
STUDY = ROOT / "results" / "smollm2"


@pytest.fixture
def file(tmp_path):
    shutil.copytree(REFERENCE, tmp_path / "runs" / "part" / "one")
    shutil.copytree(REFERENCE, tmp_path / "runs" / "two")
    rw.to_parquet(tmp_path / "runs", tmp_path / "both.parquet")
    return tmp_path / "both.parquet"


def test_a_parquet_file_has_every_sample_and_record_of_its_runs(file):
    folder = file.parent / "runs" / "two"
    assert read_run(file / "two") == read_run(folder)
    assert read_samples(file / "two") == read_samples(folder)
    assert (
        rw.frame(file / "part").drop(columns="run").equals(rw.frame(REFERENCE).drop(columns="run"))
    )
    assert rw.frame(file / "two").equals(rw.frame(folder))
    assert len(pd.read_parquet(file)) == 2 * len(read_samples(folder))


def test_losses_of_more_than_six_decimals_are_kept_too(tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(REFERENCE, folder)
    first = next(iter(read_samples(folder).values()))
    first["facts"]["losses"] = [1 / 3, 3000.0]
    for path in folder.glob("samples*"):
        path.unlink()
    (folder / SAMPLES).write_text(json.dumps(first) + "\n")
    rw.to_parquet(folder, tmp_path / "one.parquet")
    (sample,) = read_samples(tmp_path / "one.parquet" / "run").values()
    assert sample["facts"] == first["facts"]
