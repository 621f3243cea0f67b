"""JSON of Every Eval Ever's schema 0.2: every score with its interval and how it was measured.

If the text of requests is wanted, the samples that are right or wrong are written beside it, one
per line. The text of a request is decoded from the tokens that the model read, and nothing is cut
out of it or its answers; everything else is cleaned, including what the model wrote. A sample
without a number has no line, because the schema requires a score. A request that several methods
share has one line per method.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pandas as pd

from harness.errors import UserError
from harness.files import make_folder, replacing
from harness.plugins import call
from harness.runs.provenance import command, machines
from harness.share.card import data_set
from harness.share.public import PublicRun
from harness.stats.cells import cells
from harness.stats.measure import SHARES, measure
from tasks._retrieval import SHOWN
from tasks.types import Generate, Group, Request

if TYPE_CHECKING:
    from harness.sweep.rerun import RequestedTask

SCHEMA = "0.2.2"
SAMPLES = "evaluation_samples.jsonl"
UNBOUNDED = sys.float_info.max  # the schema requires a number
REQUEST = ["task", "length", "question"]
OUTPUT = ("argmax", "said")  # the facts that hold the model's output


def write(run: PublicRun, out: Path) -> list[Path]:
    """Write ``evaluation.json``, and the samples of requests whose text is published."""
    record, frame, table = run.record, run.frame, cells(run.frame)
    lower = {str(task): measure(rows).lower for task, rows in frame.groupby("task")}
    name, sessions = record["model"]["name"], record["sessions"]
    started = str(sessions[-1]["started"]) if sessions else "unknown"
    head = {"schema_version": SCHEMA, "evaluation_id": f"ropewalk/{name}/{started}"}
    evaluation: dict[str, Any] = {
        **head,
        "evaluation_timestamp": started,
        "retrieved_timestamp": started,
        "source_metadata": {
            "source_name": "Ropewalk",
            "source_type": "evaluation_run",
            "source_organization_name": "unknown",
            "evaluator_relationship": "other",
        },
        "eval_library": {"name": "ropewalk", "version": _version(record)},
        "model_info": {"name": name, "id": name, "additional_details": _texts(record["model"])},
        "evaluation_results": [
            _result(row, run, lower=lower[row["task"]])
            for row in table[table["score"].notna()].to_dict("records")
        ],
    }
    make_folder(out)
    files = [out / "evaluation.json"]
    if run.requests:
        files.append(out / SAMPLES)
        details = _write_samples(out / SAMPLES, run, {**head, "model_id": name})
        evaluation["detailed_evaluation_results"] = details
    with replacing(files[0]) as file:
        text = json.dumps(evaluation, indent=1, allow_nan=False, ensure_ascii=False)
        file.write(f"{text}\n".encode())
    return files


def _result(row: Mapping[Any, Any], run: PublicRun, *, lower: bool) -> dict[str, Any]:
    task, scaling, metric = row["task"], row["scaling"], row["metric"]
    documents, hashes = data_set(task, run)
    data: dict[str, Any] = {"dataset_name": documents, "source_type": "other"}
    if hashes:
        data["additional_details"] = {"sha256": ", ".join(hashes)}
    uncertainty: dict[str, Any] = {"num_samples": int(row["n"])}
    if pd.notna(row["low"]) and pd.notna(row["high"]):
        ends = {"lower": row["low"], "upper": row["high"], "confidence_level": 0.95}
        uncertainty["confidence_interval"] = ends
    details = {name: row[name] for name in ("scaling", "length", "relative_length", "status")}
    return {
        "evaluation_result_id": _result_id(task, scaling, row["length"]),
        "evaluation_name": task,
        "source_data": data,
        "metric_config": {
            "metric_name": metric,
            "lower_is_better": lower,
            "score_type": "continuous",
            "min_score": 0.0 if metric in SHARES or lower else -UNBOUNDED,
            "max_score": 1.0 if metric in SHARES else UNBOUNDED,
        },
        "score_details": {
            "score": row["score"],
            "uncertainty": uncertainty,
            "details": _texts(details),
        },
        "generation_config": {
            "generation_args": {"execution_command": command(run.record)},
            "additional_details": _texts(run.record["methods"].get(scaling, {}).get("options", {})),
        },
    }


def _result_id(task: str, scaling: str, length: int) -> str:
    """Return the id by which a sample names the score that it is a part of."""
    return f"{task}/{scaling}/{length}"


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value is not None}


def _version(record: Mapping[str, Any]) -> str:
    every = [machine for session in record["sessions"] for machine in machines(session)]
    versions = [machine.get("versions", {}).get("ropewalk") for machine in every]
    return next(filter(None, reversed(versions)), "unknown")


# Samples with the text of their requests.


def graded_tasks(frame: pd.DataFrame) -> list[str]:
    """Return the tasks whose samples are right or wrong, or right in parts.

    Raises UserError where there is none.
    """
    measures = {str(task): measure(rows) for task, rows in frame.groupby("task", sort=False)}
    graded = [task for task, how in measures.items() if how.share and not how.lower]
    if not graded:
        raise UserError(
            f"no samples of {', '.join(measures)} are right or wrong; publish without --samples."
        )
    return graded


def _write_samples(file: Path, run: PublicRun, head: Mapping[str, Any]) -> dict[str, Any]:
    """Write the samples, each with the fields of ``head``; return the description of the file."""
    checksum, rows = hashlib.sha256(), 0
    with replacing(file) as new:
        for sample in _samples(run):
            text = json.dumps({**head, **sample}, allow_nan=False, ensure_ascii=False)
            line = text.encode() + b"\n"
            new.write(line)
            checksum.update(line)
            rows += 1
    return {
        "format": "jsonl",
        "file_path": file.name,
        "hash_algorithm": "sha256",
        "checksum": checksum.hexdigest(),
        "total_rows": rows,
    }


def _samples(run: PublicRun) -> Iterator[dict[str, Any]]:
    """Yield the samples, those of one request together, so that its text is decoded once."""
    frame = run.frame
    scored = frame[frame["task"].isin(list(run.requests)) & (frame["status"] == "ok")]
    scored = scored[scored["score"].notna()]
    keys = {(one["task"], one["scaling"], one["length"]): one["key"] for one in run.record["cells"]}
    samples = {(one["cell"], one["question"]): one for one in run.samples}
    for place, rows in scored.groupby(REQUEST, sort=False):
        task, length, digest = cast("tuple[str, int, str]", place)
        requested, version = run.requests[task], run.record["tasks"][task]["version"]
        request = requested.requests[digest]
        shown = _input(requested, request)
        both = {name: shown[name] for name in ("raw", "reference")}
        recipe = json.dumps(both, sort_keys=True, separators=(",", ":"))  # of other adapters, too
        for scaling, value in zip(rows["scaling"], rows["value"], strict=True):
            sample = samples[keys[task, scaling, length], digest]
            if "shares" in sample["facts"]:
                raise UserError(
                    f"{task} asks several prompts per trial, and a line of this format holds one: "
                    "publish without --samples."
                )
            yield {
                "evaluation_name": task,
                "evaluation_result_id": _result_id(task, scaling, length),
                "sample_id": f"{sample['unit']}/{length}",
                "sample_hash": hashlib.sha256(recipe.encode()).hexdigest(),
                "interaction_type": "single_turn",
                "input": shown,
                **_output(request, sample["facts"], f"{task.partition(':')[0]}.grade", version),
                "evaluation": {"score": value, "is_correct": value == 1},
                "metadata": _metadata(requested, request, sample, scaling),
            }


def _input(requested: RequestedTask, request: Request) -> dict[str, Any]:
    """Return the text of a request and its answers.

    In a chat the text is the user's message, and ``formatted`` what the template makes of it. If
    there are several parts, it is their common beginning, and the choices are what follows in each.
    """
    decode, opening, parts = (
        requested.source.decode,
        requested.source.opening,
        request.model_requests,
    )
    together = zip(*(part.tokens[: part.start] for part in parts), strict=False)
    prompt = [same[0] for same in takewhile(lambda tokens: len(set(tokens)) == 1, together)]
    shown: dict[str, Any]
    if requested.task.options.get("chat"):
        whole = decode(prompt)
        shown = {"raw": _message(requested, request, prompt, whole), "formatted": whole}
    else:
        first = len(opening) if tuple(prompt[: len(opening)]) == opening else 0
        shown = {"raw": decode(prompt[first:])}
    choices = [decode(part.tokens[len(prompt) :]).strip() for part in parts]
    shown["reference"] = _answers(requested, request, choices)
    return shown | ({"choices": choices} if len(parts) > 1 else {})


def _message(requested: RequestedTask, request: Request, prompt: Sequence[int], text: str) -> str:
    """Return the user's message in a prompt; raise UserError where the template is not found."""
    before, after = map(requested.source.decode, requested.source.chat("")[:2])
    # Where the parts differ earlier, the message itself does.
    ends = len(prompt) == request.start
    # lm-eval's answers begin with the space.
    end = text.rfind(after.rstrip()) if ends else len(text)
    if not text.startswith(before) or end < len(before):
        raise UserError(
            f"{requested.task.label}, {request.doc_id}: its chat template is not found in its text."
        )
    return text[len(before) : end]


def _answers(requested: RequestedTask, request: Request, choices: Sequence[str]) -> list[str]:
    """Return the answers that count, by default the targets.

    The module that grades knows them: ``answers`` is defined beside ``grade``, also where tasks
    share both.
    """
    answers = getattr(inspect.getmodule(requested.task.module.grade), "answers", None)
    if answers is None:
        return [] if isinstance(request, Generate | Group) else list(choices)

    def texts() -> list[str]:
        every = answers(request, requested.source)
        return [choices[one] if isinstance(one, int) else str(one) for one in every]

    return call(f"task {requested.task.label}", texts)


def _output(
    request: Request, facts: Mapping[str, Any], grader: str, version: int
) -> dict[str, Any]:
    """Return what the model wrote, how it was graded, and its tokens where they are known."""
    written: Any = next((facts[name] for name in OUTPUT if name in facts), [])
    group = isinstance(request, Group)
    if isinstance(written, str):
        texts = [written if group else written[:SHOWN]]
    else:
        texts = list(map(str, written))
    graded = {
        "turn_idx": 0,
        "source": "output.raw",
        "extracted_value": texts[0] if texts else "",
        "extraction_method": f"{grader}, version {version}",
        "is_terminal": True,
    }
    output: dict[str, Any] = {
        "output": {"raw": texts},
        "answer_attribution": [] if group or not texts else [graded],
    }
    if not isinstance(request, Generate | Group):
        output["token_usage"] = {
            "input_tokens": request.start,
            "output_tokens": request.length - request.start,
            "total_tokens": request.length,
        }
    return output


def _metadata(
    requested: RequestedTask, request: Request, sample: Mapping[str, Any], scaling: str
) -> dict[str, str]:
    facts = sample["facts"]
    return _texts(
        {
            **{name: fact for name, fact in facts.items() if name not in (*OUTPUT, "answer")},
            "scaling": scaling,
            "output": _kind_of_output(request, facts),
            "chat_template": "applied" if requested.task.options.get("chat") else None,
            **{name: sample[name] for name in ("length", "frequencies", "question")},
        }
    )


def _kind_of_output(request: Request, facts: Mapping[str, Any]) -> str | None:
    """Describe an output that is not the whole text that the model wrote."""
    said = facts.get("said")
    if isinstance(request, Group):
        return None if isinstance(said, str) else "the log-probability of every choice, nats"
    if not isinstance(request, Generate):
        return "the most likely token at every position of the answer, given those before it"
    if len(str(said)) == SHOWN:  # a run of an earlier version has no mark where it was cut
        return f"the whole text or its first {SHOWN} characters"
    return f"the first {SHOWN} characters" if len(str(said)) > SHOWN else None
