"""The settings of a sweep: its flags, the keys of a sweep file, and the keywords of Python."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import wraps
from inspect import signature
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import yaml
from cyclopts import Group, Parameter, Token
from pydantic import (
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    field_serializer,
)

from ropewalk.harness.data.documents import (
    Documents,
    limited,
    of_python,
    recorded_documents,
)
from ropewalk.harness.errors import UserError, foreign, nearest
from ropewalk.harness.files import UNNAMED, recorded
from ropewalk.harness.models.files import check_exists, go_offline
from ropewalk.harness.plugins import function_name, load, recorded_entry, split_options
from ropewalk.harness.sweep.entries import SHORT, expand, tokens

# A factor that is unset follows the length; what is served is one fixed factor.
SCALING = (
    "none",
    "pi",
    "ntk",
    "dynamic_ntk:factor=2",
    "ntk_by_parts",
    "yarn",
    "yarn:factor=4",
    "yarn:factor=8",
)
TASKS = ("perplexity", "passkey")
LENGTHS = ("1x", "2x", "4x", "8x")
LONGEST = 2**24  # tokens of one input
CELLS = 10_000  # methods x tasks x lengths
LOADING = ("adapter", "workers", "cluster", "device", "device_map", "max_memory")
NAMED = {"model": "reference", "adapter": "none"}  # settings that may name several: a Spec for each
# Sweeps of published settings, by name.
BUNDLED = Path(__file__).parent / "sweeps"

MODEL = Group.create_ordered("Model")
METHODS = Group.create_ordered("Methods")
MEASURED = Group.create_ordered("Tasks, lengths and documents")
EXECUTION = Group.create_ordered("Execution")
OUTPUT = Group.create_ordered("Output")
ADVANCED = Group.create_ordered("Advanced")
NO_FLAG = Parameter(parse=False)


def _listed(value: Any) -> list[Any]:
    """Accept one entry for a list of one."""
    return list(value) if isinstance(value, list | tuple) else [value]


def _entries(value: Any) -> tuple[Any, ...]:
    """Return the entries of a list with their grids expanded; functions stay as they are."""
    entries: list[Any] = []
    for item in _listed(value):
        if not (isinstance(item, str) or callable(item)):
            raise ValueError(f"{SHORT.repr(item)} is no name; write NAME or NAME:option=value")
        if isinstance(item, str) and item.endswith((".yaml", ".yml")):
            raise ValueError(f"{item} is a sweep file, which stands first: ropewalk run {item}")
        if isinstance(item, str) and re.match(r"\w+=", item):
            raise ValueError(f"{item!r} is an option; write it behind its name, as in NAME:{item}")
        entries += expand(item) if isinstance(item, str) else [item]
    if not entries:
        raise ValueError("name at least one")
    return tuple(entries)


def _lengths(value: Any) -> tuple[str, ...]:
    """Split lists with commas; raise ValueError for what is no length."""
    texts = [text for item in _listed(value) for text in str(item).split(",")]
    if not texts:
        raise ValueError("name at least one")
    for text in texts:
        tokens(text, 1)
    return tuple(texts)


def _documents(value: Any) -> Any:
    """Return documents that are objects of Python as such, and names and paths as names."""
    if isinstance(value, Mapping) and value:
        return {task: _documents(docs) for task, docs in value.items()}
    if isinstance(value, Path):
        return str(value)
    if value == "" or isinstance(value, Mapping):
        raise ValueError(
            "name a text file, a folder or a data set, or one for each task (TASK: NAME)"
        )
    return value if isinstance(value, str | Documents) else of_python(value)


def _folder(value: Any) -> Any:
    """Refuse an empty name, as of a variable that is not set."""
    if value is not None and Path(value) == Path():
        raise ValueError(UNNAMED)
    return value


def _whole(_: Any, tokens: Sequence[Token]) -> int:
    """Return the whole number of a flag; cyclopts alone would read 1.7 as 2."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"{tokens[0].value} is not a whole number.") from None


if TYPE_CHECKING:
    Methods = tuple[str | Callable[..., Any], ...]
    Docs = str | Documents | dict[str, str | Documents]
else:  # a flag takes texts; from Python, functions and objects are accepted too
    Methods = Annotated[tuple[str, ...], PlainValidator(_entries)]
    Docs = Annotated[str, PlainValidator(_documents)]
Entries = Annotated[tuple[str, ...], BeforeValidator(_entries)]
Lengths = Annotated[tuple[str, ...], BeforeValidator(_lengths)]
Whole = Annotated[int, Parameter(converter=_whole)]
Model = Annotated[str, Parameter(group=MODEL, alias="-m")]
DryRun = Annotated[bool, Parameter(group=EXECUTION)]
FailIf = Annotated[tuple[str, ...], Parameter(group=OUTPUT, show_default=False)]
OUT = Parameter(group=OUTPUT, alias=("--output-path", "-o"))
Out = Annotated[Path | None, BeforeValidator(_folder), Field(exclude=True), OUT]


class Opening(BaseModel):
    """How a model's config is found and read."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    model: Annotated[str, Field(min_length=1), NO_FLAG] = "reference"
    revision: Annotated[str | None, Parameter(group=ADVANCED)] = None
    """Branch, tag or commit on the hub, for one model. [default: the main branch]"""
    offline: Annotated[bool, Parameter(group=ADVANCED)] = False
    """Send no request to the hub; use what its cache has."""
    trained_length: Annotated[int | None, Field(ge=1, lt=2**31), Parameter(group=ADVANCED)] = None
    """The trained window in tokens, where the config gives none or another. [default: the
    config's]"""
    trust_remote_code: Annotated[bool, Parameter(group=ADVANCED)] = False
    """Run code from the model's repository."""


class Reading(Opening):
    """How a model is loaded, and what it reads."""

    docs: Annotated[Docs, Parameter(group=MEASURED)] = "embedded"
    """A file, a folder, a glob, or DATASET:split=…,field=…; embedded is 23 texts from
    Python's standard library."""
    dtype: Annotated[Literal["auto", "float32", "bfloat16", "float16"], Parameter(group=MODEL)] = (
        "auto"
    )
    """auto is float32 on a CPU, elsewhere the dtype of the checkpoint."""
    device: Annotated[str, Parameter(group=EXECUTION)] = "auto"
    """auto (a GPU if there is one), cpu, cuda, cuda:1, …"""


class Spec(Reading):
    """A sweep over one model.

    The field names are the flags, the keys of a sweep file and the keyword arguments from Python.
    In Python ``scaling`` takes functions too: ``f(rope, length) -> Rotation``.
    """

    scaling: Annotated[Methods, Parameter(group=METHODS)] = SCALING
    """Scaling methods: NAME, NAME:option=value,… (option=[4,8] is one method for each value), or
    your own .py file. `ropewalk list methods` names all."""
    task: Annotated[Entries, Parameter(group=MEASURED, alias=("--tasks", "-t"))] = TASKS
    """Tasks: NAME, NAME:option=value,… or your own .py file. `ropewalk list tasks` names all."""
    length: Annotated[Lengths, Parameter(group=MEASURED)] = LENGTHS
    """Lengths in tokens: 512, 4k (4096), or 2x or 1.5x (of the trained window)."""
    limit: Annotated[
        int | None, Field(ge=1, exclude=True), Parameter(group=MEASURED, alias="-L")
    ] = None
    """The most documents to read, and the most trials of each generated task (per depth, if it has
    depths). [default: all documents, and each task's own number of trials]"""
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63), Parameter(group=MEASURED)] = 0
    """Seed of every random draw."""
    out: Out = None  # as all that is excluded: in no record
    """The run folder. With several models, the folder that holds theirs. [default:
    results/run-MODEL]"""
    track: Annotated[
        tuple[str, ...],
        BeforeValidator(_listed),
        Field(exclude=True),
        Parameter(group=OUTPUT, show_default=False),
    ] = ()
    """Send scores, their table and figures to trackers: wandb, mlflow, tensorboard, trackio,
    comet_ml, … (NAME or NAME:project=…). [default: nowhere]"""
    max_memory: Annotated[ByteSize | None, Parameter(group=EXECUTION)] = None
    """Bytes that weights and work may take: 800MiB, 12GB. Less memory takes more time. [default: no
    limit]"""
    workers: Annotated[
        int | None, Field(ge=1, le=CELLS, exclude=True), Parameter(group=EXECUTION)
    ] = None
    """Number of processes that measure, on Ray. With GPUs, one process per GPU. [default: this
    process]"""
    server: Annotated[str | None, Parameter(group=EXECUTION)] = None
    """http://HOST:PORT of a running server (vLLM, SGLang, llama.cpp) that computes the model with
    one scaling. --model names its config and tokenizer. [default: none]"""
    engine: Annotated[Literal["vllm", "sglang", "gguf"] | None, Parameter(group=EXECUTION)] = None
    """Start this engine for each scaling, with the line that `ropewalk export` prints, and measure
    there; gguf is llama.cpp. [default: none]"""
    engine_args: Annotated[str | None, Parameter(group=ADVANCED, allow_leading_hyphen=True)] = None
    """More options for --engine, such as "--tensor-parallel-size 4"; they are recorded. [default:
    none]"""
    concurrency: Annotated[int | None, Field(ge=1, exclude=True), Parameter(group=ADVANCED)] = None
    """Requests that a server gets at the same time. [default: its own limit, or 8]"""
    cluster: Annotated[str | None, Field(min_length=1, exclude=True), Parameter(group=ADVANCED)] = (
        None
    )
    """HOST:PORT of a Ray cluster to measure on, or auto. [default: this machine]"""
    adapter: Annotated[str | None, Field(min_length=1), NO_FLAG] = None
    allow_pickle: Annotated[bool, Parameter(group=ADVANCED)] = False
    """Accept weights that are not safetensors."""
    device_map: Annotated[Literal["auto"] | None, Parameter(group=ADVANCED)] = None
    """auto: spread one model over all GPUs, then memory, then disk (accelerate). [default: one
    device]"""
    published: Annotated[str | None, NO_FLAG] = None
    """The published table whose settings these are; a sweep file's, and no flag."""

    @field_serializer("model", "adapter", when_used="json")
    def _name(self, value: str | None) -> str | None:
        return value and recorded(value)

    @field_serializer("server", when_used="json")
    def _place(self, value: str | None) -> str | None:
        return value and "URL"  # nothing of a machine is recorded

    @field_serializer("scaling", "task", when_used="json")
    def _recorded_entries(self, value: tuple[Any, ...]) -> list[str]:
        texts = [item if isinstance(item, str) else function_name(item) for item in value]
        return [*map(recorded_entry, texts)]

    @field_serializer("docs", when_used="json")
    def _recorded_docs(self, value: Any) -> str | dict[str, str]:
        if isinstance(value, dict):
            return {task: recorded_documents(docs) for task, docs in value.items()}
        return recorded_documents(value)

    @property
    def opened(self) -> list[str]:
        """Return the words of a command line that open the same model."""
        values = {"--revision": self.revision, "--trained-length": self.trained_length}
        switches = {"--trust-remote-code": self.trust_remote_code, "--offline": self.offline}
        words = [word for name, value in values.items() if value for word in (name, str(value))]
        return [self.model, *words, *(name for name, value in switches.items() if value)]

    def lengths(self, trained_length: int) -> tuple[int, ...]:
        """Return the lengths in tokens, ascending, each once; a part of a token is rounded.

        Raises UserError for one that holds no token, or too many.
        """
        lengths = {text: tokens(text, trained_length) for text in self.length}
        for text, length in lengths.items():
            if not 1 <= length <= LONGEST:
                raise UserError(
                    f"length {text} is {length:,} tokens here; write one of 1 to {LONGEST:,}"
                    " tokens."
                )
        return tuple(sorted(set(lengths.values())))


class OneModel(Spec):
    """A sweep that a command makes of one model, at one length."""

    adapter: Annotated[str | None, Field(min_length=1), Parameter(group=MODEL)] = None
    """A PEFT adapter for the model: a folder or a hub name. [default: none]"""
    length: Annotated[Lengths, Parameter(group=MEASURED)] = ("4x",)
    """The length in tokens: 4096, 4k or 4x (of the trained window)."""
    track: Annotated[tuple[str, ...], Field(exclude=True), NO_FLAG] = ()


S = TypeVar("S", bound=Opening)
R = TypeVar("R")


def takes_settings(command: Callable[..., R]) -> Callable[..., R]:
    """Let Python give the settings of a command's ``spec`` as keywords, and check them."""
    parameters = signature(command).parameters
    kind = type(parameters["spec"].default)

    @wraps(command)
    def call(*arguments: Any, **keywords: Any) -> R:
        settings = {name: keywords.pop(name) for name in [*keywords] if name not in parameters}
        hidden = {name for name, field in kind.model_fields.items() if NO_FLAG in field.metadata}
        if wrong := hidden & settings.keys():
            known = nearest(min(wrong), kind.model_fields.keys() - hidden)
            raise UserError(f"no setting is called {min(wrong)!r}; {known}.")
        if settings:
            keywords["spec"] = validated(kind, settings)
        return command(*arguments, **keywords)

    return call


def settings_of(spec: Opening) -> dict[str, Any]:
    """Return the settings that were given, by name."""
    return {name: getattr(spec, name) for name in spec.model_fields_set}


def validated(kind: type[S], settings: Mapping[str, Any]) -> S:
    """Return settings as checked; raise UserError with all that is wrong, in pydantic's words."""
    try:
        return kind.model_validate({k: v for k, v in settings.items() if v is not None})
    except ValidationError as error:
        raise UserError(*mistakes(error, kind.model_fields)) from None


def mistakes(error: ValidationError, known: Collection[str] = ()) -> list[str]:
    """Return a sentence for each setting that is wrong, or not among those known."""
    sentences: dict[Any, str] = {}
    for detail in error.errors():
        name = (detail["loc"] or (detail["input"],))[0]  # no place for a name that is no UTF-8
        value = SHORT.repr(detail["input"])
        text = detail["msg"].removeprefix("Value error, ").replace("Input should", "it must")
        if known and name not in known:
            sentences[name] = f"no setting is called {name!r}; {nearest(str(name), known)}."
        if detail["type"] == "literal_error" and isinstance(detail["input"], str):
            text = nearest(detail["input"], re.findall(r"'([^']*)'", detail["ctx"]["expected"]))
        several = isinstance(detail["input"], list | tuple)  # the sentence names the one
        shown = "" if value in text or several else f" (given: {value})"
        sentences.setdefault(name, f"{name}: {text.removesuffix('.')}{shown}.")
    return [*sentences.values()]


def parse(file: Path | None, settings: Mapping[str, Any]) -> Spec:
    """Return the Spec of one model; raise UserError as ``parse_all`` does."""
    specs = parse_all(file, settings)
    if len(specs) > 1:
        raise UserError(f"{len(specs)} models are named; name one.")
    return specs[0]


def one_model(spec: Opening, **settings: Any) -> Spec:
    """Return the Spec of a command: its settings that were given, and these, which win."""
    return parse(None, {**settings_of(spec), **settings})


def parse_all(file: Path | None, settings: Mapping[str, Any]) -> tuple[Spec, ...]:
    """Merge a sweep file with the settings that were given, which win; return a Spec per model.

    ``model`` and ``adapter`` may be lists. With ``offline``, go offline. Raises UserError with all
    mistakes, each with the key, what was given and what is allowed. Names of methods, tasks and
    documents are left for the plan.
    """
    values = read_sweep_file(file) if file else {}
    values |= {name: value for name, value in settings.items() if value is not None}
    if values.get("server") and "scaling" not in values:
        values["scaling"] = ["native"]
    try:
        specs = [validated(Spec, one) for one in _each_model(values)]
        _check_served(specs)
        check_exists(specs[0].model)
    except UserError as error:
        if file is None:
            raise
        raise UserError(*(f"{file}: {sentence}" for sentence in error.sentences)) from None
    if specs[0].offline:
        go_offline()
    return tuple(spec if spec.limit is None else _limited(spec, spec.limit) for spec in specs)


def _each_model(values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the settings of each model and adapter; a revision is behind the model's name."""
    names = {key: _listed(values.get(key, default)) for key, default in NAMED.items()}
    for key, items in names.items():
        if not items or len(items) > len({*map(str, items)}):
            raise UserError(f"{key}: name at least one, and none twice.")
    for model, adapter in product(names["model"], names["adapter"]):
        if not isinstance(model, str | Path):
            raise UserError(
                f"model is a {type(model).__name__}; give a folder or a hub name. Only run and"
                " recommend take a loaded model."
            )
        hub, at, revision = str(model).rpartition("@")
        local = not at or "/" in revision or str(model).startswith((".", "/", "~"))
        if values.get("revision") is not None and (len(names["model"]) > 1 or not local):
            raise UserError("model: a revision is one model's; write each as NAME@REVISION alone.")
        named = {"model": str(model)} if local else {"model": hub, "revision": revision}
        changed = None if adapter == "none" else adapter and str(adapter)
        yield {**values, **named, "adapter": changed}


def _check_served(specs: Sequence[Spec]) -> None:
    """Raise UserError for settings that a served model does not have."""
    spec, served = specs[0], specs[0].server or specs[0].engine
    wrong = {
        "--engine-args are options of an engine that is started: name --engine.": (
            spec.engine_args and not spec.engine
        ),
        "--concurrency is a setting of a server: name --server or --engine.": (
            spec.concurrency and not served
        ),
        "--server is running already; leave out --engine, or --server.": (
            spec.server and spec.engine
        ),
        "a server runs one model with one scaling; name one --scaling, or let --engine start a "
        "server for each.": spec.server and (len(specs) > 1 or len(spec.scaling) > 1),
    } | {
        f"--{name.replace('_', '-')} is a setting of weights that are loaded here; leave it out "
        "with --server and --engine.": (
            served and getattr(spec, name) != Spec.model_fields[name].default
        )
        for name in LOADING
    }
    if sentences := [sentence for sentence, is_so in wrong.items() if is_so]:
        raise UserError(*sentences)


def _limited(spec: Spec, most: int) -> Spec:
    """Return a sweep with at most so many documents, and trials of each generated task."""
    docs: Any = spec.docs
    if isinstance(docs, dict):
        docs = {task: limited(value, most) for task, value in docs.items()}
    else:
        docs = limited(docs, most)
    tasks = []
    for entry in spec.task:
        options = load("task", entry).options
        option = next((option for option in ("trials", "limit") if option in options), None)
        of_all = option == "limit" and options[option] == 0  # of lm-eval
        if option is not None and (options[option] > most or of_all):
            name, _, listed = entry.partition(":")
            changed = split_options(name, listed) | {option: str(most)}
            entry = f"{name}:{','.join(f'{key}={value}' for key, value in changed.items())}"
        tasks.append(entry)
    return spec.model_copy(update={"docs": docs, "task": tuple(tasks)})


# Sweep files.


def bundled() -> dict[str, str]:
    """Return the sweeps that come with the program: by name, the first line of each."""
    files = sorted(BUNDLED.glob("*.yaml"))
    return {f.stem: f.read_text(encoding="utf-8").partition("\n")[0].strip("# ") for f in files}


def read_sweep_file(given: Path) -> dict[str, Any]:
    """Return the settings of a sweep file, or of the bundled one of this name.

    Raises UserError for any other content, and for a key that is there twice.
    """
    named = BUNDLED / f"{given}.yaml"
    file = named if given.name == str(given) and not given.exists() and named.exists() else given
    if not file.exists():
        known = nearest(str(given), bundled())  # where a name was given rather than a file
        meant = "" if given.suffix else f"; among the bundled sweeps, {known}"
        raise UserError(f"sweep file {file} does not exist{meant}.")
    if file.suffix == ".py":
        raise UserError(
            f"{file} is code, not a sweep file; name it as --scaling {file} or --task {file}."
        )
    with foreign(f"sweep file {file} cannot be read"):
        content = file.read_text(encoding="utf-8-sig")
    with foreign(f"sweep file {file} is not YAML"):
        settings = yaml.load(content, _Loader)
    if not isinstance(settings, dict):
        raise UserError(f"sweep file {file} must hold settings (model: …, scaling: […], …).")
    return {str(key): value for key, value in settings.items()}


class _Loader(yaml.BaseLoader):
    """Reads every value as text, which the settings parse: to YAML 010 is 8 and 1:30 is 90."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping; raise ValueError for a key that is there twice."""
        keys = [key.value for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise ValueError(f"{key} is there twice; keep one")
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver("null", re.compile("(?:~|null|Null|NULL)?$"), ["~", "n", "N", ""])
_Loader.add_constructor("null", lambda *_: None)
