"""Set ``lm_eval`` under ``none`` beside lm-eval's own evaluation of the same loaded model.

``python -m scripts.plain_lm_eval MODEL TASKS LENGTH OUT.csv [LIMIT]`` runs every task of the folder
TASKS, or lm-eval's own task of that name, both ways on at most LIMIT documents, and writes one row
per document with its hashes and both of its metrics.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import ropewalk as rw
from harness.models.checkpoint import open_checkpoint
from harness.models.weights import load_weights

HASHES = ("doc_hash", "prompt_hash", "target_hash")


def plain(
    model: Any, tokenizer: Any, folder: str | None, names: list[str], length: int, limit: int | None
) -> dict[str, Any]:
    """Return what lm-eval gives of the tasks; its windows end before the last target."""
    import lm_eval
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    lm = HFLM(pretrained=model, tokenizer=tokenizer, max_length=length - 1, batch_size=1)
    with tempfile.TemporaryDirectory() as place:
        tokenizer.save_pretrained(place)
        metadata = {"max_seq_lengths": [length], "tokenizer": place}
        manager = TaskManager(
            include_path=folder, include_defaults=folder is None, metadata=metadata
        )
        results: dict[str, Any] = lm_eval.simple_evaluate(
            lm, tasks=names, task_manager=manager, bootstrap_iters=0, limit=limit
        )
    return results


def rows(frame: Any, results: dict[str, Any], names: list[str]) -> Iterator[dict[str, Any]]:
    """Yield a row of every document: same hashes, both metrics and scores."""
    for name in names:
        own = frame[frame["task"].str.contains(name)].set_index("doc")
        metric = str(own["metric"].iloc[0])
        if f"{metric},none" not in own:  # RULER's are named by their length
            metric = str(own["length"].iloc[0])
        score = results["results"][name][f"{metric},none"]
        for sample in results["samples"][name]:
            row = own.loc[sample["doc_id"]]
            theirs = sample[metric]
            first = theirs[0] if isinstance(theirs, tuple) else theirs
            ours = row[f"{metric},none"]
            yield {
                "task": name,
                "doc": sample["doc_id"],
                "metric": metric,
                "same_hashes": all(row[kind] == sample[kind] for kind in HASHES),
                "ours": ours[0] if isinstance(ours, list) else ours,
                "lm_eval": first,
                "score_ours": row["score"],
                "score_lm_eval": score,
                **{kind: row[kind] for kind in HASHES},
            }


def main(name: str, tasks: str, length: str, out: str, limit: str = "") -> None:
    """Load the model once, float32 on one thread, and compare."""
    torch.set_num_threads(1)
    folder = tasks if Path(tasks).is_dir() else None
    names = sorted(path.stem for path in Path(folder).glob("*.yaml")) if folder else [tasks]
    options = [f"tasks={'+'.join(names)}", *([f"include={folder}"] if folder else [])]
    options += [f"limit={limit}"] if limit else []
    checkpoint = open_checkpoint(name, dtype="float32", device="cpu")
    model, tokenizer = load_weights(checkpoint), checkpoint.tokenizer
    with tempfile.TemporaryDirectory() as scratch:
        run = rw.run(
            model,
            tokenizer=tokenizer,
            scaling=["none"],
            length=[length],
            out=f"{scratch}/run",
            task=[f"lm_eval:{','.join(options)}"],
        )
        frame = run.frame()
    most = int(limit) if limit else None
    theirs = plain(model, tokenizer, folder, names, int(length), most)
    compared = list(rows(frame, theirs, names))
    with Path(out).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(compared[0]))
        writer.writeheader()
        writer.writerows(compared)


if __name__ == "__main__":
    main(*sys.argv[1:])
