"""JSON of Every Eval Ever's schema 0.2: every score with its interval and how it was measured.

Where their text is asked for, the samples that are right or wrong lie beside it, one a line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from harness.files import make_folder, replacing
from harness.runs.provenance import command, machines
from harness.share.card import data_set
from harness.share.instances import result_id, write_instances
from harness.share.source import Source
from harness.stats.cells import cells
from harness.stats.measure import SHARES, measure

SCHEMA = "0.2.2"
SAMPLES = "evaluation_samples.jsonl"
UNBOUNDED = sys.float_info.max  # the schema asks for a number


def write(source: Source, out: Path) -> list[Path]:
    """Write ``evaluation.json``, and beside it the samples of questions whose text is asked for.

    Without that text there are no records of samples: each must have that of its question.
    """
    record, frame, table = source.record, source.frame, cells(source.frame)
    lower = {str(task): measure(rows).lower for task, rows in frame.groupby("task")}
    model, sessions = record["model"], record["sessions"]
    started = str(sessions[-1]["started"]) if sessions else "unknown"
    whole: dict[str, Any] = {
        "schema_version": SCHEMA,
        "evaluation_id": f"ropewalk/{model['name']}/{started}",
        "evaluation_timestamp": started,
        "retrieved_timestamp": started,
        "source_metadata": {
            "source_name": "Ropewalk", "source_type": "evaluation_run",
            "source_organization_name": "unknown", "evaluator_relationship": "other",
        },
        "eval_library": {"name": "ropewalk", "version": _version(record)},
        "model_info": {
            "name": model["name"], "id": model["name"], "additional_details": _texts(model),
        },
        "evaluation_results": [
            _result(row, source, lower=lower[row["task"]])
            for row in table[table["score"].notna()].to_dict("records")
        ],
    }  # fmt: skip
    make_folder(out)
    file, samples = out / "evaluation.json", out / SAMPLES
    if source.asked:
        every = ("schema_version", "evaluation_id")
        head = {**{name: whole[name] for name in every}, "model_id": model["name"]}
        whole["detailed_evaluation_results"] = write_instances(samples, source, head)
    with replacing(file) as new:
        new.write(f"{json.dumps(whole, indent=1, allow_nan=False, ensure_ascii=False)}\n".encode())
    return [file, samples] if source.asked else [file]


def _result(row: Mapping[Any, Any], source: Source, *, lower: bool) -> dict[str, Any]:
    task, scaling, metric = row["task"], row["scaling"], row["metric"]
    record, (given, hashes) = source.record, data_set(task, source)
    uncertainty: dict[str, Any] = {"num_samples": int(row["n"])}
    if pd.notna(row["low"]) and pd.notna(row["high"]):
        ends = {"lower": row["low"], "upper": row["high"], "confidence_level": 0.95}
        uncertainty["confidence_interval"] = ends
    least = 0.0 if metric in SHARES or lower else -UNBOUNDED
    return {
        "evaluation_result_id": result_id(task, scaling, row["length"]),
        "evaluation_name": task,
        "source_data": {
            "dataset_name": given, "source_type": "other",
            **({"additional_details": {"sha256": ", ".join(hashes)}} if hashes else {}),
        },
        "metric_config": {
            "metric_name": metric, "lower_is_better": lower, "score_type": "continuous",
            "min_score": least, "max_score": 1.0 if metric in SHARES else UNBOUNDED,
        },
        "score_details": {
            "score": row["score"], "uncertainty": uncertainty,
            "details": _texts(
                {name: row[name] for name in ("scaling", "length", "relative_length", "status")}
            ),
        },
        "generation_config": {
            "generation_args": {"execution_command": command(record)},
            "additional_details": _texts(record["methods"].get(scaling, {}).get("options", {})),
        },
    }  # fmt: skip


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value is not None}


def _version(record: Mapping[str, Any]) -> str:
    every = [one for session in record["sessions"] for one in machines(session)]
    versions = [one.get("versions", {}).get("ropewalk") for one in every]
    return next(filter(None, reversed(versions)), "unknown")
