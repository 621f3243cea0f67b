"""Measure one model by the perplexities of lm-eval, YaRN's script and Ropewalk, side by side.

The table is that of docs/explanation/compared.md. It needs ``pip install '.[lm-eval]'``:

    python -m scripts.compare_protocols FOLDER

The model is the embedded one under ``yarn:factor=4``, exported as a folder that all three read. The
documents are the first 6,000 characters of eight held-out texts.
"""

from __future__ import annotations

import json
import math
import re
import sys
from itertools import islice
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import ropewalk as rw
from harness.data.embedded import held_out

LENGTHS = (256, 512, 1024)
STRIDE = 128  # YaRN's script moves by 256, which is all of this model's trained window
TASK = """task: held_out
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: text
metric_list: [{metric: word_perplexity}]
metadata: {version: 1.0}
"""


def yarn_script(
    model: torch.nn.Module, texts: list[list[int]], begin: int, length: int
) -> tuple[float, float]:
    """Return the perplexity by YaRN's script, and that of the same losses weighted by tokens.

    Written from the description of jquesnelle/yarn's eval/perplexity.py, without its code: windows
    of ``length`` tokens, the begin token included, move by the stride over the whole document. A
    window scores the tokens that the window before did not have. The result is exp of the mean over
    windows of their mean losses, whatever the number of tokens in each.
    """
    means, total, count = [], 0.0, 0
    for tokens in texts:
        scored = 0
        for first in range(0, len(tokens), STRIDE):
            end = min(first + length - 1, len(tokens))
            window = torch.tensor([[begin, *tokens[first:end]]])
            with torch.no_grad():
                logits = model(window).logits[0].double()
            new = min(end - scored, end - first)
            losses = torch.nn.functional.cross_entropy(logits[-new - 1 : -1], window[0, -new:])
            means.append(float(losses))
            total, count, scored = total + float(losses) * new, count + new, end
            if end == len(tokens):
                break
    return math.exp(sum(means) / len(means)), math.exp(total / count)


def lm_eval(folder: Path, length: int) -> float:
    """Return lm-eval's word perplexity in windows of a length, whose last target it leaves out."""
    import lm_eval as harness
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    model = HFLM(
        pretrained=str(folder / "model"), max_length=length - 1, dtype="float32", device="cpu"
    )
    tasks = TaskManager(include_path=str(folder / "task"), include_defaults=False)
    results = harness.simple_evaluate(model, tasks=["held_out"], task_manager=tasks)["results"]
    return float(results["held_out"]["word_perplexity,none"])


def main() -> None:
    """Write documents, model and task into a folder, and print one row per measurement."""
    folder = Path(sys.argv[1]).resolve()
    for name in ("docs", "task"):
        (folder / name).mkdir(parents=True)
    texts = [text[:6_000] for _, text in islice(held_out(), 8)]
    for number, text in enumerate(texts):
        (folder / f"docs/{number}.txt").write_text(text, encoding="utf-8")
    data = folder / "docs.json"
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    (folder / "task/held_out.yaml").write_text(TASK.replace("DATA", str(data)), encoding="utf-8")
    rw.export(
        "reference", scaling="yarn:factor=4", length=1024, to="transformers", out=folder / "model"
    )
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    tokens = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    words = sum(len(re.split(r"\s+", text)) for text in texts)  # as lm-eval counts them
    print(f"{len(texts)} documents, {sum(map(len, tokens)):,} tokens, {words:,} words")

    protocols = ["prefix", "disjoint", f"sliding,stride={STRIDE}"]
    run = rw.run(
        "reference",
        docs=str(folder / "docs"),
        scaling=["yarn:factor=4"],
        length=list(LENGTHS),
        task=["perplexity", *(f"perplexity:protocol={one}" for one in protocols)],
        out=folder / "run",
    )
    frame = run.frame()
    for task, cells in frame.drop_duplicates(["task", "length"]).groupby("task", sort=False):
        row(f"Ropewalk {task}", cells.sort_values("length")["score"].tolist())
    word = [lm_eval(folder, length) for length in LENGTHS]
    row("lm-eval word_perplexity", word)
    row("  the same per token", [one ** (words / sum(map(len, tokens))) for one in word])
    both = [yarn_script(model, tokens, tokenizer.bos_token_id, length) for length in LENGTHS]
    row(f"YaRN's script, stride {STRIDE}", [one for one, _ in both])
    row("  the same, weighted by tokens", [weighted for _, weighted in both])


def row(name: str, values: list[float]) -> None:
    """Print one row of the table."""
    print(f"| {name} | {' | '.join(f'{value:.4g}' for value in values)} |", flush=True)


if __name__ == "__main__":
    main()
