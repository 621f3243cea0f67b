"""The samples of Every Eval Ever's schema 0.2: one line a sample that is right or wrong, with text.

The text of a question is decoded from the tokens that the model read, and nothing is cut out of it
or its answers; all else is cleaned, what the model said too. A sample without a number has
no line: the schema wants a score of each. Of a question that several methods share each has a line,
as each has a score.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from harness.errors import UserError
from harness.files import replacing
from harness.plugins import call
from harness.share.source import Source
from harness.stats.measure import measure
from tasks._retrieval import SHOWN
from tasks.types import Generate, Group, Request

if TYPE_CHECKING:
    from harness.sweep.rerun import Asked

QUESTION = ["task", "length", "question"]
SAID = ("argmax", "said")  # the facts that hold what the model said
LOGPROBS = "the log-probability of every choice, nats"
SEVERAL = "a line of this format holds one: publish without --samples."
LIKELIEST = (
    "the most likely token at every place of the answer, given those of the answer before it"
)


def answered(frame: pd.DataFrame) -> list[str]:
    """Return the tasks whose samples are right or wrong, or right in parts.

    Raises UserError where there is none.
    """
    measures = {str(task): measure(rows) for task, rows in frame.groupby("task", sort=False)}
    found = [task for task, how in measures.items() if how.share and not how.lower]
    if not found:
        raise UserError(
            f"no samples of {', '.join(measures)} are right or wrong; publish without --samples."
        )
    return found


def result_id(task: str, scaling: str, length: int) -> str:
    """Return by what a sample names the score that it is a part of."""
    return f"{task}/{scaling}/{length}"


def write_instances(file: Path, source: Source, head: Mapping[str, Any]) -> dict[str, Any]:
    """Write the samples; return what the scores say of the file.

    ``head`` are the fields that every line has.
    """
    checksum, rows = hashlib.sha256(), 0
    with replacing(file) as new:
        for told in _lines(source):
            line = (
                json.dumps({**head, **told}, allow_nan=False, ensure_ascii=False).encode() + b"\n"
            )
            new.write(line)
            checksum.update(line)
            rows += 1
    return {
        "format": "jsonl", "file_path": file.name, "hash_algorithm": "sha256",
        "checksum": checksum.hexdigest(), "total_rows": rows,
    }  # fmt: skip


def _lines(source: Source) -> Iterator[dict[str, Any]]:
    """Yield the samples, those of one question together, so that its text is decoded once."""
    frame = source.frame
    scored = frame[frame["task"].isin(list(source.asked)) & (frame["status"] == "ok")]
    rows: dict[tuple[str, int, str], list[tuple[str, float]]] = {}
    columns = scored.loc[scored["score"].notna(), [*QUESTION, "scaling", "value"]]
    for *place, scaling, value in columns.itertuples(index=False, name=None):
        rows.setdefault(tuple(place), []).append((scaling, value))
    keys = {(one["task"], one["scaling"], one["length"]): one for one in source.record["cells"]}
    samples = {(one["cell"], one["question"]): one for one in source.samples}
    for (task, length, digest), values in rows.items():
        asked, version = source.asked[task], source.record["tasks"][task]["version"]
        question = asked.questions[digest]
        shown = _input(asked, question)
        method = f"{task.partition(':')[0]}.grade, version {version}"
        for scaling, value in values:
            sample = samples[keys[task, scaling, length]["key"], digest]
            if "shares" in sample["facts"]:
                raise UserError(f"{task} asks several prompts a trial, and {SEVERAL}")
            yield {
                "evaluation_name": task,
                "evaluation_result_id": result_id(task, scaling, length),
                "sample_id": f"{sample['unit']}/{length}",
                "sample_hash": _hash(shown),
                "interaction_type": "single_turn",
                "input": shown,
                **_output(question, sample["facts"], method),
                "evaluation": {"score": value, "is_correct": value == 1},
                "metadata": _metadata(asked, question, sample, scaling),
            }


def _input(asked: Asked, question: Request) -> dict[str, Any]:
    """Return the text of a question and its answers.

    In a chat the text is the user's message, and ``formatted`` what the template makes of it. Of
    several requests it is what they begin with, and the choices are what follows in each.
    """
    decode, opening = asked.source.decode, asked.source.opening
    parts = question.model_requests
    together = zip(*(part.tokens[: part.start] for part in parts), strict=False)
    prompt = [same[0] for same in takewhile(lambda tokens: len(set(tokens)) == 1, together)]
    shown: dict[str, Any]
    if asked.task.options.get("chat"):
        whole = decode(prompt)
        ends = len(prompt) == question.start  # the message itself may differ in the requests
        shown = {"raw": _message(asked, question, whole, ends=ends), "formatted": whole}
    else:
        first = len(opening) if tuple(prompt[: len(opening)]) == opening else 0
        shown = {"raw": decode(prompt[first:])}
    choices = [decode(part.tokens[len(prompt) :]).strip() for part in parts]
    shown["reference"] = _answers(asked, question, choices)
    return shown | ({"choices": choices} if len(parts) > 1 else {})


def _message(asked: Asked, question: Request, text: str, *, ends: bool) -> str:
    """Return the user's message in a prompt; raise UserError where the template is not found."""
    before, after = map(asked.source.decode, asked.source.chat("")[:2])
    end = (
        text.rfind(after.rstrip()) if ends else len(text)
    )  # lm-eval's answers begin with the space
    if not text.startswith(before) or end < len(before):
        raise UserError(
            f"{asked.task.label}, {question.doc_id}: its chat template is not found in its text."
        )
    return text[len(before) : end]


def _answers(asked: Asked, question: Request, choices: Sequence[str]) -> list[str]:
    """Return the answers that count, by default the targets.

    What grades knows them: ``answers`` lies beside ``grade``, also where tasks share both.
    """
    told = getattr(inspect.getmodule(asked.task.module.grade), "answers", None)
    if told is None:
        return [] if isinstance(question, Generate | Group) else list(choices)

    def texts() -> list[str]:
        every = told(question, asked.source)
        return [choices[one] if isinstance(one, int) else str(one) for one in every]

    return call(f"task {asked.task.label}", texts)


def _hash(shown: Mapping[str, Any]) -> str:
    """Return the hash of a question and its answers, by the recipe that joins adapters' samples."""
    both = {name: shown[name] for name in ("raw", "reference")}
    text = json.dumps(both, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _output(question: Request, facts: Mapping[str, Any], method: str) -> dict[str, Any]:
    """Return what the model said, how it was graded, and its tokens where they are known."""
    said: Any = next((facts[name] for name in SAID if name in facts), [])
    if isinstance(said, str) and _is_cut(question, said):
        said = said[:SHOWN]
    texts = [said] if isinstance(said, str) else list(map(str, said))
    graded = [] if isinstance(question, Group) or not texts else [
        {
            "turn_idx": 0, "source": "output.raw", "extracted_value": texts[0],
            "extraction_method": method, "is_terminal": True,
        }
    ]  # fmt: skip
    usage = {}
    if not isinstance(question, Generate | Group):
        new = question.length - question.start
        names = ("input_tokens", "output_tokens", "total_tokens")
        usage = dict(zip(names, (question.start, new, question.length), strict=True))
    return {
        "output": {"raw": texts},
        "answer_attribution": graded,
        **({"token_usage": usage} if usage else {}),
    }


def _metadata(
    asked: Asked, question: Request, sample: Mapping[str, Any], scaling: str
) -> dict[str, str]:
    facts = {name: one for name, one in sample["facts"].items() if name not in (*SAID, "answer")}
    told = {
        **facts,
        "scaling": scaling,
        "output": _of_output(question, sample["facts"]),
        "chat_template": "applied" if asked.task.options.get("chat") else None,
        **{name: sample[name] for name in ("length", "frequencies", "question")},
    }
    return {name: str(value) for name, value in told.items() if value is not None}


def _of_output(question: Request, facts: Mapping[str, Any]) -> str | None:
    """Say what the output is, where it is not the whole text that the model wrote."""
    if isinstance(question, Group):
        return None if isinstance(facts.get("said"), str) else LOGPROBS
    if not isinstance(question, Generate):
        return LIKELIEST
    said = str(facts.get("said", ""))
    if len(said) == SHOWN:  # a run of an earlier version has no mark where it cut
        return f"the whole text or its first {SHOWN} characters"
    return f"the first {SHOWN} characters" if _is_cut(question, said) else None


def _is_cut(question: Request, said: str) -> bool:
    """Return whether a record keeps only the beginning of what was said; of parts it keeps all."""
    return not isinstance(question, Group) and len(said) > SHOWN
