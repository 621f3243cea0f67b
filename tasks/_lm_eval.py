"""The documents of a task of lm-evaluation-harness as questions, and their grades."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from hashlib import sha256
from typing import Any
from weakref import WeakKeyDictionary

from tasks._lm_eval_ask import asker
from tasks._lm_eval_grade import Doc, chosen_filter, chosen_metric, grade, made_of
from tasks._lm_eval_load import (
    FEWSHOT_SEED,
    Wanted,
    code_digest,
    drawing,
    load_task,
    version,
    working,
)
from tasks.types import Fact, Group, GroupResponse, ModelRequest, TaskContext

_OPENED: WeakKeyDictionary[TaskContext, dict[Wanted, Opened]] = WeakKeyDictionary()


def opened(source: TaskContext, wanted: Wanted) -> Opened:
    """Return a task as it is asked with these options, opened once."""
    known = _OPENED.setdefault(source, {})
    if wanted not in known:
        known[wanted] = Opened(source.tokenizer, wanted)
    return known[wanted]


def graded(
    source: TaskContext, question: Group, answer: GroupResponse
) -> tuple[float, int, dict[str, Fact]]:
    """Return value, weight and facts of a document, by the task's own filters and metric."""
    return grade(_document(source, question), answer)


def targets(source: TaskContext, question: Group) -> list[str | int]:
    """Return the target of a document as text; of several parts, the place of the right one."""
    document = _document(source, question)
    task, doc = document.task, document.requests[0][0].doc
    with working(task.task_name, "ask"):
        inputs = getattr(task, "multiple_input", False)  # then the text that differs is the choice
        gold = task.doc_to_text(doc) if inputs else task.doc_to_target(doc)
        choices = task.doc_to_choice(doc) if task.get_config("doc_to_choice") is not None else ()
    texts, several = dict(enumerate(choices)), gold if isinstance(gold, list) else [gold]
    if len(question.model_requests) > 1:
        return [one if one in texts else str(one) for one in several]
    return [str(texts.get(one, one)) for one in several]


def _document(source: TaskContext, question: Group) -> Doc:
    every = _OPENED[source].values()
    return next(one.known[question.digest] for one in every if question.digest in one.known)


class Opened:
    """A task with its documents at every length, each made once."""

    def __init__(self, tokenizer: Any, wanted: Wanted) -> None:
        self.tokenizer, self.wanted = tokenizer, wanted
        self.task: Any = None
        self.made: dict[tuple[int, int], list[Doc]] = {}
        self.known: dict[str, Doc] = {}  # by the digest of the question

    def documents(self, length: int, seed: int) -> list[Doc]:
        """Return the documents at a length; raise ValueError where they cannot be asked."""
        if (length, seed) not in self.made:
            with drawing(seed):
                # Only a task that makes its documents differs with the length.
                if self.task is None or callable(self.task.get_config("custom_dataset")):
                    self.task = load_task(self.wanted, self.tokenizer, length)
                self.task.set_fewshot_seed(seed=FEWSHOT_SEED + seed)
                found = self._documents(length)
            self.made[length, seed] = found
            self.known |= {document.question.digest: document for document in found}
        return self.made[length, seed]

    def about(self, unnamed: str) -> dict[str, Any]:
        """Return what the record says: the metric, lm-eval's versions and hashes."""
        documents = next(iter(self.made.values()))
        metric = documents[0].metric
        template = getattr(self.tokenizer, "chat_template", None) if self.wanted.chat else None
        hashes = {
            str(length): _hash("".join(_hashes(one.question) for one in found))
            for (length, _), found in self.made.items()
        }
        return {
            "metric": unnamed if metric.isdigit() else metric,
            "lm_eval": {
                "version": version(),
                "task_version": self.task.VERSION,
                "config_hash": self.config_hash(),
                "task_hashes": hashes,  # of the samples of a length, as in lm-eval's results
                "chat_template_sha": template and _hash(str(template)),
                "num_fewshot": self.task.get_config("num_fewshot"),
            },
        }

    def config_hash(self) -> str:
        """Return a hash of the task's settings, less the length and the tokenizer it was given."""
        config = {k: v for k, v in self.task.dump_config().items() if k != "metadata"}
        text = json.dumps(config, default=lambda value: type(value).__name__, sort_keys=True)
        return _hash(text + code_digest(self.wanted.include))[:16]

    def _documents(self, length: int) -> list[Doc]:
        wanted, name = self.wanted, self.wanted.tasks
        with working(name, "ask"):
            ask = asker(self.tokenizer, length)
            template = ask.lm.apply_chat_template if wanted.chat else None  # type: ignore[attr-defined]
            self.task.build_all_requests(
                limit=wanted.limit or None, apply_chat_template=wanted.chat,
                fewshot_as_multiturn=True, chat_template=template,
            )  # fmt: skip
        metric, keep = chosen_metric(self.task, wanted, length), chosen_filter(self.task, wanted)
        requests: dict[int, list[Any]] = defaultdict(list)
        for request in self.task.instances:
            requests[request.doc_id].append(request)
        by = f"{version()} {self.config_hash()} {metric} {keep}"
        found = []
        for number, group in requests.items():
            group.sort(key=lambda request: request.idx)
            with working(name, "ask"):
                parts = [ask(request) for request in group]
                facts = self._facts(number, group[0], metric)
            question = _question(f"document {number}", length, sum(parts, ()), facts, by)
            kept = tuple(zip(group, map(len, parts), strict=True))
            found.append(Doc(self.task, kept, metric, keep, question))
        return found

    def _facts(self, number: int, request: Any, metric: str) -> dict[str, Fact]:
        """Return the hashes by which lm-eval's own samples are joined."""
        from lm_eval.utils import handle_non_serializable

        told = json.dumps(
            request.doc, indent=2, default=handle_non_serializable, ensure_ascii=False
        )
        return {
            "doc": number,
            "doc_hash": _hash(told),
            "prompt_hash": _hash(request.arguments[0]),
            "target_hash": _hash(str(self.task.doc_to_target(request.doc))),
            "made": made_of(self.task, metric),
        }


def _question(
    unit: str, length: int, parts: Sequence[ModelRequest], facts: dict[str, Fact], by: str
) -> Group:
    """Return the question of a document; what decides its grade beside the answer is in ``by``."""
    if not parts:
        raise ValueError(f"{unit} has no text")
    by = " ".join([by, *map(str, facts.values())])
    return Group(tuple(parts), doc_id=unit, metadata=facts, cell=length, graded_by=by)


def _hashes(question: Group) -> str:
    return "".join(str(question.metadata[f"{what}_hash"]) for what in ("doc", "prompt", "target"))


def _hash(text: str) -> str:
    return sha256(text.encode()).hexdigest()
