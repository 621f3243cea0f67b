"""Ask for every single answer twice, by the argmax of its tokens and as a text, on one prompt.

``python -m scripts.answer_forms MODEL DOCUMENT OUT`` writes one row per trial.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch

from harness.data.corpus import make_context
from harness.engine import DEFAULT
from harness.methods.resolve import resolve
from harness.models.checkpoint import open_checkpoint
from harness.models.weights import load_weights
from harness.patching.patch import answering
from harness.plugins import load
from tasks import (
    Generate,
    Generated,
    Loglikelihood,
    LoglikelihoodResponse,
    TaskContext,
    key_value,
    niah,
    passkey,
)

METHODS = ("none", "yarn:factor=4", "self_extend:group=4,window=128")
ONE = ("single_1", "single_2", "single_3", "multikey_1", "multikey_2", "multikey_3")
KEY = ("task", "scaling", "length", "unit")
LENGTHS, TRIALS = (512, 1024), 2
MORE = 2  # tokens of a text after as many as the answer has: they show where it ends


def asked(source: TaskContext, length: int) -> Iterator[tuple[str, Any, Loglikelihood]]:
    """Yield a name, the task and the question by argmax of every trial."""
    for preset in ONE:
        given: Any = {"preset": preset, "form": "argmax", "depths": 1, "trials": TRIALS}
        for question in niah.ask(source, [length], **given):
            assert isinstance(question, Loglikelihood)
            yield f"niah:preset={preset}", niah, question
    for task in (passkey, key_value):
        for question in task.ask(source, [length], depths=1, trials=TRIALS):
            yield task.__name__.rpartition(".")[2], task, question


def as_text(question: Loglikelihood) -> Generate:
    """Return the same prompt as a question for a text."""
    prompt = question.tokens[: question.start]
    new = len(question.tokens) - len(prompt) + MORE
    return Generate(prompt, new, doc_id=question.doc_id, metadata=question.metadata)


def says(answer: str, text: str) -> bool:
    """Return whether a text begins with the answer, which ends there."""
    first = text.lstrip(' "\n')
    return first.startswith(answer) and not first[len(answer) :][:1].isalnum()


def rows(
    model: Any, checkpoint: Any, source: TaskContext, done: set[tuple[str, ...]]
) -> Iterator[dict[str, Any]]:
    """Yield a row of every trial that is not done, a trial of each task after the other."""
    for trial, length in product(range(TRIALS), LENGTHS):
        trials = [one for one in asked(source, length) if one[2].metadata["trial"] == trial]
        for method in METHODS:
            rotation = resolve(load("method", method), checkpoint.rope, length + MORE)
            with answering(model, rotation, DEFAULT, checkpoint.tokenizer.decode) as answer:
                for name, task, question in trials:
                    if (name, method, str(length), question.doc_id) in done:
                        continue
                    forms = dict(answer([question, as_text(question)]))
                    targets, text = forms[0], forms[1]
                    assert isinstance(targets, LoglikelihoodResponse)
                    assert isinstance(text, Generated)
                    sample = task.grade(question, targets, source)
                    wanted = str(question.metadata.get("answer") or question.metadata["key"])
                    yield {
                        "task": name,
                        "scaling": method,
                        "length": length,
                        "unit": question.doc_id,
                        "answer": wanted,
                        "argmax": sample.metadata["found"] == "exact",
                        "generated": says(wanted, text.text),
                        "text": json.dumps(text.text),
                    }


def measured(out: Path) -> set[tuple[str, ...]]:
    """Return the trials of a file, without its last line where a kill cut that short."""
    if not out.exists():
        return set()
    whole = out.read_bytes()
    out.write_bytes(whole[: whole.rfind(b"\n") + 1])
    with out.open(newline="", encoding="utf-8") as file:
        return {tuple(row[key] for key in KEY) for row in csv.DictReader(file)}


def main(name: str, document: str, out: str) -> None:
    """Add the rows of a model as they are measured; one thread, float32."""
    torch.set_num_threads(1)
    checkpoint = open_checkpoint(name, dtype="float32", device="cpu")
    model, tokenizer = load_weights(checkpoint), checkpoint.tokenizer
    text = Path(document).read_text(encoding="utf-8")
    source = make_context(tokenizer, lambda: [("document", text)], checkpoint.rope.trained_length)
    done = measured(Path(out))
    with Path(out).open("a", newline="", encoding="utf-8") as file:
        writer = None
        for row in rows(model, checkpoint, source, done):
            writer = writer or csv.DictWriter(file, list(row), lineterminator="\n")
            if not file.tell():
                writer.writeheader()
            writer.writerow(row)
            file.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
