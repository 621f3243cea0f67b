"""A task of lm-evaluation-harness: its prompts, metrics and versions (EleutherAI, 0.4.13 on).

A document is one sample. lm-eval's own code makes its tokens. Its requests are answered one by one
and graded together by the task's own filters and metric. ``tasks=a+b`` measures both, each with its
own score.

The length of a cell is the available space. A task that generates its documents (RULER's) gets the
length. A document whose prompt and answer do not fit has the status too_long. Differs from lm-eval,
which truncates such a prompt on the left.
"""

from __future__ import annotations

import io
import json
import math
import random
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from itertools import chain, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

from tasks._intervals import proportion, ratio
from tasks.types import (
    CodeFolder,
    Fact,
    Generate,
    Generated,
    Group,
    GroupResponse,
    Loglikelihood,
    LoglikelihoodResponse,
    ModelRequest,
    ModelResponse,
    Sample,
    Score,
    TaskContext,
    no_template,
)

VERSION = 1
EXAMPLE_OPTIONS = "tasks=hellaswag,limit=50"
METRIC = "recall"  # of RULER's tasks, whose metrics are named for lengths; else the task's own
FACTS = {"doc": int, "doc_hash": str, "prompt_hash": str, "target_hash": str, "made": str}
INSTALL = "install it with pip install 'ropewalk[lm-eval]'"
NUMPY_SEED = FEWSHOT_SEED = 1234  # of lm-eval by default, beside 0 for Python's random
UNTRUSTED = {"trust_remote_code": False}
ROOM = 2**40  # tokens; more than any prompt, so that nothing is cut
# What is left of a task's generation settings where the answer is greedy.
GREEDY = {"attention_mask", "do_sample", "temperature", "top_p", "top_k", "min_p"}
# Metrics of which less is better, as the reports know them; more is better of all others.
LOWER = {
    "perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte", "brier_score", "ter",
}  # fmt: skip
_OPENED: WeakKeyDictionary[TaskContext, dict[Wanted, Opened]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Wanted:
    """Which task is run, and how: the options of ``lm_eval``."""

    tasks: str
    limit: int
    num_fewshot: int | None
    metric: str
    filter: str
    include: str
    chat: bool


@dataclass(frozen=True)
class Doc:
    """One document of a task; ``instances`` are lm-eval's requests, each with how many of ours."""

    task: Any
    instances: tuple[tuple[Any, int], ...]
    metric: str
    filter: str
    request: Group


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
) -> Iterator[Group]:
    """Yield the first ``limit`` documents of a task at every length, 0 for all.

    ``metric`` is one of the task's metrics, by default its first; its score must be made of one
    value per document. ``filter`` is one of the task's filters, by default the first. ``include``
    is a folder with YAML files of your own tasks, whose functions are executed. ``chat`` applies
    the chat template as lm-eval does. Seed 0 draws like lm-eval's default. Raises ValueError for
    tasks that cannot run.
    """
    for name, count in (("limit", limit), ("num_fewshot", num_fewshot or 0)):
        if count < 0:
            raise ValueError(f"{name}={count} is not 0 or more")
    if chat and not getattr(context.tokenizer, "chat_template", None):
        no_template("")
    wanted = Wanted(tasks, limit, num_fewshot, metric, filter, include, chat)
    for length in lengths:
        for document in _opened(context, wanted).documents(length, seed):
            yield document.request


def about(context: TaskContext, **options: Any) -> Mapping[str, Any]:
    """Return what the record says of the task: its metric, versions and hashes."""
    return _opened(context, Wanted(**options)).about()


def answers(request: Group, context: TaskContext) -> list[str | int]:
    """Return what lm-eval compares a text with; of choices, the place of the right one."""
    document = _document(context, request)
    task, doc = document.task, document.instances[0][0].doc
    with working(task.task_name, "ask"):
        inputs = getattr(task, "multiple_input", False)  # then the text that differs is the choice
        gold = task.doc_to_text(doc) if inputs else task.doc_to_target(doc)
        choices = task.doc_to_choice(doc) if task.get_config("doc_to_choice") is not None else ()
    texts, several = dict(enumerate(choices)), gold if isinstance(gold, list) else [gold]
    if len(request.parts) > 1:
        return [one if one in texts else str(one) for one in several]
    return [str(texts.get(one, one)) for one in several]


def grade(request: Group, response: GroupResponse, context: TaskContext) -> Sample:
    """Grade a document by the task's own filters and metric."""
    document = _document(context, request)
    pairs = zip(document.request.parts, response.parts, strict=True)
    instances = []
    for instance, count in document.instances:
        reply = _reply(instance.request_type, list(islice(pairs, count)))
        replies = [reply] * (instance.repeats or 1)
        instances.append(replace(instance, resps=replies, filtered_resps={}))
    task = document.task
    facts: dict[str, Fact] = {**request.metadata}
    for one in task._filters:
        one.apply(instances)
        results = [instance.filtered_resps[one.name] for instance in instances]
        with working(task.task_name, "grade"):
            metrics = task.process_results(instances[0].doc, results)
        facts |= {f"{metric},{one.name}": _fact(value) for metric, value in metrics.items()}
        if one.name == document.filter:
            value = _value(document, metrics)
    facts["said"] = _said(instances)
    return Sample(request.doc_id, *value, facts)


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


def _opened(context: TaskContext, wanted: Wanted) -> Opened:
    """Return a task as it is asked with these options, opened once."""
    known = _OPENED.setdefault(context, {})
    if wanted not in known:
        known[wanted] = Opened(context.tokenizer, wanted)
    return known[wanted]


def _document(context: TaskContext, request: Group) -> Doc:
    every = _OPENED[context].values()
    return next(one.by_digest[request.digest] for one in every if request.digest in one.by_digest)


class Opened:
    """A task with its documents at every length, each made once."""

    def __init__(self, tokenizer: Any, wanted: Wanted) -> None:
        self.tokenizer, self.wanted = tokenizer, wanted
        self.task: Any = None
        self.by_length: dict[tuple[int, int], list[Doc]] = {}  # and seed
        self.by_digest: dict[str, Doc] = {}  # of the request

    def documents(self, length: int, seed: int) -> list[Doc]:
        """Return the documents at a length; raise ValueError where they cannot be asked."""
        if (length, seed) not in self.by_length:
            with drawing(seed):
                # Only a task that makes its documents differs with the length.
                if self.task is None or callable(self.task.get_config("custom_dataset")):
                    self.task = load_task(self.wanted, self.tokenizer, length)
                self.task.set_fewshot_seed(seed=FEWSHOT_SEED + seed)
                documents = self._documents(length)
            self.by_length[length, seed] = documents
            self.by_digest |= {document.request.digest: document for document in documents}
        return self.by_length[length, seed]

    def about(self) -> dict[str, Any]:
        """Return what the record says: the metric, lm-eval's versions and hashes."""
        metric = next(iter(self.by_length.values()))[0].metric
        template = getattr(self.tokenizer, "chat_template", None) if self.wanted.chat else None
        hashes = {
            str(length): _hash("".join(_hashes(one.request) for one in documents))
            for (length, _), documents in self.by_length.items()
        }
        return {
            "metric": METRIC if metric.isdigit() else metric,
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
            lm = _recorder()(self.tokenizer)
            self.task.build_all_requests(
                limit=wanted.limit or None,
                apply_chat_template=wanted.chat,
                fewshot_as_multiturn=True,
                chat_template=lm.apply_chat_template if wanted.chat else None,
            )
        metric, keep = chosen_metric(self.task, wanted, length), chosen_filter(self.task, wanted)
        instances: dict[int, list[Any]] = defaultdict(list)
        for instance in self.task.instances:
            instances[instance.doc_id].append(instance)
        by = f"{version()} {self.config_hash()} {metric} {keep}"
        documents = []
        for number, group in instances.items():
            group.sort(key=lambda instance: instance.idx)
            with working(name, "ask"):
                parts = [requests_of(lm, instance, length) for instance in group]
                metadata = self._metadata(number, group[0], metric)
            if not any(parts):
                raise ValueError(f"document {number} has no text")
            request = Group(
                tuple(chain.from_iterable(parts)),
                doc_id=f"document {number}",
                metadata=metadata,
                cell=length,
                graded_by=" ".join([by, *map(str, metadata.values())]),
            )
            counted = tuple(zip(group, map(len, parts), strict=True))
            documents.append(Doc(self.task, counted, metric, keep, request))
        return documents

    def _metadata(self, number: int, instance: Any, metric: str) -> dict[str, Fact]:
        """Return the hashes by which lm-eval's own samples are joined."""
        from lm_eval.utils import handle_non_serializable

        text = json.dumps(
            instance.doc, indent=2, default=handle_non_serializable, ensure_ascii=False
        )
        return {
            "doc": number,
            "doc_hash": _hash(text),
            "prompt_hash": _hash(instance.arguments[0]),
            "target_hash": _hash(str(self.task.doc_to_target(instance.doc))),
            "made": made_of(self.task, metric),
        }


def _hashes(request: Group) -> str:
    return "".join(str(request.metadata[f"{what}_hash"]) for what in ("doc", "prompt", "target"))


def _hash(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def version() -> str:
    """Return which lm-eval is installed; raise ValueError where none is."""
    try:
        return installed("lm_eval")
    except PackageNotFoundError:
        raise ValueError(f"it needs the package lm-eval; {INSTALL}") from None


@contextmanager
def working(name: str, what: str) -> Iterator[None]:
    """Keep lm-eval from writing on the terminal; what it raises becomes a ValueError."""
    try:
        with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
            yield
    except ModuleNotFoundError as error:
        raise ValueError(
            f"lm-eval's task {name} needs the package {error.name}; install it with pip"
        ) from error
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(
            f"lm-eval cannot {what} {name}: {type(error).__name__}: {reason}"
        ) from error


def load_task(wanted: Wanted, tokenizer: Any, length: int) -> Any:
    """Return a task, ready to build requests.

    A task that makes its documents is given the length and the tokenizer. Raises ValueError for a
    name that does not exist, a group, and a task that cannot run here.
    """
    version()
    name = wanted.tasks
    if not name:
        raise ValueError("name a task of lm-eval: lm_eval:tasks=NAME")
    own = f"{getattr(tokenizer, 'name_or_path', '')}#{id(tokenizer)}"
    metadata = {"max_seq_lengths": [length], "tokenizer": own}
    with working(name, "find"):
        from lm_eval.tasks import TaskManager

        folders = list(_folders(name, wanted.include))
        manager = TaskManager(include_path=folders, include_defaults=False, metadata=metadata)
        entry = manager.task_index.get(name)
    if entry is None:
        raise ValueError(f"lm-eval has no task {name!r}; lm-eval ls tasks prints all")
    if entry.kind.name in ("GROUP", "TAG"):
        parts = entry.tags or [part for part in entry.cfg["task"] if isinstance(part, str)]
        raise ValueError(
            f"{name} is several tasks of lm-eval; name them: tasks={'+'.join(sorted(parts))}"
        )
    with working(name, "load the data of"), _own_tokenizer(own, tokenizer):
        task = manager.load([name])["tasks"][name]
    _check(name, task)
    _set_fewshot(task, wanted.num_fewshot)
    return task


def _check(name: str, task: Any) -> None:
    if getattr(task, "UNSAFE_CODE", False):
        raise ValueError(
            f"lm-eval's task {name} executes what a model writes, which is not done here"
        )
    if getattr(task, "MULTIMODAL", False):
        raise ValueError(f"lm-eval's task {name} has images or sound; only text is supported")


def _set_fewshot(task: Any, count: int | None) -> None:
    """Set the number of examples as lm-eval's ``simple_evaluate`` does."""
    fixed = task.get_config("num_fewshot")
    if count is not None and fixed != 0:
        task.set_config(key="num_fewshot", value=count)
    elif fixed is None:
        task.set_config(key="num_fewshot", value=0)


@cache
def _folders(name: str, include: str) -> tuple[Path, ...]:
    """Return the folders whose YAML files name a task; to parse all would take a minute."""
    if include and not Path(include).is_dir():
        raise NotADirectoryError(f"the folder {include} of include does not exist")
    import lm_eval.tasks

    # Paths from the package's own folder are tried after the user's.
    named = re.compile(rb"(?<![\w.-])" + re.escape(name.encode()) + rb"(?![\w.-])")
    files = sorted(Path(lm_eval.tasks.__file__).parent.rglob("*.yaml"))
    folders = {file.parent for file in files if named.search(file.read_bytes())}
    return (*sorted(folders), *([Path(include)] if include else []))


def code_digest(include: str) -> str:
    """Return a hash of the files of a user's folder, whose functions grade."""
    files = sorted(path for path in Path(include).rglob("*") if path.suffix in (".py", ".yaml"))
    digest = sha256()
    for file in files if include else []:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


@contextmanager
def drawing(seed: int) -> Iterator[None]:
    """Seed what a task draws from as lm-eval does, and leave the process's own draws alone."""
    import numpy as np

    state, arrays = random.getstate(), np.random.get_state()  # noqa: NPY002  # what tasks use
    random.seed(seed)
    np.random.seed(NUMPY_SEED + seed)  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(arrays)  # noqa: NPY002


@contextmanager
def _own_tokenizer(name: str, tokenizer: Any) -> Iterator[None]:
    """Give a task that loads the model's tokenizer the one we have, and trust no other's code.

    Differs from lm-eval: RULER's tasks load it with trust_remote_code, whatever the user said.
    """
    from lm_eval.tasks.ruler.common_utils import AutoTokenizer

    before, load = vars(AutoTokenizer)["from_pretrained"], AutoTokenizer.from_pretrained

    def ours(given: Any, *more: Any, **options: Any) -> Any:
        return tokenizer if given == name else load(given, *more, **options | UNTRUSTED)

    AutoTokenizer.from_pretrained = ours
    try:
        yield
    finally:
        AutoTokenizer.from_pretrained = before


def requests_of(lm: Any, instance: Any, length: int) -> tuple[ModelRequest, ...]:
    """Return what a request of lm-eval asks the model.

    A rolling text has windows of ``length`` tokens, the last target included. lm-eval's windows end
    before the last target, so its ``max_length`` for the same windows is one less.
    """
    rolling = instance.request_type == "loglikelihood_rolling"
    if lm.prefix_token_id is None and (rolling or not instance.args[0]):
        raise ValueError(
            "a text from its first token on needs a begin or an end token before it, and the"
            " tokenizer has neither"
        )
    lm.room, lm.recorded = length - 1 if rolling else ROOM, []
    getattr(lm, instance.request_type)([instance], disable_tqdm=True)
    return tuple(lm.recorded)


@cache
def _recorder() -> Any:
    """Return HFLM, lm-eval's model of transformers, that records its inputs, computing nothing."""
    from lm_eval.models.huggingface import HFLM

    class Recorder(HFLM):  # type: ignore[misc]
        room = ROOM

        def __init__(self, tokenizer: Any) -> None:
            model = SimpleNamespace(device="cpu", config=SimpleNamespace(model_type="llama"))
            super().__init__(pretrained=model, tokenizer=_own(tokenizer), batch_size=1)
            self.recorded: list[ModelRequest] = []

        @property
        def max_length(self) -> int:
            return self.room

        def _loglikelihood_tokens(self, requests: Any, **_: Any) -> list[tuple[float, bool]]:
            for _, before, targets in requests:
                tokens = [*before, *targets]
                self.recorded.append(Loglikelihood(tokens, len(before), doc_id="request"))
            return [(0.0, False)] * len(requests)

        def _model_generate(
            self, context: Any, max_length: int, stop: list[str], **options: Any
        ) -> Any:
            if options.get("do_sample") or set(options) - GREEDY:
                raise ValueError(f"its answers are not greedy: {_named(options)}")
            (tokens,) = context.tolist()
            new, stops = max_length - len(tokens), tuple(filter(None, stop))
            text = Generate(tokens, new, stops, penalized=True, doc_id="request")  # as generate's
            self.recorded.append(text)
            return context

    return Recorder


def _own(tokenizer: Any) -> Any:
    """Return a copy, which may get a padding token; HFLM decodes an end token where none is."""
    own = deepcopy(tokenizer)
    decode = own.decode
    own.decode = lambda tokens, **options: None if tokens is None else decode(tokens, **options)
    return own


def _named(options: dict[str, Any]) -> str:
    return ", ".join(f"{k}={v}" for k, v in options.items() if k != "attention_mask")


def _reply(kind: str, pairs: Sequence[tuple[ModelRequest, ModelResponse]]) -> Any:
    """Return the response to a request as lm-eval's models give it."""
    scored = [response for _, response in pairs if isinstance(response, LoglikelihoodResponse)]
    logprob = -math.fsum(loss for response in scored for loss in response.nll)
    if kind == "loglikelihood_rolling":
        return logprob
    ((request, response),) = pairs
    if isinstance(response, Generated):
        return response.text
    return logprob, scored[0].argmax[:-1] == tuple(request.tokens[request.start :])


def _said(instances: Sequence[Any]) -> str | list[float]:
    """Return the text, or the log-probability of every request."""
    replies = [instance.resps[0] for instance in instances]
    if isinstance(replies[0], str):
        return replies[0]
    return [reply[0] if isinstance(reply, tuple) else reply for reply in replies]


def _value(document: Doc, metrics: dict[str, Any]) -> tuple[float, int]:
    metric = document.metric
    if metric not in metrics:
        raise ValueError(f"the task gives {', '.join(metrics)}, and no {metric}")
    given, kind = metrics[metric], document.request.metadata["made"]
    if kind == "mean":
        return float(given), 1
    logprob, weight = given if isinstance(given, tuple) else (given, 1)
    return -float(logprob) / (math.log(2) if kind == "bits" else 1), int(weight)


def _fact(value: Any) -> Fact:
    """Return a metric of a document as a record holds it."""
    if isinstance(value, tuple) and all(isinstance(part, int | float) for part in value):
        return [float(part) for part in value]
    try:
        number = float(value)
    except (TypeError, ValueError):
        return str(value)
    return number if math.isfinite(number) else str(number)


def chosen_metric(task: Any, wanted: Wanted, length: int) -> str:
    """Return the metric that is the score; raise ValueError for one that is no sum over documents.

    If metrics are named for lengths, as RULER's are, the one for the cell's length is chosen.
    """
    every = [str(name) for name in task.aggregation()]
    lengths = bool(every) and all(name.isdigit() for name in every)
    metric = wanted.metric or (str(length) if lengths else every[0])
    if not lengths and metric not in every:
        raise ValueError(f"{wanted.tasks} has no metric {metric}; it has {', '.join(every)}")
    known = task.higher_is_better().get(metric, True) or metric in LOWER
    if not known or not made_of(task, metric):
        can = [name for name in every if name != metric and made_of(task, name)]
        raise ValueError(
            f"{metric} of {wanted.tasks} is not made of one value per document, or less of it is"
            f" better in a way reports do not know; choose another with metric={'|'.join(can)}"
        )
    return metric


def made_of(task: Any, metric: str) -> str:
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


def chosen_filter(task: Any, wanted: Wanted) -> str:
    """Return the filter whose value is the score; raise ValueError for one that is not there."""
    names = [one.name for one in task._filters]
    if wanted.filter and wanted.filter not in names:
        raise ValueError(f"{wanted.tasks} has no filter {wanted.filter}; it has {', '.join(names)}")
    return wanted.filter or names[0]
