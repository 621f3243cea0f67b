"""Check the keys of a model's config that this package reads itself, before one is built."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from harness.errors import UserError, reason

MOST_LAYERS, LARGEST = 1_000, 2**63  # whole numbers of a config; larger ones are rejected


class _Keys(BaseModel):
    """The types of these keys at the top of a config and in its ``text_config``."""

    model_config = ConfigDict(strict=True)

    architectures: list[str] | None = None
    text_config: dict[str, Any] | None = Field(None, min_length=1)
    transformers_weights: str | None = None
    layer_types: list[str] | None = None
    max_position_embeddings: int | None = None
    sliding_window: int | None = None
    rope_theta: FiniteFloat | None = None
    rope_parameters: dict[str, Any] | None = None
    rope_scaling: dict[str, Any] | None = None
    quantization_config: dict[str, Any] | None = None
    auto_map: dict[str, Any] | None = None


def check_config(where: str, given: dict[str, Any]) -> None:
    """Raise UserError for keys of a wrong type, and for whole numbers that no model has."""
    _check_numbers(where, given, "the config")
    for keys in (given, given.get("text_config") or {}):
        try:
            _Keys.model_validate(keys)
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(map(str, first["loc"]))
            why = first["msg"].replace("Input should", "it should")
            raise UserError(
                f"the config of {where} gives {name} as {reason(repr(first['input']))}; {why}."
            ) from None


def _check_numbers(where: str, given: object, name: str) -> None:
    if isinstance(given, dict):
        for key, value in given.items():
            _check_numbers(where, value, str(key))
    elif isinstance(given, list):
        for value in given:
            _check_numbers(where, value, name)
    elif isinstance(given, int):
        limit = MOST_LAYERS if "layer" in name else LARGEST
        if abs(given) > limit:
            raise UserError(
                f"the config of {where} gives {name} as {reason(given)}; at most {limit:,}."
            )
