"""``ropewalk calibrate``: measure a model's heads for the methods that treat them differently."""

from __future__ import annotations

import json
import logging
import shlex
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ropewalk.harness.errors import UserError
from ropewalk.harness.sweep.spec import OUT, Model, Reading, Whole, one_model, takes_settings

if TYPE_CHECKING:
    from ropewalk.harness.patching.heads import HeadTables

log = logging.getLogger("ropewalk")
FILE = Path("heads.json")


@dataclass(frozen=True)
class Calibration:
    """What was measured, on which documents (name and sha256), and the file that has it."""

    model: str
    length: int
    documents: tuple[dict[str, Any], ...]
    tables: HeadTables
    file: Path

    def __str__(self) -> str:
        layers, heads = self.tables.outlier_shares.shape
        names = ", ".join(document["name"] for document in self.documents)
        methods = f"ms_poe:heads={self.file} dpe:heads={self.file}"
        return (
            f"{self.file} has {layers} layers of {heads} heads, measured on {names}.\n"
            f"Measure with it on other documents: ropewalk run --model {shlex.quote(self.model)} "
            f"--docs OTHERS --scaling none {methods} --length 1x 2x"
        )


@takes_settings
def calibrate(
    model: Model,
    *,
    length: str = "1x",
    documents: Whole = 10,
    out: Annotated[Path, OUT] = FILE,
    spec: Annotated[Reading, Parameter(name="*")] = Reading(),
) -> Calibration:
    """Measure a model's heads on documents, for ms_poe:heads=FILE and dpe:heads=FILE.

    Name other documents than those that are measured afterwards.

    Args:
        model: A folder, a hub name or a GGUF file.
        length: How many tokens of each document are read, at most the trained window.
        documents: How many documents are read.
        out: The file that is written.
    """
    sweep = one_model(spec, model=model, length=[str(length)])
    if documents < 1:
        raise UserError(f"--documents {documents} is invalid: calibrate reads 1 or more.")
    file = Path(out)
    from ropewalk.harness.data.corpus import Corpus
    from ropewalk.harness.data.documents import open_documents
    from ropewalk.harness.data.tokenize import opening_of
    from ropewalk.harness.files import check_ours, make_folder, replacing
    from ropewalk.harness.models.weights import load_weights
    from ropewalk.harness.patching.heads import measure_heads
    from ropewalk.harness.reports._text import counted
    from ropewalk.harness.sweep.plan import open_model

    check_ours(file, "outlier_shares", "--out")
    if not isinstance(sweep.docs, str):
        raise UserError("calibrate reads one --docs.")
    checkpoint, given = open_model(sweep), open_documents(sweep.docs)
    rope, opening = checkpoint.rope, opening_of(checkpoint.tokenizer)
    if not rope.rotary_dim:
        raise UserError(f"{sweep.model} has no rotary embedding: no method ranks its heads.")
    (tokens,) = sweep.lengths(rope.trained_length)
    if not 2 <= tokens <= rope.trained_length:
        raise UserError(
            f"--length {tokens} is invalid: heads are measured inside the trained window, on 2 to"
            f" {rope.trained_length:,} tokens."
        )
    own = tokens - len(opening)
    least = max(own, given.min_tokens)
    read = replace(given, count=given.count or documents, min_tokens=least)
    corpus = Corpus(read, checkpoint.tokenizer, rope.trained_length)
    texts = [[*opening, *one.tokens[:own]] for one in corpus.context.documents()]
    make_folder(file.absolute().parent, "--out")  # before hours of measuring
    log.info(
        f"Measuring {checkpoint.config.model_type} heads on {counted(len(texts), 'documents')} of"
        f" {tokens:,} tokens."
    )
    tables = measure_heads(load_weights(checkpoint), texts)
    entries = tuple({name: one[name] for name in ("name", "sha256")} for one in corpus.entries)
    about = {
        "model": checkpoint.label,
        "fingerprint": checkpoint.fingerprint,
        "length": tokens,
        "documents": entries,
        **{name: table.tolist() for name, table in asdict(tables).items()},
    }
    with replacing(file) as new:
        new.write(f"{json.dumps(about, ensure_ascii=False)}\n".encode())
    return Calibration(sweep.model, tokens, entries, tables, file)
