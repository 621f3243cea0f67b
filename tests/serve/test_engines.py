"""What real engines compute is what the weights give here; ``scripts/test-engines`` runs these."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest

import ropewalk as rw
from tests.command_line import status

pytestmark = pytest.mark.skipif(
    "ROPEWALK_ENGINES" not in os.environ, reason="scripts/test-engines runs it"
)
# By name in the config of vLLM, and the last one as longrope.
SCALING = ("none", "yarn:factor=4", "llama3:factor=4", "mr_rope:factor=4")
TASKS = ("perplexity", "passkey:depths=2,trials=2", "niah:trials=1", "key_value:trials=1")
VLLM = ("--engine", "vllm", "--engine-args", "--enforce-eager", "--dtype", "float32")


def settings(out: Path, *scaling: str) -> list[str]:
    words = ["run", "--model", "reference", "--length", "3x", "4x", "--limit", "3"]
    return [*words, "--task", *TASKS, "--out", str(out), "--scaling", *scaling]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("local") / "run"
    assert status(*settings(out, *SCALING), "--dtype", "float32") == 0
    return out


def test_vllm_computes_each_scaling_as_the_weights_do(local, tmp_path):
    """Losses differ by 1e-4 at most, and every answer is the same."""
    assert status(*settings(tmp_path / "run", *SCALING), *VLLM) == 0
    one, two = (rw.frame(folder, losses=True) for folder in (local, tmp_path / "run"))
    key = ["task", "scaling", "length", "question"]
    both = one.merge(two, on=key, suffixes=("", "_served"), validate="1:1")
    assert len(both) == len(one) == len(two) > 0
    for row in both.to_dict("records"):
        assert row["status_served"] == "ok", row
        if row["metric"] == "perplexity":
            assert row["losses_served"] == pytest.approx(row["losses"], abs=1e-4)
        else:
            assert row["value_served"] == row["value"]
            assert row["said_served"] == row["said"] or row["said"] != row["said"]


def test_a_server_without_its_scaling_is_found(tmp_path, ropewalk):
    """Options of the user take yarn out of the config again: the served model is none."""
    plain = json.dumps({"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}})
    more = f"--enforce-eager --hf-overrides {shlex.quote(plain)}"
    done = ropewalk(
        *settings(tmp_path / "run", "yarn:factor=4"), "--engine", "vllm", "--dtype", "float32",
        "--engine-args", more,
    )  # fmt: skip
    assert done.status == 2
    assert "they match those of none" in done.err
