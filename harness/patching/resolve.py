"""Compute the rotation of each method at each length, or the reason why it fails."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

from ropewalk.harness.errors import UserError
from ropewalk.harness.plugins import Plugin, call, entry, load
from ropewalk.scaling.types import Frequencies, Rope, Rotation


def resolve(method: Plugin, rope: Rope, length: int) -> Rotation:
    """Return the rotation of a method at a length; raise UserError for an invalid one.

    A model without a rotary embedding (no rotated channels) takes the methods that would leave one
    as it is, and scale queries at most.
    """
    if not rope.rotary_dim:
        rotary, far = replace(rope, rotary_dim=64, base=1e4), max(length, 2 * rope.trained_length)
        plain = Frequencies(rotary.inv_freq())
        if _called(method, rotary, far).inside().fingerprint != plain.fingerprint:
            raise UserError(
                f"The model has no rotary embedding that {method.label} could change; measure it"
                " with --scaling none, or with methods that scale queries, such as log_n."
            )
    result = _called(method, rope, length)
    again = result if method.digest is None else _called(method, rope, length)
    if again.fingerprint != result.fingerprint:
        raise UserError(
            f"scaling {method.label} at length {length}: two calls returned different numbers. A "
            "method depends on the rope, the length and its options alone; seed its random numbers "
            "and keep no state."
        )
    return result if rope.rotary_dim else result.as_bands(length).plainest()


def _called(method: Plugin, rope: Rope, length: int) -> Rotation:
    what = f"scaling {method.label} at length {length}"

    def rotation() -> Rotation:  # what a user's code returns may fail when it is looked at
        result: Any = entry(method.module, "method")(rope, length, **method.arguments)
        if not isinstance(result, Rotation):
            raise UserError(
                f"{what}: it returned {type(result).__name__}, not Frequencies, "
                "PerLayerFrequencies or Bands."
            )
        return result.checked(rope, length)

    return call(what, rotation)


def depends_on_length(far: Rotation | None, near: Rotation | None, window: int) -> bool:
    """Return whether a method's rotation at a longer length differs inside the trained window.

    A server uses the one of the longer length for all inputs.
    """
    if far is None or near is None or far.stateful:
        return False
    return far.upto(window).fingerprint != near.fingerprint


def as_served(given: str, rope: Rope, length: int) -> str:
    """Return a method with the factor that a server keeps, where it takes that of each length.

    The factor may be that of the method that ``on`` names. A method that no factor makes the same
    at all lengths is returned as it is.
    """
    factor = f"factor={rope.stretch(length):.15g}"
    forms = [f"{given}{',' if ':' in given else ':'}{factor}"]
    before, *on = re.split(r"(?<=[:,])on=", given, maxsplit=1)
    for inner, comma, after in (one.partition(",") for one in on):
        forms.append(f"{before}on={inner}{'+' if ':' in inner else ':'}{factor}{comma}{after}")
    for fixed in forms:
        try:
            method = load("method", fixed)
            far, near = (resolve(method, rope, at) for at in (length, rope.trained_length))
        except UserError:  # it has no factor, or one already
            continue
        same = far.fingerprint == resolve(load("method", given), rope, length).fingerprint
        if same and not depends_on_length(far, near, rope.trained_length):
            return fixed
    return given


def over_lengths(
    methods: Sequence[Plugin], rope: Rope, lengths: Sequence[int]
) -> dict[tuple[str, int], Rotation | UserError]:
    """Return the rotation of every method (by label) at every length, or why it failed.

    A user's method that fails at some lengths fails these cells. Raises UserError for a method
    that fails at every length, and for a built-in one that fails at any: its options are wrong.
    """
    results: dict[tuple[str, int], Rotation | UserError] = {}
    for method in methods:
        errors = []
        for length in lengths:
            try:
                results[method.label, length] = resolve(method, rope, length)
            except UserError as error:
                errors.append(error)
                results[method.label, length] = error
        if errors and (method.digest is None or len(errors) == len(lengths)):
            raise errors[0]
    return results


def supersets(results: Mapping[tuple[str, int], Rotation | UserError]) -> dict[str, Rotation]:
    """Return the method's longest bands by the fingerprint of the shorter ones they begin with.

    Both can then be measured under one attention, that of the longest length.
    """
    rotations = {at: one for at, one in results.items() if not isinstance(one, UserError)}
    longest: dict[str, tuple[int, Rotation]] = {}
    for (label, length), one in rotations.items():
        longest[label] = max(longest.get(label, (0, one)), (length, one), key=itemgetter(0))
    result: dict[str, Rotation] = {}
    for (label, length), one in rotations.items():
        whole = longest[label][1]
        if not (one.moves_positions and whole.moves_positions) or one is whole:
            continue
        if whole.upto(length).fingerprint == one.fingerprint:
            result[one.fingerprint] = whole
    return result
