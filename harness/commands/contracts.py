"""The contract of a method, as a check for its author."""

from __future__ import annotations

import copy
import inspect
import math
import typing
from collections.abc import Callable, Sequence
from contextlib import suppress

from ropewalk.scaling.types import Frequencies, Rope, Rotation


def check_method(
    method: Callable[..., Rotation],
    rope: Rope,
    lengths: Sequence[int],
    *,
    plain_inside: bool = False,
) -> None:
    """Raise AssertionError, with one sentence, where a method breaks its contract.

    At every length, the method must:

    - return ``Frequencies`` (float32, finite, not negative, one per channel pair, attention factor
      above 0), ``PerLayerFrequencies``, or ``Bands`` (causal, every query with a key, no pair
      twice);
    - return the same bits when it is called again, after calls at other lengths too;
    - leave the rope as it is;
    - reject NaN (or -1 for a whole number) with a ValueError, for each numeric option;
    - be the plain embedding, bit for bit, inside the trained window, where ``plain_inside``.

    An error of the method's own, other than ValueError, is not caught.

    Args:
        method: the function of a method's file, or a partial with its options.
        rope: the geometry, such as ``rope_of(model.config)``.
        lengths: tokens of the contexts to try; two or more show a method that keeps a state.
        plain_inside: whether the method promises this.
    """
    first = {length: _rotation(method, rope, length) for length in lengths}
    prints = {length: rotation.fingerprint for length, rotation in first.items()}
    for length in reversed(lengths):
        again = _rotation(method, rope, length)
        if not again.fingerprint == first[length].fingerprint == prints[length]:
            raise AssertionError(f"at {length} tokens, a second call gives other numbers")
    options = inspect.signature(method).parameters
    for name, hint in typing.get_type_hints(getattr(method, "func", method)).items():
        kinds = (hint, *typing.get_args(hint))
        if name not in options or options[name].kind is not inspect.Parameter.KEYWORD_ONLY:
            continue
        value = math.nan if float in kinds else -1
        if float in kinds or int in kinds:
            with suppress(ValueError):
                method(rope, max(lengths), **{name: value})
                raise AssertionError(f"{name}={value} does not raise a ValueError")
    plain = Frequencies(rope.inv_freq()).fingerprint
    for length in sorted({rope.trained_length, *lengths}) if plain_inside else ():
        inside = length <= rope.trained_length
        if inside and _rotation(method, rope, length).plainest().fingerprint != plain:
            raise AssertionError(
                f"at {length} tokens, inside the trained window, it is not the plain embedding"
            )


def _rotation(method: Callable[..., Rotation], rope: Rope, length: int) -> Rotation:
    copied = copy.deepcopy(rope)
    try:
        rotation = method(copied, length)
        if not isinstance(rotation, Rotation):
            raise AssertionError(
                f"at {length} tokens, it returns {type(rotation).__name__}, not Frequencies, "
                "PerLayerFrequencies or Bands"
            )
        rotation = rotation.checked(rope, length)
    except ValueError as error:
        raise AssertionError(f"at {length} tokens: {error}") from error
    if copied != rope:
        raise AssertionError(f"at {length} tokens, it changes the rope that it is given")
    return rotation
