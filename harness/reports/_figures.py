"""How the figures of a run are drawn: ``figures.toml`` beside it, and flags, which win.

A run may come from anyone: its file has values from fixed lists, and only a flag names a path.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from harness.errors import UserError, foreign, reason
from harness.files import MIB, read_regular
from harness.names import nearest, printable

FILE = "figures.toml"
FOR_PAPER = "paper"  # a style: one column of a two-column paper, whose letters fit as they are
PAGE, COLUMN = 7.0, 3.3  # inches: the text of a two-column paper, and one of its columns
WIDTHS = {"page": PAGE, "column": COLUMN}
LEAST, MOST = 2, 20  # inches
SHOWN = 60  # letters of a name in a figure


def _inches(value: Any) -> float:
    """Return a width in inches, which may be given by its name."""
    try:
        width = WIDTHS[value] if value in ("page", "column") else float(value)
    except (TypeError, ValueError):
        width = 0.0
    if not LEAST <= width <= MOST:
        raise ValueError(f"write 'page', 'column' or the inches, from {LEAST} to {MOST}")
    return width


def _style(style: str | Path) -> Any:
    """Return the settings of a Matplotlib style, by its file or its name."""
    import matplotlib.style

    if named := matplotlib.style.library.get(str(style)):
        return named
    with foreign(f"--style {style} is neither a style of Matplotlib nor a style file"):
        read_regular(Path(style), limit=MIB)  # no device, no pipe, and of a bounded size
        return matplotlib.rc_params_from_file(style, use_default_template=False)


def _shown(name: str) -> str:
    if not (name.isprintable() and 0 < len(name) <= SHOWN):
        raise ValueError(f"a name in figures has 1 to {SHOWN} printable letters")
    return name


class Paper(BaseModel):
    """How figures are drawn for one paper: the keys of ``figures.toml``.

    ``style`` are settings of Matplotlib by name; ``only`` and ``order`` name methods as they were
    measured, ``rename`` and ``colours`` say what these are called and which colour they have.
    Nothing of it changes what is computed: what is left out of a figure counts in the corrections.
    """

    model_config = ConfigDict(extra="forbid")

    width: Annotated[float, BeforeValidator(_inches)] = PAGE
    style: Annotated[Any, BeforeValidator(_style)] = None
    only: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    rename: dict[str, Annotated[str, AfterValidator(_shown)]] = Field(default_factory=dict)
    colours: dict[str, str] = Field(default_factory=dict)

    def kept(self, labels: Mapping[str, str]) -> dict[str, str]:
        """Return the methods that are drawn, in their order, by their label: "ntk = dynamic_ntk".

        A method that coincides with others is drawn where any of them is.
        """
        parts = {name: label.split(" = ") for name, label in labels.items()}
        drawn = [
            name for name in labels if not self.only or any(p in self.only for p in parts[name])
        ]
        place = {name: rank for rank, name in reversed(list(enumerate(self.order or self.only)))}
        drawn.sort(key=lambda name: min(place.get(part, math.inf) for part in parts[name]))
        return {
            name: " = ".join(dict.fromkeys(self.rename.get(part, part) for part in parts[name]))
            for name in drawn
        }

    def colour(self, label: str) -> str | None:
        """Return the colour that a method, or one that coincides with it, is to have."""
        return next((self.colours[p] for p in label.split(" = ") if p in self.colours), None)

    def across(self, panels: int) -> int:
        """Return how many of so many panels of a page are side by side at this width."""
        return max(1, min(panels, math.floor(panels * self.width / PAGE)))

    def tall(self, inches: float) -> float:
        """Return the height of a panel: in a column lower, as it is less wide."""
        return inches if self.width >= PAGE else 0.75 * inches


def requested_figures(run: Path, flags: Mapping[str, Any]) -> Paper:
    """Return what the file beside a run and the flags ask for, or raise UserError."""
    settings = _settings(run / FILE)
    given = {name: value for name, value in flags.items() if value is not None}
    known = f"; known: {', '.join(Paper.model_fields)}"
    for named in (settings, given):
        if str(named.get("style")) == FOR_PAPER:  # a width and no style of Matplotlib
            del named["style"]
            named.setdefault("width", "column")
    in_file = _figures(settings, lambda place, _: f"{run / FILE}: {place}", known)
    if "rename" in given:
        given["rename"] = {**in_file.rename, **_renamed(given["rename"])}
    return _figures({**settings, **given}, lambda place, value: f"--{place} {value}", "")


def _settings(file: Path) -> dict[str, Any]:
    """Return what the file of a run says; raise UserError for a style that is not by name."""
    if not os.path.lexists(file):
        return {}
    with foreign(f"{file} cannot be read"):
        settings = tomllib.loads(read_regular(file, limit=MIB, follow=False).decode())
    if settings.get("style", FOR_PAPER) != FOR_PAPER:
        import matplotlib.style

        if settings["style"] not in (known := matplotlib.style.available):
            raise UserError(
                f"{file}: style {reason(repr(settings['style']))} is none of Matplotlib's; "
                f"{nearest(str(settings['style']), known)}. A style file is named with --style."
            )
    return settings


def _figures(values: Mapping[str, Any], place: Callable[[str, Any], str], known: str) -> Paper:
    """Check the values; raise UserError that begins with the place of the first wrong one."""
    try:
        return Paper.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = place(printable(".".join(map(str, first["loc"]))), reason(first["input"]))
        raise UserError(f"{where}: {first['msg'].removeprefix('Value error, ')}{known}.") from None


def _renamed(pairs: Sequence[str]) -> dict[str, str]:
    """Read METHOD=NAME; a method has ``=`` in its options, so that the last one counts."""
    renames = {}
    for pair in pairs:
        method, sign, name = pair.rpartition("=")
        if not (method and sign and name):
            raise UserError(f"--rename {pair!r}: write METHOD=NAME, as yarn:factor=4=YaRN.")
        renames[method] = name
    return renames


def checked(figures: Paper, frame: pd.DataFrame) -> Paper:
    """Return what figures of these samples are drawn by.

    Raises UserError for a method or a colour that is unknown.
    """
    from matplotlib.colors import is_color_like

    from harness.stats.seeds import names

    named = [*figures.only, *figures.order, *figures.rename, *figures.colours]
    methods = names(frame) if named else set()
    for method in named:
        if method not in methods:
            raise UserError(
                f"no method of these runs is called {method!r}; {nearest(method, methods)}."
            )
    for method, colour in figures.colours.items():
        if not is_color_like(colour):
            raise UserError(f"{colour!r}, of {method}, is no colour; write one as '#0072B2'.")
    return figures
