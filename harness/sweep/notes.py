"""Notes on a sweep that bear on a decision: what is left out, what is equal, what is scaled."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ropewalk.harness.errors import UserError
from ropewalk.harness.models.structure import layers_of
from ropewalk.harness.patching.config import ORIGINAL, is_rotary, rope_of
from ropewalk.harness.plugins import Plugin
from ropewalk.harness.sweep.plan import Plan, calibrations
from ropewalk.harness.sweep.record import records
from ropewalk.scaling import native
from ropewalk.scaling.types import Rope

log = logging.getLogger("ropewalk")
LEFT_OUT = {  # by the record's word; other words are kinds of files
    "repeated": "documents with the same text as another one",
    "null": "rows with null instead of a text",
    "calibrated": "documents that a method was calibrated on",
}


def note_plan(plan: Plan) -> None:
    """Note what is special about a plan, its documents and its model."""
    for note in plan_notes(plan):
        log.info(note)
    for warning in doc_warnings(plan.documents):
        log.warning(warning)


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
    lines += notes(model.label, model.config, plan.methods, model.rope, trust_remote_code=trusted)
    beyond: dict[str, list[str | None]] = {}
    for cell in plan.cells:
        if cell.length > model.rope.trained_length:
            beyond.setdefault(cell.scaling, []).append(cell.frequencies)
    alike: dict[tuple[str | None, ...], list[str]] = {}
    for scaling, rotations in beyond.items():
        alike.setdefault(tuple(rotations), []).append(scaling)
    return lines + [
        f"{' and '.join(names)} are equal beyond the trained window and measured once."
        for rotations, names in alike.items()
        if len(names) > 1 and None not in rotations
    ]


def _short(plan: Plan) -> list[str]:
    """Name the documents that are too short for a task's windows."""
    lines = []
    for task in plan.tasks:
        cells = [cell for cell in plan.cells if cell.task == task.label and cell.questions]
        questions = [question for cell in cells for question in cell.questions]
        units = {question.doc_id for question in questions}
        protocols = {question.metadata.get("protocol") for question in questions}
        # All documents of a stream are read, though no window may begin in the last of them.
        if "overlapping" in protocols or units.isdisjoint(one["name"] for one in plan.documents):
            continue
        where = " in their first three quarters" if "tail" in protocols else ""
        read = [document.name for document in plan.sources[task.label].documents()]
        if short := [name for name in read if name not in units]:
            lines.append(
                f"{task.label}: {len(short)} of {len(read)} documents hold no window of "
                f"{max(cell.length for cell in cells)} tokens{where} and are left out: "
                f"{_listed(short)}"
            )
    return lines


def unnamed_cells(plan: Plan, folder: Path) -> str | None:
    """Say which cells of a folder's record are not in a plan, so that reports lose them."""
    before, now = (
        [(cell["scaling"], cell["task"], f"{cell['length']} tokens") for cell in record["cells"]]
        if record
        else []
        for record in records(plan, folder)
    )
    gone = [cell for cell in before if cell not in now]
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
    strange: dict[str, Callable[[Mapping[str, Any]], Any]] = {
        "HTML, whose tags are scored as text": lambda entry: entry.get("markup"),
        "NUL characters, as UTF-16 has when it is read as UTF-8": lambda entry: entry.get("nul"),
        "more than 10 % of tokens that the tokenizer does not know": lambda entry: (
            entry["unknown"] > 0.1 * entry["tokens"]
        ),
    }
    named = {what: [d["name"] for d in documents if is_so(d)] for what, is_so in strange.items()}
    return [
        f"Documents with {what}: {_listed(names)}. Their scores say little about the text."
        for what, names in named.items()
        if names
    ]


def _listed(names: Sequence[str]) -> str:
    rest = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + rest


def notes(
    model: str, config: Any, methods: Sequence[Plugin], rope: Rope, *, trust_remote_code: bool
) -> list[str]:
    """Return a sentence on each special property of a model and its methods; few have any."""
    if not is_rotary(config):
        return [f"{model} has no rotary embedding: only methods that scale queries change it."]
    lines, window = [], rope.trained_length
    kind = native.shipped_type(rope)
    factor: Any = native.shipped_options(rope).get("factor", rope.shipped.get("factor"))
    if native.DUAL_CHUNK in rope.shipped:
        lines.append(
            f"{model} ships dual chunk attention, which transformers ignores: native applies it; "
            "none is the model as transformers runs it."
        )
    elif kind != "default" or native.temperature(rope) is not None:
        by = f", factor {factor:g}" if isinstance(factor, int | float) else ""
        if (scale := native.logit_scale(rope)) != 1:
            by += f", its softmax scale, {scale:.4g}"
        if native.temperature(rope) is not None:
            by += ", its scale of queries by position"
        lines.append(
            f"{model} ships {kind} scaling{by}, trained window {window:,} tokens. native keeps it; "
            "none and every other method start without it."
        )
    linear = rope.shipped.get("rope_type") == "linear" and ORIGINAL not in rope.shipped
    if linear and window == rope_of(config).trained_length:  # and --trained-length is not given
        own: Any = rope.shipped["factor"]
        lines.append(
            f"The config of {model} does not say whether {window:,} tokens is its window before or "
            f"after this scaling. If it is after it, as in Gemma 3, give --trained-length "
            f"{window / own:.0f} ({window:,} / {own:g})."
        )
    with suppress(UserError):  # a sweep raises it
        layers = layers_of(config, trust_remote_code=trust_remote_code)
        rotated, sliding = layers.rotated, layers.window
        own_sliding = rotated["sliding"] if layers.own_sliding else 0
        if sliding and rotated.total() > own_sliding and not rotated["full"] and sliding <= window:
            others = "; log_n:layers=unrotated acts on the others" if layers.plain["full"] else ""
            lines.append(
                f"The layers that rotate see only {sliding:,} tokens back, within the trained "
                f"window: a method that scales them changes nothing beyond it{others}."
            )
    return lines + [
        f"{method.label} is made for training: {method.module.TRAINING}. Here the weights are used "
        "without training."
        for method in methods
        if hasattr(method.module, "TRAINING")
    ]
