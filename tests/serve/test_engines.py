"""What real engines compute is what the weights give here; ``scripts/test-engines`` runs these."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import ropewalk as rw
from tests.command_line import status
from tests.families import tiny

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


FAMILIES = {  # with the factor that the class of each in vLLM gives its rotary embedding
    "glm4v": 4, "mistral3": 4, "qwen2_5_vl": 4, "qwen3_5": 1, "qwen3_5_moe": 1, "qwen3_vl": 1,
}  # fmt: skip


def test_vllm_reads_the_configs_of_image_text_models(tmp_path):
    """Its own classes have the angles that were measured, by the command's overrides.

    So do they by the config of a folder. A model that is to read images keeps its sections.
    """
    asked, wanted = [], []
    for family, factor in FAMILIES.items():
        tiny(family).save_pretrained(tmp_path / family)
        for scaling in ("none", "ntk", "pi:factor=4", "yarn:factor=4", "mr_rope:factor=4"):
            if family == "glm4v" and scaling[0] in "ym":
                continue  # its yarn is another, and its pairs are no longrope's
            found = rw.export(tmp_path / family, scaling=scaling, length="4x", to="vllm")
            words = shlex.split(found.command)
            overrides = json.loads(words[words.index("--hf-overrides") + 1])
            asked.append(
                {
                    "model": str(tmp_path / family),
                    "overrides": overrides,
                    "length": found.length,
                    "positions_factor": factor,
                }
            )
            frequencies = found.target.frequencies
            positions = torch.tensor([[1.0], [7.0], [found.length - 1]]).double()
            angles = positions * frequencies.inv_freq.double()
            wanted.append(frequencies.attention_factor * torch.cat((angles.cos(), angles.sin()), 1))
    python = Path(shutil.which("vllm") or "").with_name("python")
    lines = "\n".join(map(json.dumps, asked))
    done = subprocess.run(
        [python, Path(__file__).with_name("vllm_reads.py")],
        input=lines, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    read = [line for line in done.stdout.splitlines() if line.startswith("angles")]
    assert len(read) == len(wanted) == 28
    for line, angles in zip(read, wanted, strict=True):
        computed = torch.tensor(json.loads(line.removeprefix("angles"))).double()
        torch.testing.assert_close(computed, angles, rtol=0, atol=1e-5)
