"""The settings of a sweep: from flags, from a YAML file, or from both."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
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

from harness.data.documents import Documents, limited, open_documents, recorded_documents
from harness.errors import Problems, UserError, foreign, why
from harness.files import read_regular
from harness.names import is_path, nearest, recorded, recorded_entry
from harness.plugins import function_name, load, split_options

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
NAMING = ("model", "revision", "adapter")  # settings that name the model
# Settings with mistakes beside which the rest of a sweep can be planned.
SPARED = {"scaling", "task", "length", "docs", "seed", "out", "track", "published"}
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
BUNDLED = Path(__file__).parent.parent / "published" / "sweeps"
LARGEST = 2**20  # bytes of a sweep file
Place = tuple[str | int, ...]  # a key, or a key and what follows below it
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


@dataclass(frozen=True)
class SweepFile:
    """The settings of a sweep file as YAML reads them, and the lines that they are on."""

    file: Path | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    lines: dict[Place, int] = field(default_factory=dict)

    def where(self, place: Place) -> str:
        """Return "FILE, line N: " of a place or what it is in, "" if it is not in the file."""
        while place and place not in self.lines:
            place = place[:-1]
        return f"{self.file}, line {self.lines[place]}: " if place else ""


def bundled() -> dict[str, str]:
    """Return the sweeps that come with the program: by name, the first line of each."""
    files = sorted(BUNDLED.glob("*.yaml"))
    return {f.stem: f.read_text(encoding="utf-8").partition("\n")[0].strip("# ") for f in files}


def read_sweep_file(given: Path) -> SweepFile:
    """Read a sweep file, or the bundled one of this name; raise UserError for any other content."""
    named = BUNDLED / f"{given}.yaml"
    own = given.suffix or len(given.parts) != 1 or given.exists()
    file = named if not own and named.exists() else given
    if file.suffix == ".py":
        raise UserError(
            f"{file} is code, not a sweep file; name it as --scaling {file} or --task {file}."
        )
    try:
        content = read_regular(file, limit=LARGEST)
    except FileNotFoundError:
        known = nearest(str(given), bundled())  # where a name was given rather than a file
        meant = "" if given.suffix else f"; among the bundled sweeps, {known}"
        raise UserError(f"sweep file {file} does not exist{meant}.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"sweep file {file} cannot be read: {why(error)}.") from None
    return _parsed(file, content)


class _Loader(yaml.BaseLoader):
    """Reads every value as text, which the settings parse: to YAML 010 is 8 and 1:30 is 90."""


_Loader.add_implicit_resolver("null", re.compile("(?:~|null|Null|NULL)?$"), ["~", "n", "N", ""])
_Loader.add_constructor("null", lambda *_: None)


def _parsed(file: Path, content: bytes) -> SweepFile:
    with foreign(f"sweep file {file} is not YAML"):
        loader = _Loader(content.decode("utf-8-sig"))
        node = loader.get_single_node()
        read = loader.construct_document(node) if node is not None else None
    if not isinstance(read, dict) or not isinstance(node, yaml.MappingNode):
        raise UserError(f"sweep file {file} must hold settings (model: …, scaling: […], …).")
    sweep = SweepFile(file, {str(key): value for key, value in read.items()}, {})
    for key, value in node.value:
        name = str(loader.construct_object(key))  # as in the settings: an empty key is None
        _note(sweep, (name,), key)
        parts = value.value if isinstance(value.value, list) else ()
        for index, part in enumerate(parts):
            below, place = (part[0], part[0].value) if isinstance(part, tuple) else (part, index)
            _note(sweep, (name, place), below)
    return sweep


def _note(sweep: SweepFile, place: Place, node: yaml.Node) -> None:
    """Note the line of a place; raise UserError for a key that was there before."""
    line = node.start_mark.line + 1
    if first := sweep.lines.get(place):
        raise UserError(f"{sweep.file}, line {line}: {place[-1]} is on line {first} too; keep one.")
    sweep.lines[place] = line


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

    Raises Problems with all mistakes. Each names the file and its line, the key, what was given and
    what is allowed; ``rest`` are the specs without them.
    """
    sweep = read_sweep_file(file) if file else SweepFile()
    given = {**sweep.settings, **flags}
    most = given.pop("limit", None)
    problems: dict[Place, str] = {}
    for key in [key for key in given if key not in Spec.model_fields]:
        known = nearest(key, Spec.model_fields)
        problems[key,] = f"{sweep.where((key,))}no setting is called {key!r}; {known}."
        del given[key]
    if most is not None:
        try:
            given |= _limited(given, most)
        except UserError as error:
            problems["limit",] = f"{sweep.where(('limit',))}{error}"
    blamed = replace(sweep, lines={p: n for p, n in sweep.lines.items() if p[0] not in flags})
    models: list[dict[str, Any]] = [{}]
    try:
        models = [m | a for m in _models(given, blamed) for a in _adapters(given, blamed)]
    except UserError as error:
        problems["model",] = str(error)
        given = {key: value for key, value in given.items() if key not in NAMING}
    specs = []
    for model in models:
        spec, wrong = _validated({**given, **model}, blamed)
        specs += [spec] if spec else []
        problems |= wrong
    problems |= _wrong_names(given, problems, blamed) if names else {}
    if problems:
        raise Problems(problems.values(), _rest(given, models, problems))
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


def _rest(
    given: Mapping[str, Any], models: Sequence[dict[str, Any]], problems: Collection[Place]
) -> tuple[Spec, ...]:
    """Return the specs without their mistakes; a plan made from them finds further ones.

    The list is empty if the model cannot be opened as the user means it.
    """
    keys = {str(place[0]) for place in problems}
    if not keys & {*Spec.model_fields} <= SPARED:
        return ()
    kept, emptied = dict(given), dict[str, tuple[str, ...]]()
    wrong = {place[:2] for place in problems}
    for key in keys & given.keys():
        values = [
            one
            for index, one in enumerate(_listed(kept.pop(key)))
            if not {(key,), (key, index)} & wrong
        ]
        if values:
            kept[key] = values
        elif key in ("scaling", "task", "length", "docs"):
            emptied["task" if key == "docs" else key] = ()  # no task is asked of other documents
    specs = (_validated({**kept, **model}, SweepFile())[0] for model in models)
    return tuple(spec.model_copy(update=emptied) for spec in specs if spec)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _wrong_names(
    given: Mapping[str, Any], problems: Collection[Place], sweep: SweepFile
) -> dict[Place, str]:
    """Return what is wrong with names and options that are there to be checked, by their place.

    Files of a user's are left for the plan: they run once.
    """
    checks: list[tuple[Place, Callable[[], object]]] = []
    for key, kind in (("scaling", "method"), ("task", "task")):
        for index, grid in enumerate(_listed(given.get(key, []))):
            if callable(grid) or {(key,), (key, index)} & {*problems}:
                continue
            entries = [one for one in expand(str(grid)) if "." not in one.partition(":")[0]]
            checks += [((key, index, one), partial(load, kind, one)) for one in entries]
    if (docs := given.get("docs")) is not None and ("docs",) not in problems:
        named = docs if isinstance(docs, dict) else {"": docs}
        checks += [(("docs", task), partial(open_documents, name)) for task, name in named.items()]
    if given.get("published") is not None and ("published",) not in problems:
        from harness.published import read_table  # with pandas, which --help must not load

        checks.append((("published",), partial(read_table, given["published"])))
    wrong: dict[Place, str] = {}
    for place, check in checks:
        try:
            check()
        except UserError as error:
            wrong.setdefault(place, f"{sweep.where(place)}{error}")
    return wrong


def _models(given: dict[str, Any], sweep: SweepFile) -> list[dict[str, Any]]:
    """Return the model and revision of every Spec; ``NAME@REVISION`` gives one its own."""
    if "model" not in given:
        return [{}]
    where = f"{sweep.where(('model',))}model: "
    models = [_split(name) for name in _once_each(given, "model", sweep)]
    if not models:
        raise UserError(f"{where}name at least one (given: {SHORT.repr(given['model'])}).")
    pinned = any("revision" in model for model in models)
    if given.get("revision") is not None and (len(models) > 1 or pinned):
        raise UserError(
            f"{where}a revision is one model's; write each as NAME@REVISION and no other."
        )
    return models


def _adapters(given: dict[str, Any], sweep: SweepFile) -> list[dict[str, Any]]:
    """Return the adapter of every Spec of a model; ``none`` is the model itself."""
    if "adapter" not in given:
        return [{}]
    names = _once_each(given, "adapter", sweep)
    return [{"adapter": None if name in (None, "none") else str(name)} for name in names] or [{}]


def _once_each(given: Mapping[str, Any], key: str, sweep: SweepFile) -> list[Any]:
    """Return the entries of a setting; raise UserError for one that is there twice."""
    names = _listed(given[key])
    for name in names:
        if names.count(name) > 1:
            where = f"{sweep.where((key,))}{key}: "
            raise UserError(f"{where}{SHORT.repr(name)} is named twice; leave one out.")
    return names


def _split(name: Any) -> dict[str, Any]:
    if not isinstance(name, str) or "@" not in name or "/" in name.rpartition("@")[2]:
        return {"model": name}
    hub, _, revision = name.rpartition("@")
    local = name.startswith((".", "/", "~"))
    return {"model": name} if local else {"model": hub, "revision": revision}


def _given(value: Any, reason: str) -> str:
    """Return what was given, where the reason does not quote it."""
    parts = value if isinstance(value, list | tuple) else (value,)
    quoted = any(repr(part) in reason for part in parts)
    return "" if quoted else f" (given: {SHORT.repr(value)})"


def _validated(given: dict[str, Any], sweep: SweepFile) -> tuple[Spec | None, dict[Place, str]]:
    """Return a Spec, or what is wrong with it by place."""
    try:
        return Spec.model_validate(given), {}
    except ValidationError as error:
        problems: dict[Place, str] = {}
        for one in error.errors():
            place = tuple(one["loc"])
            reason = one["msg"].removeprefix("Value error, ").replace("Input should", "it must")
            if one["type"] == "literal_error" and isinstance(one["input"], str):
                known = re.findall(r"'([^']*)'", one["ctx"]["expected"])
                reason = nearest(one["input"], known)
            sentence = f"{sweep.where(place)}{place[0]}: {reason}{_given(one['input'], reason)}."
            # Of a value that may be one of two types, the first type's words are enough.
            listed = len(place) > 1 and isinstance(place[1], int)
            problems.setdefault(place[: 2 if listed else 1], sentence)
        return None, problems
