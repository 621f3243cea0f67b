"""Notes on a sweep that bear on a decision: what is left out, what is equal, what is scaled."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ropewalk.harness.errors import UserError
from ropewalk.harness.models.structure import layers_of
from ropewalk.harness.patching.config import ORIGINAL, is_rotary, rope_of
from ropewalk.harness.plugins import Plugin, call
from ropewalk.harness.sweep.plan import Plan, calibrations
from ropewalk.harness.sweep.record import records
from ropewalk.scaling import native
from ropewalk.scaling.types import Frequencies, Rope

log = logging.getLogger("ropewalk")
LEFT_OUT = {  # by the record's word; other words are kinds of files
    "repeated": "documents with the same text as another one",
    "null": "rows with null instead of a text",
    "calibrated": "documents that a method was calibrated on",
}


def plan_notes(plan: Plan) -> list[str]:
    """Return a sentence on each thing that a plan leaves out, measures once, or does not scale."""
    model = plan.checkpoint
    lines = [f"Its cells fail: {text}" for text in {c.failed: None for c in plan.cells} if text]
    fingerprint = model.fingerprint.partition("+")[0]  # without that of an adapter
    lines += [
        f"{file} was measured on another checkpoint ({table.get('model', 'unnamed')}): ropewalk "
        "calibrate measures this one."
        for file, table in calibrations(plan.methods).items()
        if model.loaded is None and table.get("fingerprint", fingerprint) != fingerprint
    ]
    lines += [*_short(plan), *doc_notes(plan.left_out)]
    raw = [task.label for task in plan.tasks if not task.options.get("chat")]
    if raw and getattr(model.tokenizer, "chat_template", None):
        lines.append(f"The chat template of {model.label} is not applied in {', '.join(raw)}.")
    trusted = model.trust_remote_code
    facts = notes(model.label, model.config, plan.methods, model.rope, trust_remote_code=trusted)
    return [*lines, *facts, *_equal(plan)]


def note_plan(plan: Plan) -> None:
    """Note what is special about a plan, its documents and its model."""
    for note in plan_notes(plan):
        log.info(note)
    for warning in doc_warnings(plan.documents):
        log.warning(warning)


def _equal(plan: Plan) -> list[str]:
    """Name the methods that change nothing, or the same as another one, beyond the window."""
    rope = plan.checkpoint.rope
    beyond: dict[str, dict[int, str | None]] = {}
    for cell in plan.cells:
        if cell.length > rope.trained_length and cell.scaling != "none":
            beyond.setdefault(cell.scaling, {})[cell.length] = cell.frequencies
    plain = Frequencies(rope.inv_freq()).fingerprint
    lines = []
    alike: dict[tuple[Any, ...], list[str]] = {}
    for scaling, lengths in beyond.items():
        same = [f"{length:,}" for length, frequencies in lengths.items() if frequencies == plain]
        if same:
            lines.append(f"{scaling} changes nothing at {', '.join(same)} tokens.")
        if len(same) < len(lengths) and None not in lengths.values():
            alike.setdefault(tuple(lengths.values()), []).append(scaling)
    return lines + [
        f"{' and '.join(names)} are equal beyond the trained window and measured once."
        for names in alike.values()
        if len(names) > 1
    ]


def _short(plan: Plan) -> list[str]:
    alike: dict[str, list[str]] = {}
    texts = {document["name"] for document in plan.documents}
    for task in plan.tasks:
        cells = [cell for cell in plan.cells if cell.task == task.label and cell.questions]
        questions = [question for cell in cells for question in cell.questions]
        units = {question.doc_id for question in questions}
        # All documents of a stream are read, though no window may begin in the last of them.
        stream = any(question.metadata.get("protocol") == "overlapping" for question in questions)
        if stream or texts.isdisjoint(units):
            continue
        read = [document.name for document in plan.sources[task.label].documents()]
        if short := [name for name in read if name not in units]:
            longest = max(cell.length for cell in cells)
            line = f"{len(short)} of {len(read)} documents hold no window of {longest} tokens"
            alike.setdefault(f"{line} and are left out: {_listed(short)}", []).append(task.label)
    return [f"{', '.join(tasks)}: {line}" for line, tasks in alike.items()]


def unnamed_cells(plan: Plan, folder: Path) -> str | None:
    """Say which cells of a folder's record are not in a plan, so that reports lose them."""
    before, now = records(plan, folder)
    known, named = (
        [(cell["scaling"], cell["task"], f"{cell['length']} tokens") for cell in record["cells"]]
        for record in (before or now, now)
    )
    gone = [cell for cell in known if cell not in named]
    if not gone:
        return None
    return (
        f"This sweep does not name all cells of {folder}, as {', '.join(gone[0])} (of "
        f"{len(gone):,}): their samples stay, and reports leave them out."
    )


def doc_notes(left_out: Mapping[str, int]) -> list[str]:
    """Return a sentence on what was left out when documents were read."""
    gone = [f"{LEFT_OUT.get(kind, kind)} ({count:,})" for kind, count in left_out.items() if count]
    return [f"Left out: {', '.join(gone)}."] if gone else []


def doc_warnings(documents: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return warnings on documents whose scores say little about prose."""
    html, nul = ([d["name"] for d in documents if d.get(key)] for key in ("markup", "nul"))
    strange = {
        "HTML, whose tags are scored as text": html,
        "NUL characters, as UTF-16 has when it is read as UTF-8": nul,
        "more than 10 % of tokens that the tokenizer does not know": [
            d["name"] for d in documents if d["unknown"] > 0.1 * d["tokens"]
        ],
    }
    little = "Their scores say little about the text."
    return [f"Documents with {what}: {_listed(n)}. {little}" for what, n in strange.items() if n]


def _listed(names: Sequence[str]) -> str:
    rest = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + rest


def notes(
    model: str, config: Any, methods: Sequence[Plugin], rope: Rope, *, trust_remote_code: bool
) -> list[str]:
    """Return a sentence on each special property of a model and its methods; few have any."""
    if not is_rotary(config):
        return [f"{model} has no rotary embedding: only methods that scale queries change it."]
    lines = _shipped(model, rope)
    if (own := rope_of(config).trained_length) != rope.trained_length:
        lines.append(
            f"{model}: the trained window is {rope.trained_length:,} tokens by --trained-length, "
            f"{own:,} by its config."
        )
    elif rope.shipped.get("rope_type") == "linear" and ORIGINAL not in rope.shipped:
        factor: Any = rope.shipped["factor"]
        lines.append(
            f"The config of {model} does not say whether {own:,} tokens is its window before or "
            f"after this scaling. If it is after it, as in Gemma 3, give --trained-length "
            f"{own / factor:.0f} ({own / factor:,.0f} x {factor:g})."
        )
    try:
        layers = call(model, lambda: layers_of(config, trust_remote_code=trust_remote_code))
    except UserError as error:  # a sweep would raise it too
        lines.append(f"Which layers rotate is unknown. {error}")
    else:
        rotated, window = layers.rotated, layers.window
        total = rotated.total() + layers.plain.total()
        scaled = rotated.total() - (rotated["sliding"] if layers.own_sliding else 0)
        if scaled < total:
            lines.append(f"A method scales {scaled} of {total} attention layers.")
        if window and scaled and not rotated["full"] and window <= rope.trained_length:
            others = "; log_n:layers=unrotated acts on the others" if layers.plain["full"] else ""
            lines.append(
                f"The layers that rotate see only {window:,} tokens back, within the trained "
                f"window: a method that scales them changes nothing beyond it{others}."
            )
    return lines + [
        f"{method.label} is made for training: {method.module.TRAINING}. Here the weights are used "
        "without training."
        for method in methods
        if hasattr(method.module, "TRAINING")
    ]


def _shipped(model: str, rope: Rope) -> list[str]:
    kind, window = native.shipped_type(rope), f"{rope.trained_length:,}"
    if native.DUAL_CHUNK in rope.shipped:
        return [
            f"{model} ships dual chunk attention, which transformers ignores: native applies it; "
            "none is the model as transformers runs it."
        ]
    if kind == "default":
        return []
    factor = native.shipped_options(rope).get("factor", rope.shipped.get("factor"))
    by = f", factor {factor:g}" if isinstance(factor, int | float) else ""
    outside = [
        f"its softmax scale, {native.logit_scale(rope):.4g}" * (native.logit_scale(rope) != 1),
        "its scale of queries by position" * (native.temperature(rope) is not None),
    ]
    more = "".join(f", {text}" for text in outside if text)
    return [
        f"{model} ships {kind} scaling{by}{more}, trained window {window} tokens. native keeps it; "
        "none and every other method start without it."
    ]
