"""What a text says twice counts twice, from the command line to the score."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from harness.cli.app import main
from harness.runs.frame import make_frame
from tests.tiny import tiny_tokenizer


def run(model: Path, docs: Path, out: Path, task: str, *more: str) -> Path:
    words = ["run", "--model", str(model), "--docs", str(docs), "--out", str(out), "--task", task]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--length", "48", "--scaling", "none", *more])
    assert ended.value.code == 0
    return out


@pytest.mark.slow
def test_equal_windows_of_a_document_all_count(tiny: Path, tmp_path: Path) -> None:
    """A refrain of 32 tokens under windows 32 apart: the score is that of the plain loop.

    Counted once, the windows of the refrain would weigh as much as one.
    """
    verse = "the rope is long and tar is old"
    text = f"{verse}\n" * 9 + "then the strand was cut, and none of it was ever seen again."
    (tmp_path / "song.txt").write_text(text)
    out = run(tiny, tmp_path / "song.txt", tmp_path / "run", "perplexity:protocol=press,stride=32")
    model = AutoModelForCausalLM.from_pretrained(tiny).eval()
    tokens = tiny_tokenizer()(text, add_special_tokens=False)["input_ids"]
    nll, seen, windows = 0.0, 0, 0
    for end in [47, *range(47 + 32, len(tokens), 32), len(tokens)]:
        inputs = torch.tensor([[0, *tokens[end - 47 : end]]])
        labels = inputs.clone()
        labels[:, : -(end - seen)] = -100
        with torch.inference_mode():
            nll += float(model(inputs, labels=labels).loss) * (end - seen)
        seen, windows = end, windows + 1
    frame = make_frame([out])
    assert len(frame) == windows
    assert frame["weight"].sum() == len(tokens)
    assert frame["score"].iloc[0] == pytest.approx(math.exp(nll / len(tokens)), rel=1e-5)


@pytest.mark.slow
def test_documents_that_begin_alike_are_each_a_document(tiny: Path, tmp_path: Path) -> None:
    """Three texts that differ after the window are three, with an interval; again costs nothing."""
    (tmp_path / "docs").mkdir()
    for index in range(3):
        (tmp_path / "docs" / f"{index}.txt").write_text("the same preface to " * 4 + str(index))
    given = tiny, tmp_path / "docs", tmp_path / "run", "perplexity:protocol=prefix"
    out = run(*given)
    frame = make_frame([out])
    assert sorted(frame["unit"]) == ["0.txt", "1.txt", "2.txt"]
    assert frame["n"].tolist() == [3, 3, 3]
    assert frame["value"].nunique() == 1
    before = (out / "samples.jsonl").read_bytes()
    run(*given)
    assert (out / "samples.jsonl").read_bytes() == before
    [asked] = json.loads((out / "run.json").read_text())["tasks"].values()
    assert len(set(asked["questions"]["48"])) == 3
