"""The contracts of methods and encodings, as checks for their authors."""

from __future__ import annotations

import copy
import inspect
import math
import typing
from collections.abc import Callable, Sequence
from contextlib import suppress
from tempfile import TemporaryDirectory

import torch
from transformers.utils import logging

from ropewalk.harness.encodings._config import config_of
from ropewalk.harness.encodings._model import EncodingForCausalLM
from ropewalk.scaling.types import Frequencies, Rope, Rotation

SMALL = {  # a model around an encoding
    "hidden_size": 32,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "vocab_size": 101,
    "initializer_range": 0.5,
}
TOLERANCE = 1e-3  # of logits whose spread is about 1


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


@torch.inference_mode()
def check_encoding(encoding: str) -> None:
    """Raise AssertionError, with one sentence, where an encoding breaks its contract.

    In a small model of random weights its logits must be finite and must not depend on later
    tokens. They must be equal for a text that is read in parts through a cache, and for a model
    that is saved and loaded.

    Args:
        encoding: a name or a ``.py`` file, with options.
    """
    logging.disable_progress_bar()  # of a model that is saved and loaded in a moment
    config = config_of(encoding, **SMALL)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = EncodingForCausalLM(config).eval()
        parts = model.model.encoding
        for parameter in parts.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    if hasattr(parts, "attend") and (hasattr(parts, "scores") or hasattr(parts, "values")):
        raise AssertionError("attend replaces softmax attention: scores and values are not called")
    if hasattr(parts, "base") and not hasattr(parts, "turn"):
        raise AssertionError("base gives a rotary embedding, and there is no turn that applies it")
    tokens = torch.arange(config.max_position_embeddings)[None] ** 2 % config.vocab_size
    logits = model(input_ids=tokens, use_cache=False).logits
    if not bool(logits.isfinite().all()):
        raise AssertionError("its logits are not finite")

    changed = torch.cat((tokens[:, :40], (tokens[:, 40:] + 1) % config.vocab_size), 1)
    before = model(input_ids=changed, use_cache=False).logits[:, :40]
    _check_near(before, logits[:, :40], "a token depends on a later one")

    cache, read = None, []
    for part in tokens.tensor_split((20, 21, 40), 1):
        out = model(input_ids=part, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        read.append(out.logits)
    _check_near(torch.cat(read, 1), logits, "a text that is read in parts has other logits")

    with TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        saved = EncodingForCausalLM.from_pretrained(folder, config=copy.deepcopy(model.config))
        try:
            again = saved.eval()(input_ids=tokens, use_cache=False).logits
        except RuntimeError as error:  # of a tensor without values
            raise AssertionError("a tensor is not saved") from error
    _check_near(again, logits, "a tensor is not saved")


def _check_near(result: torch.Tensor, wanted: torch.Tensor, wrong: str) -> None:
    error = float((result - wanted).abs().max())
    if not error < TOLERANCE:
        raise AssertionError(f"{wrong}: logits differ by {error:.2g}")
