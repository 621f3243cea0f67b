"""Measure the heads of a model on documents, for the methods that treat heads differently."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ropewalk.harness.api.observer import LOG, Observer
from ropewalk.harness.api.settings import name_of, read_spec
from ropewalk.harness.data.corpus import Corpus
from ropewalk.harness.data.documents import open_documents
from ropewalk.harness.errors import UserError
from ropewalk.harness.files import make_folder, replacing
from ropewalk.harness.models.checkpoint import Checkpoint
from ropewalk.harness.models.weights import load_weights
from ropewalk.harness.patching.heads import HeadTables, measure_heads
from ropewalk.harness.sweep.plan import open_model

DEFAULTS = {"length": "1x"}
FILE = "heads.json"


@dataclass(frozen=True)
class Calibration:
    """What was measured, on which documents (name and sha256), and the file that has it."""

    model: str
    length: int
    documents: tuple[dict[str, Any], ...]
    tables: HeadTables
    file: Path


def calibrate(
    model: str | Path,
    *,
    documents: int = 10,
    out: str | Path = FILE,
    observer: Observer = LOG,
    **settings: Any,
) -> Calibration:
    """Measure every head on the beginnings of the first ``documents`` of ``docs``.

    The file is what ``ms_poe:heads=FILE`` and ``dpe:heads=FILE`` read. ``length`` is the tokens
    read of each document, at most the trained window (the default: 1x); other settings are docs,
    dtype, device, revision, offline and trust_remote_code. Raises UserError before any weight is
    read for documents that are too short and for what is no model.
    """
    spec = read_spec({"model": name_of(model), **settings}, DEFAULTS)
    if documents < 1:
        raise UserError(f"--documents {documents} is invalid: calibrate reads 1 or more.")
    file = Path(out)
    if file.is_dir():
        raise UserError(f"--out {file} is a folder; name a file, as in --out {file / FILE}.")
    with observer.status("Reading config, tokenizer and documents"):
        checkpoint = open_model(spec)
        texts, entries, length = _texts(spec, checkpoint, documents)
    make_folder(file.absolute().parent, "--out")  # before hours of measuring
    observer.note(
        f"Measuring {checkpoint.config.model_type} heads on {len(texts)} documents of {length:,}"
        " tokens."
    )
    with observer.status("Loading the weights") as say:
        weights = load_weights(checkpoint)

        def read() -> Iterator[Sequence[int]]:
            for number, text in enumerate(texts, start=1):
                say(f"Document {number} of {len(texts)}")
                yield text

        tables = measure_heads(weights, read())
    result = Calibration(checkpoint.label, length, tuple(entries), tables, file)
    with replacing(file) as new:
        new.write(_json(result, checkpoint).encode())
    return result


def _texts(
    spec: Any, checkpoint: Checkpoint, count: int
) -> tuple[list[list[int]], list[dict[str, Any]], int]:
    """Return the tokens of each document that is long enough, its name and hash; and the length."""
    rope = checkpoint.rope
    if not rope.rotary_dim:
        raise UserError(f"{spec.model} has no rotary embedding: no method ranks its heads.")
    (length,) = spec.lengths(rope.trained_length)
    if not 2 <= length <= rope.trained_length:
        raise UserError(
            f"--length {length} is invalid: heads are measured inside the trained window, on 2 to"
            f" {rope.trained_length:,} tokens."
        )
    if not isinstance(spec.docs, str):
        raise UserError("calibrate reads one --docs.")
    bos, given = checkpoint.tokenizer.bos_token_id, open_documents(spec.docs)
    begin = [] if bos is None else [bos]
    own = length - len(begin)
    documents = replace(given, count=given.count or count, min_tokens=max(own, given.min_tokens))
    corpus = Corpus(documents, checkpoint.tokenizer, rope.trained_length)
    texts = [[*begin, *one.tokens[:own]] for one in corpus.context.documents()]
    entries = [{"name": one["name"], "sha256": one["sha256"]} for one in corpus.entries]
    return texts, entries, length


def _json(result: Calibration, checkpoint: Checkpoint) -> str:
    tables = {name: table.tolist() for name, table in asdict(result.tables).items()}
    about = {
        "model": result.model,
        "fingerprint": checkpoint.fingerprint,
        "length": result.length,
        "documents": result.documents,
    }
    return json.dumps({**about, **tables}, ensure_ascii=False) + "\n"
