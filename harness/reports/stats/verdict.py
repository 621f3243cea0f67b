"""What is known of the best method of one task at one length, in a clause."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.reports.stats.measure import SHARES
from harness.reports.stats.paired import ENOUGH
from harness.reports.writing import sentences


def clause(row: Mapping[str, Any], measured: str) -> str:
    """Return what is known of one task at one length, and of what units."""
    return f"{_found(row, measured)}{_units(row)}"


def _found(row: Mapping[str, Any], measured: str) -> str:
    """Say which method is best and from which it is distinguished."""
    if row["metric"] in SHARES and row["score"] == 0:
        return f"no method has a {measured} above 0 ({_counted(row)})"
    extreme = "lowest" if row["better"] == "lower" else "highest"
    same = f" ({sentences.listed(row['same'])}: the same measurement)" if row["same"] else ""
    first = f"`{row['best']}`{same}{_failed(row)} has the {extreme} {measured}"
    first += f", {sentences.score(row)}"
    if row["runner_up"] is None:
        return f"{first} ({'all methods are the same here' if row['same'] else 'the only method'})"
    second = f"`{row['runner_up']}` {sentences.score(row, 'runner_up_')}"
    if row["difference"] is None:
        return f"{first}, before {second}; scores that are no mean of samples are not compared"
    if row["tied"] is not None:
        return _level(row, first)
    side = "below" if row["difference"] < 0 else "above"
    sure = f"{row['better']} on {row['better_on']:.0f} of {row['n']} {row['units']}"
    lead = f"{first}: {sentences.gap(row)} {side} {second} ({sure}, {sentences.chance(row['p'])})"
    return f"{lead}{_carrier(row)}"


def _level(row: Mapping[str, Any], first: str) -> str:
    """Say what the best is not distinguished from, and how many units would do so."""
    tied = row["tied"]
    if row["score"] == row["runner_up_score"]:
        first = first.replace(" has the ", " has, as others, the ", 1)
    told = f"{first}, but {_counted(row)} "
    if row["enough"] is False:
        told += f"{sentences.are(row['n'])} too few to distinguish it (at least {ENOUGH}) "
    else:
        told += f"{'does' if row['n'] == 1 else 'do'} not distinguish it "
    needed = dict(zip(tied, row["needed"], strict=True))
    told += f"from {sentences.listed(tied)}"
    counts = {name: int(n) for name, n in needed.items() if n.isdigit()}
    small = [name for name, n in needed.items() if n == "negligible"]
    unknown = [name for name, n in needed.items() if n == "?"]
    notes = []
    if counts:
        some = dict.fromkeys((min(counts.values()), max(counts.values())))
        about = " to ".join(f"{n:,}" for n in some)
        notes.append(f"about {about} would distinguish {_those(list(counts), tied)}, if as seen")
    if small:
        notes.append(f"the difference from {_those(small, tied)} is negligible")
    if unknown:
        notes.append(f"how many would distinguish {_those(unknown, tied)} is unknown")
    return f"{told} ({'; '.join(notes)})"


def _those(names: list[str], tied: list[str]) -> str:
    """Return the names, or a pronoun for all that the sentence has listed before."""
    return sentences.listed(names) if len(names) < len(tied) else "it" if len(tied) == 1 else "them"


def _carrier(row: Mapping[str, Any]) -> str:
    """Warn where the difference depends on one unit."""
    if row["carrier"] is None:
        return ""
    return f", which changes by more than half without `{row['carrier']}`"


def _units(row: Mapping[str, Any]) -> str:
    """Say of which units this is, where methods lack some."""
    told = ""
    if row["n"] < row["asked"]:
        told = f", on the {row['n']} of {row['asked']} {row['units']} that all have"
    for name, text in (("lacking", "lacks some"), ("apart", "left out")):
        if row[name] is not None and (name == "apart" or row["n"] < row["asked"]):
            pairs = [pair.rpartition(" ") for pair in row[name]]
            listed = ", ".join(f"`{one}` has {n} of {row['asked']}" for one, _, n in pairs)
            told += f" ({text}: {listed})" if name == "lacking" else f"; {text}: {listed}"
    return told + _others(row)


def failed(row: Mapping[str, Any]) -> dict[str, str]:
    """Return on how many units methods failed: "3 of 23"; these are left out of the scores."""
    pairs = [pair.rpartition(" ") for pair in row["failed"] or []]
    return {name: f"{n} of {row['asked']}" for name, _, n in pairs}


def _counted(row: Mapping[str, Any]) -> str:
    return sentences.counted(row["n"], row["units"])


def _failed(row: Mapping[str, Any]) -> str:
    """Say that the best failed on units that its score leaves out."""
    own = failed(row).get(row["best"])
    return f" (which failed on {own} {row['units']}, left out here)" if own else ""


def _others(row: Mapping[str, Any]) -> str:
    """Say which others failed on units: their scores leave out what they could not do."""
    others = [f"`{name}` on {n}" for name, n in failed(row).items() if name != row["best"]]
    return f"; failed on {row['units']} left out here: {', '.join(others)}" if others else ""
