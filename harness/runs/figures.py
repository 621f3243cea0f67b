"""How the figures of a run are drawn: ``figures.toml`` beside it, and flags, which win."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.errors import UserError
from harness.names import nearest, printable
from harness.reports.drawing.paper import COLUMN, PAGE, Paper

FILE = "figures.toml"


class Figures(BaseModel):
    """The keys of ``figures.toml``; a flag of the same name wins over its key."""

    model_config = ConfigDict(extra="forbid")

    width: Literal["page", "column"] = "page"
    style: Path | None = None
    only: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    rename: dict[str, str] = Field(default_factory=dict)
    colours: dict[str, str] = Field(default_factory=dict)


def asked(run: Path, flags: Mapping[str, Any]) -> Figures:
    """Return what the file beside a run and the flags ask for, or raise UserError."""
    file = run / FILE
    try:
        told = tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except (OSError, ValueError) as error:
        message = f"{file} cannot be read: {error}."
        raise UserError(message) from None
    if Path(str(told.get("style", ""))).suffix:  # a file; what Matplotlib has is a name
        told["style"] = str(run / str(told["style"]))
    given = {name: value for name, value in flags.items() if value is not None}
    known = f"; known: {', '.join(Figures.model_fields)}"
    beside = _figures(told, lambda place, _: f"{file}: {place}", known)
    if "rename" in given:
        given["rename"] = {**beside.rename, **_renamed(given["rename"])}
    return _figures({**told, **given}, lambda place, value: f"--{place} {value}", "")


def _figures(values: Mapping[str, Any], place: Callable[[str, Any], str], known: str) -> Figures:
    """Check the values; raise UserError that begins with the place of the first wrong one."""
    try:
        return Figures.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = place(printable(".".join(map(str, first["loc"]))), first["input"])
        message = f"{where}: {first['msg']}{known}."
        raise UserError(message) from None


def _renamed(pairs: Sequence[str]) -> dict[str, str]:
    """Read METHOD=NAME; a method has ``=`` in its options, so that the last one counts."""
    found = {}
    for pair in pairs:
        method, sign, name = pair.rpartition("=")
        if not (method and sign and name):
            message = f"--rename {pair!r}: write METHOD=NAME, as yarn:factor=4=YaRN."
            raise UserError(message)
        found[method] = name
    return found


def paper(figures: Figures, frame: pd.DataFrame) -> Paper:
    """Return what figures of these samples are drawn by.

    Raises UserError for a method, a colour or a style that is unknown.
    """
    from matplotlib.colors import is_color_like

    from harness.reports.stats.over_seeds import names

    methods = names(frame)

    named = (figures.only, figures.order, figures.rename, figures.colours)
    for method in (one for given in named for one in given):
        if method not in methods:
            message = f"no method of these runs is called {method!r}; {nearest(method, methods)}."
            raise UserError(message)
    for method, colour in figures.colours.items():
        if not is_color_like(colour):
            message = f"{colour!r}, of {method}, is no colour; write one as '#0072B2'."
            raise UserError(message)
    return Paper(
        width=COLUMN if figures.width == "column" else PAGE,
        style=_style(figures.style) if figures.style else {},
        only=figures.only,
        order=figures.order,
        names=figures.rename,
        colours=figures.colours,
    )


def _style(file: Path) -> Any:
    """Return the settings of a Matplotlib style, by its file or its name."""
    import matplotlib.style

    try:
        named = matplotlib.style.library.get(str(file))
        return named or matplotlib.rc_params_from_file(file, use_default_template=False)
    except (OSError, ValueError) as error:
        message = f"--style {file}: {error}; name a Matplotlib style file, or a style it has."
        raise UserError(message) from None
