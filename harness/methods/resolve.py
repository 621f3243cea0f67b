"""Compute the rotation of each method at each length, or the reason why it fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from harness.errors import UserError
from harness.plugins import Plugin, call, entry
from scaling.types import (
    Bands,
    PerLayerFrequencies,
    Rope,
    Rotation,
    StatefulRope,
    by_layer,
    sets_of,
)


def resolve(method: Plugin, rope: Rope, length: int) -> Rotation:
    """Return the rotation of a method at a length; raise UserError for an invalid one."""
    what = f"scaling {method.label} at length {length}"

    def rotation() -> Rotation:  # what a user's code returns may fail when it is looked at
        return _checked(
            what, entry(method.module, "method")(rope, length, **method.arguments), rope, length
        )

    return call(what, rotation)


def _checked(what: str, found: Any, rope: Rope, length: int) -> Rotation:
    """Return what a method returned if it is a rotation for this geometry; else raise UserError."""
    if not isinstance(found, Rotation):
        raise UserError(
            f"{what}: it returned {type(found).__name__}, not Frequencies, PerLayerFrequencies or"
            " Bands."
        )
    if isinstance(found, Bands) and found.length != length:
        raise UserError(f"{what}: its bands are for {found.length} tokens.")
    if isinstance(found, PerLayerFrequencies) and len(found.layers) != rope.layers:
        raise UserError(
            f"{what}: {len(found.layers)} sets of frequencies for {rope.layers} layers; a method"
            " returns one for each layer."
        )
    wanted = rope.rotary_dim // 2
    for counts in {len(part.inv_freq) for part in sets_of(found)} - {wanted}:
        raise UserError(f"{what}: {counts} frequencies for {wanted} channel pairs.")
    return by_layer(found.layers) if isinstance(found, PerLayerFrequencies) else found


def follows(far: Rotation | None, near: Rotation | None, window: int) -> bool:
    """Return whether a method's rotation at a length is not, cut to the window, that of the window.

    A server keeps the one of the length for all inputs.
    """
    if far is None or near is None or isinstance(far, StatefulRope):
        return False
    cut = far.upto(window) if isinstance(far, Bands) else far
    return cut.fingerprint != near.fingerprint


def over_lengths(
    methods: Sequence[Plugin], rope: Rope, lengths: Sequence[int]
) -> dict[tuple[str, int], Rotation | UserError]:
    """Return the rotation of every method (by label) at every length, or why it failed.

    A user's method that fails at some lengths fails these cells. Raises UserError for a method
    that fails at every length, and for a built-in one that fails at any: its options are wrong.
    """
    found: dict[tuple[str, int], Rotation | UserError] = {}
    for method in methods:
        errors = []
        for length in lengths:
            try:
                found[method.label, length] = resolve(method, rope, length)
            except UserError as error:
                errors.append(error)
                found[method.label, length] = error
        if errors and (method.digest is None or len(errors) == len(lengths)):
            raise errors[0]
    return found


def wider_of(found: Mapping[tuple[str, int], Rotation | UserError]) -> dict[str, Rotation]:
    """Return, by fingerprint of shorter bands, the method's longer bands that begin with them.

    Both can then be measured under one attention, of the method's longest length.
    """
    rotations = {at: one for at, one in found.items() if not isinstance(one, UserError)}
    longest: dict[str, tuple[int, Rotation]] = {}
    for (label, length), one in rotations.items():
        longest[label] = max(longest.get(label, (0, one)), (length, one), key=itemgetter(0))
    wider: dict[str, Rotation] = {}
    for (label, length), one in rotations.items():
        whole = longest[label][1]
        if not isinstance(one, Bands) or not isinstance(whole, Bands) or one is whole:
            continue
        if whole.upto(length).fingerprint == one.fingerprint:
            wider[one.fingerprint] = whole
    return wider
