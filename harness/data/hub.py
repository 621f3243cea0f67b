"""Read documents from Hugging Face data sets: on the hub, in a folder like one, or saved."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

from huggingface_hub import constants

from harness.data.arrow import check_batches, record_of
from harness.data.files import RawDocument, text_of
from harness.errors import UserError, reason
from harness.hub import gated, refusal
from harness.names import nearest

SHARD = re.compile(r"(.*)-\d{5}-of-(\d{5})(.*)")  # one of the files of a split
DEFAULT = "test"  # split
BUFFER = 100  # rows in memory from which a streamed set is drawn; its shards have any order


@dataclass(frozen=True)
class Rows:
    """The rows of a data set to read; ``some`` means that not all will be read."""

    name: str
    split: str | None
    config: str | None
    revision: str | None
    field: str
    seed: int | None
    some: bool


def is_saved(path: Path) -> bool:
    """Return whether a folder was written by ``save_to_disk``."""
    return (path / "dataset_info.json").exists() or (path / "dataset_dict.json").exists()


def read_set(rows: Rows, longest: int | None) -> Iterator[RawDocument]:
    """Yield the documents of one split, streamed where only some of them are needed.

    Raises UserError where the library cannot open or parse it, and for a row without the field.
    """
    from datasets.exceptions import DatasetGenerationError, DatasetNotFoundError

    short = Path(rows.name).name
    split = rows.split or DEFAULT
    try:
        for index, row in _numbered(rows, split):
            label = short if index is None else f"{short}[{index}]"
            text = text_of(row, rows.field, label, longest)
            # A drawn stream does not give the numbers of its rows.
            mark = "" if index is not None else f"#{sha256((text or '').encode()).hexdigest()[:8]}"
            yield f"{label}{mark}", text
    except UserError:
        raise
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        RuntimeError,
        DatasetGenerationError,
    ) as error:
        # The library's message on a broken file is only in the cause.
        why = refusal(error, rows.name, "data set") or reason(error.__cause__ or error)
        if isinstance(error, DatasetNotFoundError) and "gated" in why:
            why = gated(rows.name, "data set")
        raise UserError(
            f"{_not_here(rows)}data set {rows.name} (split {split}) cannot be read: {why}"
        ) from error


def _not_here(rows: Rows) -> str:
    """Return what to say of a name that may be meant as a file's: nothing is there."""
    there = Path(rows.name).exists()
    return "" if there else f"there is no file or folder {rows.name}, and "


def _numbered(rows: Rows, split: str) -> Iterator[tuple[int | None, dict[str, Any]]]:
    """Yield (number, row) in file order or drawn; a drawn stream gives no numbers."""
    found: Any = _opened(rows, split)
    if hasattr(found, "select"):
        order = list(range(len(found)))
        if rows.seed is not None:
            Random(rows.seed).shuffle(order)
        table, short = found.with_format("arrow"), Path(rows.name).name
        for index in order:
            yield index, record_of(table[index], rows.field, f"{short}[{index}]")
    elif rows.seed is None:
        yield from enumerate(found)
    else:
        shuffled = found.shuffle(seed=rows.seed, buffer_size=BUFFER)
        yield from ((None, row) for row in shuffled)


def _opened(rows: Rows, split: str) -> Iterable[dict[str, Any]]:
    import datasets

    _check_place(rows)
    if not is_saved(Path(rows.name)):
        options = {"name": rows.config, "split": split, "streaming": rows.some}
        if Path(rows.name).exists():
            return datasets.load_dataset(rows.name, **options)  # type: ignore[no-any-return]
        if constants.HF_HUB_OFFLINE:
            return datasets.load_dataset(_downloaded(rows), **options)  # type: ignore[no-any-return]
        options |= {} if rows.some else _of_split(rows, split)
        return datasets.load_dataset(  # type: ignore[no-any-return]
            rows.name, revision=rows.revision, **options
        )
    for file in sorted(Path(rows.name).rglob("*.arrow")):
        check_batches(file, f"{Path(rows.name).name}/{file.name}")
    found: Any = datasets.load_from_disk(rows.name)
    if not isinstance(found, datasets.DatasetDict):
        if rows.split is not None:
            raise UserError(
                f"--docs {rows.name} is one data set without splits; leave split={split} out."
            )
        return found  # type: ignore[no-any-return]
    if split not in found:
        raise UserError(f"--docs {rows.name} has no split {split!r}; {nearest(split, found)}.")
    return found[split]  # type: ignore[no-any-return]


def _check_place(rows: Rows) -> None:
    """Raise UserError for an option that a folder does not have."""
    path = Path(rows.name)
    config = rows.config if is_saved(path) else None  # a folder like a repository may have some
    for key, value in (("revision", rows.revision), ("config", config)):
        if path.exists() and value is not None:
            raise UserError(
                f"--docs {rows.name} is a folder without a {key}; leave {key}={value} out."
            )


def _of_split(rows: Rows, split: str) -> dict[str, Any]:
    """Return the options that read the files of one split, where the library would load all."""
    import datasets

    builder = datasets.load_dataset_builder(rows.name, name=rows.config, revision=rows.revision)
    files = (builder.config.data_files or {}).get(split, [])
    paths = [file.partition("@")[2].partition("/")[2] for file in files]
    return {"name": None, "data_files": {split: paths}} if all(paths) and paths else {}


def _downloaded(rows: Rows) -> str:
    """Return the path of a whole data set in the hub's cache; raise UserError otherwise."""
    try:
        from huggingface_hub import snapshot_download  # imports the hub's whole client

        folder: str = snapshot_download(
            rows.name, repo_type="dataset", revision=rows.revision, local_files_only=True
        )
    except (OSError, ValueError) as error:
        raise UserError(
            f"{_not_here(rows)}data set {rows.name} (split {rows.split or DEFAULT}) "
            "cannot be read offline: the cache does not have it "
            f"(hf download --repo-type dataset {rows.name})."
        ) from error
    found = {path.relative_to(folder).as_posix() for path in Path(folder).rglob("*")}
    for name in sorted(found):
        part = SHARD.fullmatch(name)
        others = (
            [f"{part[1]}-{i:05}-of-{part[2]}{part[3]}" for i in range(int(part[2]))] if part else []
        )
        lacking = [other for other in others if other not in found]
        if lacking:
            raise UserError(
                f"the hub's cache has only some files of data set {rows.name}: no {lacking[0]}."
            )
    return folder
