"""A task of lm-evaluation-harness: its prompts, metrics and versions (EleutherAI, 0.4.13 on).

A document is one sample. lm-eval's own code makes its tokens, and its filters and metric grade it.
``tasks=a+b`` measures both, each with its own score.

The length of a cell is the available space. A task that generates its documents (RULER's) gets the
length. A document whose prompt and answer do not fit has the status too_long. Differs from lm-eval,
which truncates such a prompt on the left.
"""

from __future__ import annotations

import io
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from ropewalk.tasks._intervals import proportion, ratio
from ropewalk.tasks.types import (
    CodeFolder,
    Fact,
    Generate,
    Generated,
    Group,
    GroupResponse,
    Loglikelihood,
    LoglikelihoodResponse,
    ModelRequest,
    Sample,
    Score,
    TaskContext,
)

VERSION = 1
EXAMPLE_OPTIONS = "tasks=hellaswag,limit=50"
METRIC = "recall"  # of RULER's tasks, whose metrics are named for lengths; else the task's own
NUMPY_SEED = FEWSHOT_SEED = 1234  # of lm-eval by default, beside 0 for Python's random
NO_LIMIT = 2**40  # tokens; more than any prompt, so that nothing is cut
# What is left of a task's generation settings where the answer is greedy.
GREEDY = {"attention_mask", "do_sample", "temperature", "top_p", "top_k", "min_p"}
# Metrics of which less is better, as the reports know them; more is better of all others.
LOWER = {"perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte"}


@dataclass(frozen=True, kw_only=True)
class Document(Group):
    """A document of a task of lm-eval, with what grades it; ``instances`` are its requests."""

    task: Any
    lm: Any
    instances: tuple[Any, ...]
    metric: str
    filter: str


def ask(
    context: TaskContext,
    lengths: Sequence[int],
    *,
    seed: int = 0,
    tasks: str = "",
    limit: int = 0,
    num_fewshot: int | None = None,
    metric: str = "",
    filter: str = "",
    include: CodeFolder = CodeFolder(""),  # noqa: B008  # a text
    chat: bool = False,
) -> Iterator[Document]:
    """Yield the first ``limit`` documents of a task at every length, 0 for all.

    ``metric`` is one of the task's metrics, by default its first; its score must be made of one
    value per document. ``filter`` is one of the task's filters, by default the first. ``include``
    is a folder with YAML files of your own tasks, in place of lm-eval's; their functions are
    executed. ``chat`` applies the chat template as lm-eval does. Seed 0 draws like lm-eval's
    default. Raises ValueError for tasks that cannot run.
    """
    import numpy as np

    try:
        from lm_eval.utils import handle_non_serializable, hash_string
    except ModuleNotFoundError as error:
        raise ValueError(f"{error}; pip install 'ropewalk[lm-eval]'") from error
    task, lm = None, _model(context.tokenizer)
    for length in lengths:
        random.seed(seed)
        np.random.seed(NUMPY_SEED + seed)  # noqa: NPY002  # what tasks draw from
        # Only a task that makes its documents differs with the length.
        if task is None or callable(task.get_config("custom_dataset")):
            task = _load(tasks, num_fewshot, include, context.tokenizer, length)
        task.set_fewshot_seed(seed=FEWSHOT_SEED + seed)
        with _quiet():
            task.build_all_requests(
                limit=limit or None,
                apply_chat_template=chat,
                fewshot_as_multiturn=True,
                chat_template=lm.apply_chat_template if chat else None,
            )
        filters = [ensemble.name for ensemble in task._filters]
        if filter and filter not in filters:
            raise ValueError(f"{tasks} has no filter {filter}; it has {', '.join(filters)}")
        chosen = _chosen_metric(task, metric, length), filter or filters[0]
        settings = " ".join([_hash_of_settings(task, include), *chosen])
        instances = sorted(task.instances, key=lambda instance: (instance.doc_id, instance.idx))
        for number, group in groupby(instances, key=lambda instance: instance.doc_id):
            document, asked = tuple(group), list[ModelRequest]()
            for instance in document:
                lm.reply(instance, length, asked, iter(()))
            doc = json.dumps(
                document[0].doc, indent=2, default=handle_non_serializable, ensure_ascii=False
            )
            doc_hash = hash_string(doc)  # by which lm-eval's own samples are joined
            yield Document(
                tuple(asked),
                doc_id=f"document {number}",
                metadata={"doc": number, "doc_hash": doc_hash, "made": _made(task, chosen[0])},
                cell=length,
                graded_by=f"{settings} {number} {doc_hash}",
                task=task,
                lm=lm,
                instances=document,
                metric=chosen[0],
                filter=chosen[1],
            )


def about(requests: Sequence[Document], **_: Any) -> Mapping[str, Any]:
    """Return what the record says of the task: its metric, its version, its examples."""
    task, metric = requests[0].task, requests[0].metric
    version = {"task_version": task.VERSION, "num_fewshot": task.get_config("num_fewshot")}
    return {"metric": METRIC if metric.isdigit() else metric, "lm_eval": version}


def grade(request: Document, response: GroupResponse, context: TaskContext) -> Sample:
    """Grade a document by the task's own filters and metric."""
    responses, instances, said = iter(response.parts), [], []
    for instance in request.instances:
        reply = request.lm.reply(instance, request.cell, [], responses)
        said.append(reply[0] if isinstance(reply, tuple) else reply)
        replies = [reply] * (instance.repeats or 1)
        instances.append(replace(instance, resps=replies, filtered_resps={}))
    text = isinstance(said[0], str)
    facts: dict[str, Fact] = {**request.metadata, "said": said[0] if text else said}
    for ensemble in request.task._filters:
        ensemble.apply(instances)
        results = [instance.filtered_resps[ensemble.name] for instance in instances]
        metrics = request.task.process_results(instances[0].doc, results)
        for metric, value in metrics.items():
            if isinstance(value, int | float) and math.isfinite(value):
                facts[f"{metric},{ensemble.name}"] = float(value)
        if ensemble.name == request.filter:
            graded = metrics[request.metric]
    value, weight = graded if isinstance(graded, tuple) else (graded, 1)
    unit = {"mean": 1, "exp": -1, "bits": -math.log(2)}[str(facts["made"])]
    return Sample(request.doc_id, float(value) / unit, int(weight), facts)


def score(samples: Sequence[Sample]) -> Score:
    """Return the mean over documents, or the perplexity, with its 95 % interval.

    For values from 0 to 1, the interval is Wilson's.
    """
    values, weights = [s.value for s in samples], [s.weight for s in samples]
    if samples[0].metadata["made"] == "exp":
        return Score(*ratio(values, weights).exp(), len(samples))
    if 0 <= min(values) <= max(values) <= 1 and set(weights) == {1}:
        hits = math.fsum(values)
        return Score(hits / len(values), *proportion(hits, len(values)), len(values))
    mean = ratio(values, weights)
    return Score(mean.value, *mean.interval(), len(samples))


@contextmanager
def _quiet() -> Iterator[None]:
    with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
        yield


@cache
def _index(include: str) -> Any:
    """Return the entries of all tasks of a folder, or of lm-eval, by name."""
    from lm_eval.tasks import TaskManager

    return TaskManager(include_path=include or None, include_defaults=not include).task_index


@_quiet()
def _load(name: str, num_fewshot: int | None, include: str, tokenizer: Any, length: int) -> Any:
    """Return a task, ready to build requests; one that makes its documents gets the length."""
    entry = _index(include).get(name)
    if entry is None or entry.kind.name in ("GROUP", "TAG"):
        where = include or "lm-eval"
        raise ValueError(f"{where} has no single task {name!r}; lm-eval ls subtasks prints all")
    from lm_eval.tasks import TaskManager

    with TemporaryDirectory() as folder:  # RULER's tasks load the tokenizer by a name
        tokenizer.save_pretrained(folder)
        metadata: Any = {"max_seq_lengths": [length], "tokenizer": folder}
        manager = TaskManager(include_defaults=False, metadata=metadata)
        task: Any = manager.load([str(entry.yaml_path)])["tasks"][name]
    if getattr(task, "UNSAFE_CODE", False) or getattr(task, "MULTIMODAL", False):
        raise ValueError(f"{name} executes what a model writes or reads images, which is not done")
    fixed = task.get_config("num_fewshot")
    if fixed != 0:  # else it stays, as in lm-eval's simple_evaluate
        wanted = fixed if num_fewshot is None else num_fewshot
        task.set_config(key="num_fewshot", value=wanted or 0)
    return task


def _hash_of_settings(task: Any, include: str) -> str:
    """Return lm-eval's version and a hash of a task's settings and of the files of its folder."""
    from lm_eval import __version__
    from lm_eval.utils import hash_string

    settings = {key: value for key, value in task.dump_config().items() if key != "metadata"}
    text = json.dumps(settings, default=lambda value: type(value).__name__, sort_keys=True)
    files = sorted(Path(include).rglob("*")) if include else []
    code = [file.read_text("utf-8") for file in files if file.suffix in (".py", ".yaml")]
    return f"{__version__} {hash_string(''.join([text, *code]))[:16]}"


def _model(tokenizer: Any) -> Any:
    """Return HFLM, lm-eval's model of transformers, whose inputs the engine computes."""
    from lm_eval.models.huggingface import HFLM

    class Model(HFLM):  # type: ignore[misc]
        max_length = NO_LIMIT

        def reply(self, instance: Any, length: int, asked: Any, responses: Any) -> Any:
            """Return lm-eval's response to a request, and append its inputs to ``asked``.

            A rolling text has windows of ``length`` tokens, the last target included. lm-eval's
            windows end before the last target, so its ``max_length`` for them is one less.
            """
            rolling = instance.request_type == "loglikelihood_rolling"
            self.max_length = length - 1 if rolling else NO_LIMIT
            self.asked, self.responses = asked, responses
            with _quiet():
                return getattr(self, instance.request_type)([instance], disable_tqdm=True)[0]

        def _loglikelihood_tokens(self, requests: Any, **_: Any) -> list[tuple[float, bool]]:
            ((_, before, targets),) = requests
            self.asked.append(Loglikelihood([*before, *targets], len(before), doc_id="request"))
            response = next(self.responses, LoglikelihoodResponse((), ()))
            return [(-math.fsum(response.nll), response.argmax[:-1] == tuple(targets))]

        def _model_generate(self, context: Any, max_length: int, stop: Any, **options: Any) -> Any:
            if options.get("do_sample") or set(options) - GREEDY:
                named = ", ".join(f"{k}={v}" for k, v in options.items() if k != "attention_mask")
                raise ValueError(f"its answers are not greedy: {named}")
            (tokens,) = context.tolist()
            new, stops = max_length - len(tokens), tuple(filter(None, stop))
            self.asked.append(Generate(tokens, new, stops, penalized=True, doc_id="request"))
            response = next(self.responses, Generated("", (), ()))
            return context.new_tensor([[*tokens, *response.tokens]])

    model = SimpleNamespace(device="cpu", config=SimpleNamespace(model_type="llama"))
    own = deepcopy(tokenizer)  # it may get a padding token
    return Model(pretrained=model, tokenizer=own, batch_size=1)


def _chosen_metric(task: Any, wanted: str, length: int) -> str:
    """Return the metric that is the score; that of the length where metrics are named for lengths.

    Raises ValueError for one that is not made of one value per document.
    """
    names, more = list(task.aggregation()), task.higher_is_better()
    names = [str(length)] if all(name.isdigit() for name in names) else names
    can = [name for name in names if _made(task, name) and (more.get(name, True) or name in LOWER)]
    metric: str = wanted or names[0]
    if metric not in can:
        raise ValueError(
            f"{metric} cannot be the score of {task.task_name}; choose metric={'|'.join(can)}"
        )
    return metric


def _made(task: Any, metric: str) -> str:
    """Return what a metric makes of its documents: mean, exp, bits, or "" for anything else."""
    from lm_eval.api.registry import get_aggregation

    aggregate = task.aggregation().get(metric, get_aggregation("mean"))
    if aggregate in (get_aggregation("perplexity"), get_aggregation("weighted_perplexity")):
        return "exp"
    if aggregate is get_aggregation("bits_per_byte"):
        return "bits"
    try:
        return "mean" if aggregate([0.0, 1.0, 1.0, 0.25]) == 0.5625 else ""
    except Exception:  # noqa: BLE001  # it takes something else than numbers
        return ""
