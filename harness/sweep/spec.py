"""The settings of a sweep: from flags, from a YAML file, or from both."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise, product
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    InstanceOf,
    ValidationError,
    field_serializer,
    field_validator,
)
from pydantic.json_schema import SkipJsonSchema

from ropewalk.harness.data.documents import Documents, limited, open_documents, recorded_documents
from ropewalk.harness.errors import Collector, Problems, UserError, foreign, why
from ropewalk.harness.names import is_path, nearest, recorded, recorded_entry
from ropewalk.harness.plugins import function_name, load, split_options

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
MOST = 1000  # entries of one grid
# A comma outside of brackets behind which another entry begins: a name, and no option=value.
NEXT = re.compile(r",\s*(?=[A-Za-z_.~/][^=,\[\]]*(?:[:,]|$))(?![^\[\]]*\])")
OUTSIDE = re.compile(r",(?![^\[\]]*\])")  # a comma outside of brackets
BRACKETS = re.compile(r"\[[^\[\]]*\]")
SEVERAL = re.compile(r"\btasks=([^,\[\]]*\+[^,\[\]]*)")
LISTED = re.compile(r"([^=\[\]]+)=\s*\[([^\[\]]*)\]\s*")
# Sweeps of published settings, by name.
BUNDLED = Path(__file__).parent / "sweeps"
SHORT = reprlib.Repr()  # a file may nest lists within lists without end
SHORT.maxstring = SHORT.maxother = 200
SIZE = re.compile(r"([1-9][0-9]{0,17}(?:\.[0-9]{1,6})?) ?([KMGT]i?B|)")
UNITS = {
    "": 1,
    **{f"{prefix}B": 1000 ** (i + 1) for i, prefix in enumerate("KMGT")},
    **{f"{prefix}iB": 1024 ** (i + 1) for i, prefix in enumerate("KMGT")},
}
LENGTH = re.compile(r"(?=.*[1-9])([0-9]{1,12}(?:\.[0-9]{1,6}(?=[kKx]))?)([kKx]?)")


def size(text: str) -> int:
    """Return the bytes of 800MiB, 12GB or 4096; raise ValueError for any other text."""
    match = SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{SHORT.repr(text)} is not a size; write 800MiB, 12GiB, 12GB or bytes")
    return int(Fraction(match[1]) * UNITS[match[2]])


def tokens(text: str, trained_length: int) -> int:
    """Return the tokens of 512, 4k or 1.5x, a part of one rounded.

    Raises ValueError for any other text.
    """
    match = LENGTH.fullmatch(text)
    if match is None:
        given = SHORT.repr(text)
        raise ValueError(
            f"{given} is not a length; write 512, 4k (4096), or 2x or 1.5x (of the window)"
        )
    unit = {"": 1, "k": 1024, "x": trained_length}
    return round(Fraction(match[1]) * unit[match[2].lower()])


def expand(entry: str) -> list[str]:
    """Return every entry of a list of names and of grids, the last option varying fastest.

    ``none,yarn`` is two entries, unless a file has that name; ``tasks=a+b`` is ``tasks=[a,b]``.
    Raises ValueError where brackets do not close, or hold nothing.
    """
    names = [entry] if is_path(Path(entry.partition(":")[0])) else NEXT.split(entry)
    return [one for name in names for one in _grid(name)]


def _grid(entry: str) -> list[str]:
    name, colon, options = entry.partition(":")
    options = SEVERAL.sub(lambda match: f"tasks=[{match[1].replace('+', ',')}]", options)
    if not set("[]") & set(options):
        return [entry]
    if set("[]") & set(BRACKETS.sub("", options)):
        raise ValueError(f"the brackets of {entry!r} do not close; write option=[1,2]")
    choices = [_choices(entry, part) for part in OUTSIDE.split(options)]
    if prod(map(len, choices)) > MOST:
        raise ValueError(f"{entry!r} is more than {MOST} entries")
    return [f"{name}{colon}{','.join(chosen)}" for chosen in product(*choices)]


def _choices(entry: str, part: str) -> list[str]:
    if "[" not in part:
        return [part]
    listed = LISTED.fullmatch(part)
    values = [value.strip() for value in listed[2].split(",")] if listed else []
    if listed is None or not all(values):
        raise ValueError(f"{part!r} in {entry!r} is not a list of values; write option=[1,2]")
    return [f"{listed[1].strip()}={value}" for value in values]


def _valid_entry(entry: str) -> str:
    expand(entry)
    return entry


def _valid_length(text: str) -> str:
    tokens(text, 1)
    return text


Entry = Annotated[str, AfterValidator(_valid_entry)]
Method = Entry | Callable[..., Any]
Length = Annotated[str, AfterValidator(_valid_length)]
Read = SkipJsonSchema[InstanceOf[Documents]]  # documents of Python, which no sweep file names


class Spec(BaseModel):
    """A sweep over one model, as given.

    The field names are the flags, the keys of a sweep file and the keyword arguments from Python;
    ``ropewalk run --help`` says what each is. In Python ``scaling`` takes functions too:
    ``f(rope, length) -> Rotation``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field("reference", min_length=1)  # "" would be the working folder
    revision: str | None = None
    adapter: str | None = Field(None, min_length=1)
    scaling: tuple[Method, ...] = SCALING
    task: tuple[Entry, ...] = TASKS
    length: tuple[Length, ...] = LENGTHS
    docs: str | Read | dict[str, str | Read] = "embedded"
    out: Path | None = Field(None, exclude=True)  # as all that is excluded: in no record
    seed: int = Field(0, ge=-(2**63), lt=2**63)
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: str = "auto"
    offline: bool = False
    max_memory: str | None = None
    trained_length: int | None = Field(None, ge=1, lt=2**31)
    device_map: Literal["auto"] | None = None
    compile: bool = False
    attention: Literal["auto", "flash3"] = "auto"
    trust_remote_code: bool = False
    allow_pickle: bool = False
    workers: int | None = Field(None, ge=1, le=CELLS, exclude=True)
    cluster: str | None = Field(None, min_length=1, exclude=True)
    track: tuple[str, ...] = Field((), exclude=True)
    published: str | None = None  # the published table whose settings these are; no flag

    @field_validator("*", mode="before")
    @classmethod
    def _utf8(cls, value: Any) -> Any:
        """Reject a name that no record can hold."""
        parts = [*value, *value.values()] if isinstance(value, dict) else value
        for text in parts if isinstance(parts, list | tuple) else [value]:
            if isinstance(text, str) and text != text.encode(errors="ignore").decode():
                raise ValueError("it is not UTF-8; rename the file or the folder")
        return value

    @field_validator("length", mode="before")
    @classmethod
    def _without_commas(cls, value: Any) -> Any:
        parts = [one.split(",") if isinstance(one, str) else [one] for one in _listed(value)]
        return [length for some in parts for length in some]

    @field_validator("scaling", "task", "length", "track", mode="before")
    @classmethod
    def _as_texts(cls, value: Any) -> Any:
        """Accept YAML's numbers, and one entry for a list of one."""
        items = _listed(value)
        if not items:
            raise ValueError("name at least one")
        if len(items) > CELLS:
            raise ValueError(f"{len(items):,} entries; name at most {CELLS:,}")
        return tuple(str(item) if _is_whole(item) else item for item in items)

    @field_validator("scaling", "task", mode="after")
    @classmethod
    def _without_grids(cls, value: tuple[Any, ...]) -> tuple[Any, ...]:
        names = [given for given in value if isinstance(given, str)]
        for before, entry in pairwise(("NAME", *names)):
            if re.match(r"\w+=(?!.*\.py$)", entry):
                colon = "," if ":" in before else ":"
                raise ValueError(
                    f"{entry!r} is an option; write it behind its name: {before}{colon}{entry}"
                )
        return tuple(
            entry
            for given in value
            for entry in (expand(given) if isinstance(given, str) else [given])
        )

    @field_serializer("model", "adapter", when_used="json")
    def _name(self, value: str | None) -> str | None:
        return value and recorded(value)

    @field_serializer("scaling", "task", when_used="json")
    def _entries(self, value: tuple[Any, ...]) -> list[str]:
        texts = [given if isinstance(given, str) else function_name(given) for given in value]
        return [*map(recorded_entry, texts)]

    @field_serializer("docs", when_used="json")
    def _names_of_documents(self, value: Any) -> str | dict[str, str]:
        if isinstance(value, dict):
            return {task: recorded_documents(given) for task, given in value.items()}
        return recorded_documents(value)

    @field_validator("docs", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        named = [*value, *value.values()] if isinstance(value, dict) else [value]
        texts = [one for one in named if not isinstance(one, Documents)]
        if value == {} or not all(isinstance(text, str) and text for text in texts):
            raise ValueError(
                "name a text file, a folder or a data set, or one for each task (TASK: NAME)"
            )
        return value

    @field_validator("out", mode="after")
    @classmethod
    def _a_folder(cls, value: Path | None) -> Path | None:
        """Refuse an empty name, as of a variable that is not set."""
        if value == Path():
            raise ValueError("name a folder; for the working folder, write its path in full")
        return value

    @field_validator("max_memory", mode="before")
    @classmethod
    def _a_size(cls, value: Any) -> Any:
        """Accept a number of bytes; reject what is not a size."""
        text = str(value) if _is_whole(value) else value
        if isinstance(text, str):
            size(text)
        return text

    @property
    def memory(self) -> int | None:
        """The bytes that weights and work may take; None for no limit."""
        return size(self.max_memory) if self.max_memory else None

    @property
    def opened(self) -> list[str]:
        """Return the words of a command line that open the same model."""
        values = {"--revision": self.revision, "--trained-length": self.trained_length}
        switches = {"--trust-remote-code": self.trust_remote_code, "--offline": self.offline}
        words = [word for name, value in values.items() if value for word in (name, str(value))]
        return [self.model, *words, *(name for name, given in switches.items() if given)]

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


def _is_whole(item: Any) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)


def bundled() -> dict[str, str]:
    """Return the sweeps that come with the program: by name, the first line of each."""
    files = sorted(BUNDLED.glob("*.yaml"))
    return {f.stem: f.read_text(encoding="utf-8").partition("\n")[0].strip("# ") for f in files}


def read_sweep_file(given: Path) -> dict[str, Any]:
    """Return the settings of a sweep file, or of the bundled one of this name.

    Raises UserError for any other content, and for a key that is there twice.
    """
    named = BUNDLED / f"{given}.yaml"
    own = given.suffix or len(given.parts) != 1 or given.exists()
    file = named if not own and named.exists() else given
    if file.suffix == ".py":
        raise UserError(
            f"{file} is code, not a sweep file; name it as --scaling {file} or --task {file}."
        )
    try:
        content = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        known = nearest(str(given), bundled())  # where a name was given rather than a file
        meant = "" if given.suffix else f"; among the bundled sweeps, {known}"
        raise UserError(f"sweep file {file} does not exist{meant}.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"sweep file {file} cannot be read: {why(error)}.") from None
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


def parse(file: Path | None, flags: dict[str, Any]) -> Spec:
    """Return the Spec of a sweep over one model; raise UserError as ``parse_all`` does.

    Names in flags are not looked up: what ``tune`` searches is no method.
    """
    specs = parse_all(file, flags, names=file is not None)
    if len(specs) > 1:
        raise UserError(f"{len(specs)} models are named; name one.")
    return specs[0]


def parse_all(file: Path | None, flags: dict[str, Any], *, names: bool = True) -> tuple[Spec, ...]:
    """Merge a sweep file with the flags that were given (which win); return a Spec per model.

    Raises Problems with all mistakes in the settings, or else with those in ``names``. Each says
    the key, what was given and what is allowed.
    """
    settings = {**(read_sweep_file(file) if file else {}), **flags}
    found, most = Collector(), settings.pop("limit", None)
    where = str(file) if file else ""
    for key in (key for key in settings if key not in Spec.model_fields):
        known = nearest(key, Spec.model_fields)
        found.sentences.append(f"no setting is called {key!r}; {known}.")
    models: list[dict[str, Any]] = [{}]
    with found.collecting():
        if most is not None:
            settings |= _limited(settings, most)
        models = [model | adapter for model in _models(settings) for adapter in _adapters(settings)]
    found.check(where)
    specs = []
    for model in models:
        with found.collecting():
            specs.append(_validated({**settings, **model}))
    found.check(where)
    if names:
        _check_names(settings, found)
        found.check(where)
    return tuple(specs)


def _limited(given: Mapping[str, Any], most: Any) -> dict[str, Any]:
    """Return the documents and tasks of a sweep with at most so many documents and trials.

    Raises UserError for what is no number of them.
    """
    if not re.fullmatch(r"[1-9][0-9]{0,8}", str(most)):
        raise UserError(
            f"limit: {SHORT.repr(most)} is not a number of documents and trials; write a whole "
            "number, as in --limit 10. A fraction of a data set cannot be measured."
        )
    docs, count = given.get("docs", "embedded"), int(most)
    if isinstance(docs, dict):
        docs = {task: limited(one, count) for task, one in docs.items()}
    else:
        docs = limited(docs, count)
    tasks = [
        _with_trials(entry, count) if isinstance(entry, str) else entry
        for listed in _listed(given.get("task", TASKS))
        for entry in (expand(listed) if isinstance(listed, str) else [listed])
    ]
    return {"docs": docs, "task": tasks}


def _with_trials(entry: str, most: int) -> str:
    """Return a task with at most so many trials, or lm-eval documents, where it has any."""
    try:
        has = load("task", entry).options
    except UserError:  # which the check of names tells
        return entry
    option = next((option for option in ("trials", "limit") if option in has), None)
    if option is None or 0 < has[option] <= most:
        return entry
    name, _, listed = entry.partition(":")
    options = split_options(name, listed) | {option: str(most)}
    return f"{name}:{','.join(f'{key}={value}' for key, value in options.items())}"


def methods_of(given: Sequence[str]) -> tuple[str, ...]:
    """Return the methods of a list of names and of grids; raise UserError for all that are none."""
    return tuple(map(str, parse_all(None, {"scaling": given})[0].scaling)) if given else ()


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _check_names(settings: Mapping[str, Any], found: Collector) -> None:
    """Collect what is wrong with the names and options that are given.

    Files of a user's are left for the plan: they run once.
    """
    for key, kind in (("scaling", "method"), ("task", "task")):
        for grid in _listed(settings.get(key, [])):
            for entry in [] if callable(grid) else expand(str(grid)):
                if "." not in entry.partition(":")[0]:
                    with found.collecting():
                        load(kind, entry)
    docs = settings.get("docs", {})
    for name in docs.values() if isinstance(docs, dict) else [docs]:
        with found.collecting():
            open_documents(name)


def _models(given: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the model and revision of every Spec; ``NAME@REVISION`` gives one its own."""
    if "model" not in given:
        return [{}]
    models = [_split(name) for name in _once_each(given, "model")]
    if not models:
        raise UserError(f"model: name at least one (given: {SHORT.repr(given['model'])}).")
    pinned = any("revision" in model for model in models)
    if given.get("revision") is not None and (len(models) > 1 or pinned):
        raise UserError("model: a revision is one model's; write each as NAME@REVISION alone.")
    return models


def _adapters(given: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the adapter of every Spec of a model; ``none`` is the model itself."""
    if "adapter" not in given:
        return [{}]
    names = _once_each(given, "adapter")
    return [{"adapter": None if name in (None, "none") else str(name)} for name in names] or [{}]


def _once_each(given: Mapping[str, Any], key: str) -> list[Any]:
    """Return the entries of a setting; raise UserError for one that is there twice."""
    names = _listed(given[key])
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{key}: {SHORT.repr(name)} is named twice; leave one out.")
    return names


def _split(name: Any) -> dict[str, Any]:
    if not isinstance(name, str) or "@" not in name or "/" in name.rpartition("@")[2]:
        return {"model": name}
    hub, _, revision = name.rpartition("@")
    local = name.startswith((".", "/", "~"))
    return {"model": name} if local else {"model": hub, "revision": revision}


def _validated(given: dict[str, Any]) -> Spec:
    """Return a Spec; raise Problems with what is wrong, in pydantic's words."""
    try:
        return Spec.model_validate(given)
    except ValidationError as error:
        sentences: dict[Any, str] = {}
        for one in error.errors():
            place, quoted = one["loc"], SHORT.repr(one["input"])
            reason = one["msg"].removeprefix("Value error, ").replace("Input should", "it must")
            if one["type"] == "literal_error" and isinstance(one["input"], str):
                reason = nearest(one["input"], re.findall(r"'([^']*)'", one["ctx"]["expected"]))
            shown = "" if quoted in reason else f" (given: {quoted})"
            # Of a value that may be one of two types, the first type's words are enough.
            sentences.setdefault(place[:1], f"{place[0]}: {reason}{shown}.")
        raise Problems(sentences.values()) from None
