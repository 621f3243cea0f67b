"""What is asked: sweeps of one model each, from flags, from a YAML file, or from both."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
)

from harness.data.documents import open_documents
from harness.errors import UserError
from harness.names import nearest
from harness.plugins import load
from harness.published.tables import read_table
from harness.sweep.bounds import CELLS, check_length
from harness.sweep.option_grid import expand
from harness.sweep.sweep_file import Sheet, read_sheet
from harness.sweep.units import SHORT, size, tokens

# A factor that is unset follows the length; what is served is one fixed factor.
SCALING = (
    "none", "pi", "ntk", "dynamic_ntk:factor=2", "ntk_by_parts", "yarn",
    "yarn:factor=4", "yarn:factor=8",
)  # fmt: skip
TASKS = ("perplexity", "passkey")
LENGTHS = ("1x", "2x", "4x", "8x")


def _length(text: str) -> str:
    tokens(text, 1)
    return text


def _grid(entry: str) -> str:
    expand(entry)
    return entry


Entry = Annotated[str, AfterValidator(_grid)]
Length = Annotated[str, AfterValidator(_length)]


class Spec(BaseModel):
    """A sweep over one model, as it was asked for.

    The field names are the flags and the keys of a sweep file. ``docs`` is one name for all tasks,
    or a name for each; ``published`` names the table whose settings these are.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field("reference", min_length=1)  # "" would be the working folder
    revision: str | None = None
    scaling: tuple[Entry, ...] = SCALING
    task: tuple[Entry, ...] = TASKS
    length: tuple[Length, ...] = LENGTHS
    docs: str | dict[str, str] = "embedded"
    out: Path | None = None
    seed: int = Field(0, strict=True, ge=-(2**63), lt=2**63)
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: str = "auto"
    offline: bool = False
    max_memory: str | None = None
    trust_remote_code: bool = False
    allow_pickle: bool = False
    device_map: Literal["auto"] | None = None
    workers: int | None = Field(None, ge=1)
    cluster: str | None = Field(None, min_length=1)
    published: str | None = None

    @field_validator("scaling", "task", "length", mode="before")
    @classmethod
    def _as_texts(cls, value: Any) -> Any:
        """Take YAML's numbers for what they are, and one thing for a list of one."""
        items = value if isinstance(value, list | tuple) else [value]
        if not items:
            message = "name at least one"
            raise ValueError(message)
        if len(items) > CELLS:
            message = f"{len(items):,} entries; name at most {CELLS:,}"
            raise ValueError(message)
        return tuple(str(item) if _is_whole(item) else item for item in items)

    @field_validator("scaling", "task", mode="after")
    @classmethod
    def _without_grids(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for before, entry in pairwise(("NAME", *value)):
            if re.match(r"\w+=(?!.*\.py$)", entry):
                colon = "," if ":" in before else ":"
                message = (
                    f"{entry!r} is an option; write it behind its name: {before}{colon}{entry}"
                )
                raise ValueError(message)
        return tuple(entry for given in value for entry in expand(given))

    @field_validator("docs", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        names = list(value.values()) if isinstance(value, dict) else [value]
        keys = value if isinstance(value, dict) else ()
        if not names or not all(isinstance(text, str) and text for text in (*names, *keys)):
            message = "name a text file, a folder or a data set, or one for each task (TASK: NAME)"
            raise ValueError(message)
        return value

    @field_validator("max_memory", mode="before")
    @classmethod
    def _a_size(cls, value: Any) -> Any:
        """Take a number of bytes for what it is, and refuse what is no size."""
        text = str(value) if _is_whole(value) else value
        if isinstance(text, str):
            size(text)
        return text

    @property
    def memory(self) -> int | None:
        """The bytes that weights and work may take; None for no limit."""
        return size(self.max_memory) if self.max_memory else None

    def lengths(self, trained_length: int) -> tuple[int, ...]:
        """Return the lengths in tokens, ascending, each once; a part of a token is rounded.

        Raises UserError for one that holds no token, or too many.
        """
        found = {text: tokens(text, trained_length) for text in self.length}
        for text, length in found.items():
            check_length(text, length)
        return tuple(sorted(set(found.values())))


def parse(file: Path | None, flags: dict[str, Any]) -> Spec:
    """Return the Spec of a sweep over one model; raise UserError as ``parse_all`` does."""
    specs = parse_all(file, flags)
    if len(specs) > 1:
        message = f"{len(specs)} models are named where one is asked for."
        raise UserError(message)
    return specs[0]


def parse_all(file: Path | None, flags: dict[str, Any]) -> tuple[Spec, ...]:
    """Merge a sweep file with the flags that were given (which win); return a Spec per model.

    Raises UserError naming the file and its line, the key, what was given and what is allowed.
    """
    sheet = read_sheet(file) if file else Sheet()
    for key in (*sheet.settings, *flags):
        if key not in Spec.model_fields:
            known = nearest(key, Spec.model_fields)
            message = f"{sheet.where((key,))}no setting is called {key!r}; {known}."
            raise UserError(message)
    given = {**sheet.settings, **flags}
    blamed = Sheet(sheet.file, {}, {p: n for p, n in sheet.lines.items() if p[0] not in flags})
    models = _models(given, blamed)
    specs = tuple(_validated({**given, **model}, blamed, flags) for model in models)
    _check_names(Sheet(sheet.file, {k: v for k, v in given.items() if k not in flags}, sheet.lines))
    return specs


def _check_names(sheet: Sheet) -> None:
    """Raise UserError, with its line, for a name or an option in a file that nothing here has.

    Files of a user's are left for the plan: they run once.
    """
    for key, kind in (("scaling", "method"), ("task", "task")):
        given = sheet.settings.get(key, [])
        for index, grid in enumerate(given if isinstance(given, list) else [given]):
            for entry in expand(str(grid)):
                if "." not in entry.partition(":")[0]:
                    _at(sheet, (key, index), partial(load, kind, entry))
    docs = sheet.settings.get("docs", {})
    for task, name in docs.items() if isinstance(docs, dict) else [("", docs)]:
        _at(sheet, ("docs", task), partial(open_documents, name))
    if "published" in sheet.settings:
        _at(sheet, ("published",), partial(read_table, sheet.settings["published"]))


def _at(sheet: Sheet, place: tuple[str | int, ...], check: Callable[[], object]) -> None:
    try:
        check()
    except UserError as error:
        message = f"{sheet.where(place)}{error}"
        raise UserError(message) from None


def _models(given: dict[str, Any], sheet: Sheet) -> list[dict[str, Any]]:
    """Return the model and revision of every Spec; ``NAME@REVISION`` gives one its own."""
    if "model" not in given:
        return [{}]
    named = given["model"]
    names = list(named) if isinstance(named, list | tuple) else [named]
    where = f"{sheet.where(('model',))}model: "
    if not names:
        message = f"{where}name at least one (given: {SHORT.repr(named)})."
        raise UserError(message)
    for name in names:
        if names.count(name) > 1:
            message = f"{where}{SHORT.repr(name)} stands there twice; leave one out."
            raise UserError(message)
    models = [_split(name) for name in names]
    pinned = any("revision" in model for model in models)
    if given.get("revision") is not None and (len(models) > 1 or pinned):
        message = f"{where}a revision is one model's; write each as NAME@REVISION and no other."
        raise UserError(message)
    return models


def _split(name: Any) -> dict[str, Any]:
    if not isinstance(name, str) or "@" not in name or "/" in name.rpartition("@")[2]:
        return {"model": name}
    hub, _, revision = name.rpartition("@")
    local = name.startswith((".", "/", "~"))
    return {"model": name} if local else {"model": hub, "revision": revision}


def _validated(given: dict[str, Any], sheet: Sheet, flags: dict[str, Any]) -> Spec:
    try:
        return Spec.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        place = tuple(first["loc"])
        key = str(place[0])
        reason = first["msg"].removeprefix("Value error, ")
        if first["type"] == "literal_error" and isinstance(first["input"], str):
            known = re.findall(r"'([^']*)'", first["ctx"]["expected"])
            reason = nearest(first["input"], known)
        where = "" if key in flags else sheet.where(place)
        message = f"{where}{key}: {reason} (given: {SHORT.repr(first['input'])})."
        raise UserError(message) from None


def _is_whole(item: Any) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)
