"""What is asked: sweeps of one model each, from flags, from a YAML file, or from both."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    field_serializer,
    field_validator,
)

from harness.plugins import function_name
from harness.sweep.bounds import CELLS, check_length
from harness.sweep.option_grid import expand
from harness.sweep.units import size, tokens

# A factor that is unset follows the length; what is served is one fixed factor.
SCALING = (
    "none", "pi", "ntk", "dynamic_ntk:factor=2", "ntk_by_parts", "yarn",
    "yarn:factor=4", "yarn:factor=8",
)  # fmt: skip
TASKS = ("perplexity", "passkey")
LENGTHS = ("1x", "2x", "4x", "8x")


def _length(text: str) -> str:
    tokens(text, 1)
    return text


def _grid(entry: str) -> str:
    expand(entry)
    return entry


Entry = Annotated[str, AfterValidator(_grid)]
Method = Entry | Callable[..., Any]
Length = Annotated[str, AfterValidator(_length)]


class Spec(BaseModel):
    """A sweep over one model, as given.

    Each setting is declared here once: the field names are the flags, the keys of a sweep file and
    the keyword arguments from Python, and the descriptions are their help. In Python ``scaling``
    takes functions too: ``f(rope, length) -> Rotation``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(  # "" would be the working folder
        "reference",
        min_length=1,
        description="Folders or hub names (NAME@REVISION); default: the embedded reference model.",
    )
    revision: str | None = Field(
        None, description="Branch, tag or commit on the hub, of one model."
    )
    adapter: str | None = Field(
        None,
        min_length=1,
        description="Adapters of PEFT for the model: folders or hub names; none: the model itself.",
    )
    scaling: tuple[Method, ...] = Field(
        SCALING,
        description="Methods: NAME, NAME:option=value,… (a grid: option=[4,8]), or your own .py "
        "file.",
    )
    task: tuple[Entry, ...] = Field(
        TASKS, description="Tasks: NAME, NAME:option=value,… or a path to your own .py file."
    )
    length: tuple[Length, ...] = Field(
        LENGTHS, description="Tokens: 512, 4k (4096), 2x or 1.5x (of the trained window)."
    )
    docs: str | dict[str, str] = Field(
        "embedded",
        description="A file, a folder, a glob, or DATASET:split=…,field=…; default: embedded "
        "documents.",
    )
    out: Path | None = Field(
        None,
        description="The run folder; default: results/run-MODEL. Of several models, the folder of "
        "theirs.",
    )
    seed: int = Field(
        0, strict=True, ge=-(2**63), lt=2**63, description="Seed of every random draw."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="auto, float32, bfloat16 or float16."
    )
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, …")
    offline: bool = Field(False, description="Send no request to the hub; use what its cache has.")
    max_memory: str | None = Field(
        None,
        description="Bytes that weights and work may take: 800MiB, 12GB; default: what is fastest.",
    )
    trained_length: int | None = Field(
        None,
        strict=True,
        ge=1,
        lt=2**31,
        description="Tokens of a window of pretraining, for a model whose config does not give it.",
    )
    device_map: Literal["auto"] | None = Field(
        None, description="auto: one model over all GPUs, then memory, then disk (accelerate)."
    )
    trust_remote_code: bool = Field(False, description="Let code from the model's repository run.")
    allow_pickle: bool = Field(False, description="Accept weights that are not safetensors.")
    workers: int | None = Field(
        None,
        ge=1,
        le=CELLS,
        description="Measure in so many processes, on Ray; on a GPU machine one a GPU.",
    )
    cluster: str | None = Field(
        None,
        min_length=1,
        description="HOST:PORT of a Ray cluster to measure on, or auto; default: this machine.",
    )
    track: str | None = Field(
        None,
        min_length=1,
        exclude=True,  # of no record: it changes no number
        description="Send scores, tables and figures to trackio, mlflow or wandb "
        "(NAME:project=…), or your own .py file.",
    )
    published: str | None = Field(
        None, description="Of a sweep file: the published table whose settings these are."
    )

    @field_validator("*", mode="before")
    @classmethod
    def _utf8(cls, value: Any) -> Any:
        """Reject a name that no record can hold."""
        parts = [*value, *value.values()] if isinstance(value, dict) else value
        for text in parts if isinstance(parts, list | tuple) else [value]:
            if isinstance(text, str) and not _is_utf8(text):
                raise ValueError("it is not UTF-8; rename the file or the folder")
        return value

    @field_validator("scaling", "task", "length", mode="before")
    @classmethod
    def _as_texts(cls, value: Any) -> Any:
        """Accept YAML's numbers, and one entry for a list of one."""
        items = value if isinstance(value, list | tuple) else [value]
        if not items:
            raise ValueError("name at least one")
        if len(items) > CELLS:
            raise ValueError(f"{len(items):,} entries; name at most {CELLS:,}")
        return tuple(str(item) if _is_whole(item) else item for item in items)

    @field_validator("scaling", "task", mode="after")
    @classmethod
    def _without_grids(cls, value: tuple[Any, ...]) -> tuple[Any, ...]:
        names = [given for given in value if isinstance(given, str)]
        for before, entry in pairwise(("NAME", *names)):
            if re.match(r"\w+=(?!.*\.py$)", entry):
                colon = "," if ":" in before else ":"
                raise ValueError(
                    f"{entry!r} is an option; write it behind its name: {before}{colon}{entry}"
                )
        return tuple(
            entry
            for given in value
            for entry in (expand(given) if isinstance(given, str) else [given])
        )

    @field_serializer("scaling", when_used="json")
    def _names_of_functions(self, value: tuple[Any, ...]) -> list[str]:
        return [given if isinstance(given, str) else function_name(given) for given in value]

    @field_validator("docs", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        names = list(value.values()) if isinstance(value, dict) else [value]
        keys = value if isinstance(value, dict) else ()
        if not names or not all(isinstance(text, str) and text for text in (*names, *keys)):
            raise ValueError(
                "name a text file, a folder or a data set, or one for each task (TASK: NAME)"
            )
        return value

    @field_validator("out", mode="after")
    @classmethod
    def _a_folder(cls, value: Path | None) -> Path | None:
        """Refuse an empty name, as of a variable that is not set."""
        if value == Path():
            raise ValueError("name a folder; for the working folder, write its path in full")
        return value

    @field_validator("max_memory", mode="before")
    @classmethod
    def _a_size(cls, value: Any) -> Any:
        """Accept a number of bytes; reject what is not a size."""
        text = str(value) if _is_whole(value) else value
        if isinstance(text, str):
            size(text)
        return text

    @property
    def memory(self) -> int | None:
        """The bytes that weights and work may take; None for no limit."""
        return size(self.max_memory) if self.max_memory else None

    @property
    def opened(self) -> list[str]:
        """Return the words of a command line that open the same model."""
        revision = ["--revision", self.revision] if self.revision else []
        switches = {"--trust-remote-code": self.trust_remote_code, "--offline": self.offline}
        return [self.model, *revision, *(name for name, given in switches.items() if given)]

    def lengths(self, trained_length: int) -> tuple[int, ...]:
        """Return the lengths in tokens, ascending, each once; a part of a token is rounded.

        Raises UserError for one that holds no token, or too many.
        """
        found = {text: tokens(text, trained_length) for text in self.length}
        for text, length in found.items():
            check_length(text, length)
        return tuple(sorted(set(found.values())))


def _is_utf8(text: str) -> bool:
    return text == text.encode(errors="ignore").decode()


def _is_whole(item: Any) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)
