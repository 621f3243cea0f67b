"""From flags, a YAML file, or both to the specs of a sweep: one a model."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness.data.documents import open_documents
from harness.errors import UserError
from harness.names import nearest
from harness.plugins import load
from harness.sweep.option_grid import expand
from harness.sweep.spec import Spec
from harness.sweep.sweep_file import SweepFile, read_sheet
from harness.sweep.units import SHORT


def parse(file: Path | None, flags: dict[str, Any]) -> Spec:
    """Return the Spec of a sweep over one model; raise UserError as ``parse_all`` does."""
    specs = parse_all(file, flags)
    if len(specs) > 1:
        raise UserError(f"{len(specs)} models are named; name one.")
    return specs[0]


def parse_all(file: Path | None, flags: dict[str, Any]) -> tuple[Spec, ...]:
    """Merge a sweep file with the flags that were given (which win); return a Spec per model.

    Raises UserError naming the file and its line, the key, what was given and what is allowed.
    """
    sheet = read_sheet(file) if file else SweepFile()
    for key in (*sheet.settings, *flags):
        if key not in Spec.model_fields:
            known = nearest(key, Spec.model_fields)
            raise UserError(f"{sheet.where((key,))}no setting is called {key!r}; {known}.")
    given = {**sheet.settings, **flags}
    blamed = SweepFile(sheet.file, {}, {p: n for p, n in sheet.lines.items() if p[0] not in flags})
    models = [m | a for m in _models(given, blamed) for a in _adapters(given, blamed)]
    specs = tuple(_validated({**given, **model}, blamed, flags) for model in models)
    _check_names(
        SweepFile(sheet.file, {k: v for k, v in given.items() if k not in flags}, sheet.lines)
    )
    return specs


def _check_names(sheet: SweepFile) -> None:
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
    if sheet.settings.get("published") is not None:
        from harness.published.tables import read_table  # with pandas, which --help must not load

        _at(sheet, ("published",), partial(read_table, sheet.settings["published"]))


def _at(sheet: SweepFile, place: tuple[str | int, ...], check: Callable[[], object]) -> None:
    try:
        check()
    except UserError as error:
        raise UserError(f"{sheet.where(place)}{error}") from None


def _models(given: dict[str, Any], sheet: SweepFile) -> list[dict[str, Any]]:
    """Return the model and revision of every Spec; ``NAME@REVISION`` gives one its own."""
    if "model" not in given:
        return [{}]
    named = given["model"]
    names = list(named) if isinstance(named, list | tuple) else [named]
    where = f"{sheet.where(('model',))}model: "
    if not names:
        raise UserError(f"{where}name at least one (given: {SHORT.repr(named)}).")
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{where}{SHORT.repr(name)} is named twice; leave one out.")
    models = [_split(name) for name in names]
    pinned = any("revision" in model for model in models)
    if given.get("revision") is not None and (len(models) > 1 or pinned):
        raise UserError(
            f"{where}a revision is one model's; write each as NAME@REVISION and no other."
        )
    return models


def _adapters(given: dict[str, Any], sheet: SweepFile) -> list[dict[str, Any]]:
    """Return the adapter of every Spec of a model; ``none`` is the model itself."""
    if "adapter" not in given:
        return [{}]
    named = given["adapter"]
    names = list(named) if isinstance(named, list | tuple) else [named]
    for name in names:
        if names.count(name) > 1:
            message = f"{sheet.where(('adapter',))}adapter: {SHORT.repr(name)} stands there twice;"
            message += " leave one out."
            raise UserError(message)
    return [{"adapter": None if name in (None, "none") else str(name)} for name in names] or [{}]


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


def _validated(given: dict[str, Any], sheet: SweepFile, flags: dict[str, Any]) -> Spec:
    try:
        return Spec.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        place = tuple(first["loc"])
        key = str(place[0])
        reason = first["msg"].removeprefix("Value error, ").replace("Input should", "it must")
        if first["type"] == "literal_error" and isinstance(first["input"], str):
            known = re.findall(r"'([^']*)'", first["ctx"]["expected"])
            reason = nearest(first["input"], known)
        where = "" if key in flags else sheet.where(place)
        raise UserError(f"{where}{key}: {reason}{_given(first['input'], reason)}.") from None
