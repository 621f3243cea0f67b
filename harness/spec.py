"""What is asked: one sweep, from flags, from a YAML file, or from both."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from harness.errors import UserError
from harness.plugins import nearest

SCALING = ("none", "pi", "ntk", "dynamic_ntk:factor=2", "ntk_by_parts", "yarn")
TASKS = ("perplexity", "passkey")
LENGTHS = ("1x", "2x", "4x", "8x")
LENGTH = re.compile(r"([1-9]\d*)([kx]?)")


class Spec(BaseModel):
    """A sweep as it was asked for. The field names are the flags and the keys of a sweep file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field("reference", min_length=1)  # "" would be the working folder
    revision: str | None = None
    scaling: tuple[str, ...] = SCALING
    task: tuple[str, ...] = TASKS
    length: tuple[str, ...] = LENGTHS
    docs: str = Field("embedded", min_length=1)
    out: Path | None = None
    seed: int = 0
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: str = "auto"
    trust_remote_code: bool = False
    allow_pickle: bool = False
    device_map: Literal["auto"] | None = None
    workers: int | None = Field(None, ge=1)
    cluster: str | None = Field(None, min_length=1)

    @field_validator("scaling", "task", "length", mode="before")
    @classmethod
    def _as_texts(cls, value: Any) -> Any:
        """Take YAML's numbers for what they are, and one thing for a list of one."""
        items = value if isinstance(value, list | tuple) else [value]
        if not items:
            message = "name at least one"
            raise ValueError(message)
        return tuple(str(item) if isinstance(item, int) else item for item in items)

    @field_validator("length")
    @classmethod
    def _readable(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            if not LENGTH.fullmatch(text):
                message = f"{text!r} is no length; write 512, 4k (4096) or 2x (of the window)"
                raise ValueError(message)
        return value

    def lengths(self, trained_length: int) -> tuple[int, ...]:
        """Return the lengths in tokens, ascending, each once."""
        unit = {"": 1, "k": 1024, "x": trained_length}
        found = set()
        for text in self.length:
            match = LENGTH.fullmatch(text)
            assert match is not None  # held by the validator
            found.add(int(match[1]) * unit[match[2]])
        return tuple(sorted(found))


def parse(file: Path | None, flags: dict[str, Any]) -> Spec:
    """Merge a sweep file with the flags that were given (which win) and validate both.

    Raises UserError naming the file, the key, what was given and what is allowed.
    """
    given = {**(_from_yaml(file) if file else {}), **flags}
    for key in given:
        if key not in Spec.model_fields:
            message = f"{file}: no setting is called {key!r}; {nearest(key, Spec.model_fields)}."
            raise UserError(message)
    try:
        return Spec.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        reason = first["msg"].removeprefix("Value error, ")
        where = f"{file}: " if file and key.partition(".")[0] not in flags else ""
        message = f"{where}{key}: {reason} (given: {first['input']!r})."
        raise UserError(message) from None


def _from_yaml(file: Path) -> dict[str, Any]:
    try:
        read = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        message = f"sweep file {file} does not exist."
        raise UserError(message) from None
    except OSError as error:
        message = f"sweep file {file} cannot be read: {error.strerror}."
        raise UserError(message) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        message = f"sweep file {file} is not YAML: {reason}."
        raise UserError(message) from None
    if not isinstance(read, dict):
        message = f"sweep file {file} must hold settings (model: …, scaling: […], …)."
        raise UserError(message)
    return {str(key): value for key, value in read.items()}
