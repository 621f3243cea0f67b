"""Notes on a sweep: its documents, the scaling its checkpoint ships, and the layers it scales."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from harness.encodings._config import EncodingConfig
from harness.errors import UserError
from harness.models.structure import Layers, layers_of
from harness.patching.config import is_rotary, rope_of
from harness.plugins import Plugin, call, parameters
from harness.reports.writing.sentences import counted
from harness.sweep.measure import records
from harness.sweep.plan import Plan, calibrations
from scaling import native
from scaling.types import Rope

DOUBTFUL = 0.1  # share of a document's tokens that are unknown
NAMED = 3  # documents that a warning names
LEFT_OUT = {  # by the record's word: what is left out, and why; other words are kinds of files
    "repeated": ("documents", "the same text as another one"),
    "null": ("rows", "null instead of a text"),
    "calibrated": ("documents", "read to calibrate a method"),
}


def plan_notes(plan: Plan) -> list[str]:
    """Return a sentence on each thing that a plan leaves out, changes, or takes from its model."""
    failures = dict.fromkeys(cell.failed for cell in plan.cells if cell.failed)
    lines = [f"Its cells fail: {reason}" for reason in failures]
    lines += [*_other_heads(plan), *_short(plan), *doc_notes(plan.documents, plan.left_out)]
    model = plan.checkpoint
    if getattr(model.tokenizer, "chat_template", None):
        raw = [task.label for task in plan.tasks if not task.options.get("chat")]
        where = f" in {', '.join(raw)}" if len(raw) < len(plan.tasks) else ""
        if raw:
            lines.append(
                f"{model.label} has a chat template, which is not applied{where}: the text is raw."
            )
    trusted = model.trust_remote_code
    return lines + notes(
        model.label, model.config, plan.methods, plan.lengths, trust_remote_code=trusted
    )


def _other_heads(plan: Plan) -> list[str]:
    """Name the files whose heads were measured on another checkpoint of the same shape."""
    checkpoint = plan.checkpoint
    own = checkpoint.fingerprint.partition("+")[0]  # without that of an adapter
    if checkpoint.loaded is not None:  # its fingerprint is of another kind than that of a file
        return []
    return [
        f"{file} was measured on another checkpoint ({table.get('model', 'unnamed')}, fingerprint "
        f"{table['fingerprint']}; this one has {own}): ropewalk calibrate measures this one."
        for file, table in calibrations(plan.methods).items()
        if table.get("fingerprint", own) != own
    ]


def _short(plan: Plan) -> list[str]:
    """Name the documents that are too short for the longest length of a task."""
    alike: dict[tuple[Any, ...], list[str]] = {}
    texts = {document["name"] for document in plan.documents}
    for task in plan.tasks:
        cells = [cell for cell in plan.cells if cell.task == task.label and cell.questions]
        questions = [question for cell in cells for question in cell.questions]
        units = {question.doc_id for question in questions}
        if texts.isdisjoint(units):  # it reads no documents, or only hides something in them
            continue
        read = [document.name for document in plan.sources[task.label].documents()]
        # All documents of a stream are read, though no window may begin in the last of them.
        stream = any(question.metadata.get("protocol") == "overlap" for question in questions)
        short = [] if stream else [name for name in read if name not in units]
        longest = max(cell.length for cell in cells)
        alike.setdefault((len(read), longest, *short), []).append(task.label)
    lines = []
    for (count, longest, *short), tasks in alike.items():
        of = f" of {', '.join(tasks)}" if len(alike) > 1 else ""
        if short:
            lines.append(
                f"{len(short)} of {count} documents hold no window of {longest} tokens and are left"
                f" out{of}: {_listed(short)}"
            )
    return lines


def unnamed_cells(plan: Plan, folder: Path) -> str | None:
    """Say which cells of a folder's record are not in a plan, so that reports lose them.

    Raises UserError where the folder has a run of another model, or another sweep.
    """
    place = itemgetter("scaling", "task", "length")
    before, now = records(plan, folder)
    named = set(map(place, now["cells"]))
    gone = [cell for cell in (before or now)["cells"] if place(cell) not in named]
    if not gone:
        return None
    first, count = gone[0], f"{len(gone)} cell{'s' * (len(gone) > 1)}"
    return (
        f"{folder} has {count} that this sweep does not name, as {first['scaling']}, "
        f"{first['task']}, {first['length']} tokens: the samples stay, and reports are without "
        "them until a sweep names them again."
    )


def check_rotary(model: str, config: Any) -> None:
    """Raise UserError for a model of the laboratory whose encoding does not rotate."""
    if isinstance(config, EncodingConfig) and not config.rope_parameters:
        raise UserError(
            f"{model} has the encoding {config.encoding} and no rotary embedding (no "
            "rope_parameters in its config), so no channels; to draw its scores by distance: "
            f"ropewalk inspect --encoding {model} --out FOLDER."
        )


def doc_notes(documents: Sequence[Mapping[str, Any]], left_out: Mapping[str, int]) -> list[str]:
    """Return sentences on how documents were changed or left out when they were read."""
    lines = []
    ended = sum(document.get("line_ends") == "normalized" for document in documents)
    if ended:
        lines.append(f"{ended:,} of {len(documents):,} documents: line ends CRLF or CR read as LF.")
    for word, (nouns, reason) in LEFT_OUT.items():
        if count := left_out.get(word):
            lines.append(f"{counted(count, nouns)} left out: {reason}.")
    files = [counted(count, kind) for kind, count in left_out.items() if kind not in LEFT_OUT]
    if files:
        many = ", ".join(files)
        lines.append(
            f"Not read in the folder of texts: {many}. To read them, name a glob (FOLDER/*.log)."
        )
    unknown = sum(document["unknown"] for document in documents)
    if unknown:
        total = sum(document["tokens"] for document in documents)
        lines.append(f"{unknown:,} of {total:,} tokens are unknown to the tokenizer.")
    return lines


def doc_warnings(documents: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return warnings on documents whose scores say little about prose."""
    pages = [d["name"] for d in documents if d.get("markup")]
    zeros = [d["name"] for d in documents if d.get("nul")]
    strange = [d["name"] for d in documents if d["unknown"] > DOUBTFUL * d["tokens"]]
    lines = []
    if pages:
        look = "looks" if len(pages) == 1 else "look"
        lines.append(
            f"{_listed(pages)} {look} like HTML: the tags are scored as text. "
            "Extract the text first."
        )
    if zeros:
        has = "has" if len(zeros) == 1 else "have"
        lines.append(
            f"{_listed(zeros)} {has} NUL characters, as UTF-16 and files of other programs have: "
            "they are scored as text. Save the text as UTF-8 first."
        )
    if strange:
        lines.append(
            f"More than {100 * DOUBTFUL:.0f} % of the tokens of {_listed(strange)} are unknown to "
            "the tokenizer: their scores say little about the text."
        )
    return lines


def _listed(names: Sequence[str]) -> str:
    rest = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + rest


def notes(
    model: str,
    config: Any,
    methods: Sequence[Plugin],
    lengths: Sequence[int],
    *,
    trust_remote_code: bool,
) -> list[str]:
    """Return a sentence or two on each special property of a sweep; none for a plain Llama.

    Raises UserError for a shipped scaling that is not known, as a sweep does.
    """
    if not is_rotary(config):
        return [f"{model} has no rotary embedding: it is measured unchanged."]
    rope = rope_of(config)
    requested = any(method.module is native for method in methods)
    lines = [call("the checkpoint", lambda: shipped(model, rope, requested=requested))]
    try:
        layers = call(model, lambda: layers_of(config, trust_remote_code=trust_remote_code))
        lines.append(acted_on(layers, rope, max(lengths)))
    except UserError as error:  # a sweep would raise it too
        lines.append(f"Which layers rotate is unknown. {error}")
    lines += [line for method in methods for line in (composed(rope, method), trained_with(method))]
    return [line for line in lines if line]


def shipped(model: str, rope: Rope, *, requested: bool = False) -> str:
    """Describe the shipped scaling, what native and none do with it, and the window of factors.

    Empty for a checkpoint that ships none, unless native was ``requested``.
    """
    kind, window = native.shipped_type(rope), f"{rope.trained_length:,}"
    if native.DUAL_CHUNK in rope.shipped:
        native.bands(rope, 1)  # raises ValueError where its numbers are none
        below = "" if kind == "default" else f" on {kind} scaling"
        return (
            f"{model} ships dual chunk attention{below}, which transformers ignores. native "
            f"applies it (= {equal_to(rope)}); none is the model as transformers runs it (base "
            f"{rope.base:g}, trained window {window})."
        )
    if kind == "default":
        return f"{model} ships no scaling: native is none." if requested else ""
    # A linear checkpoint may not give the window before scaling; rope_of then takes its maximum.
    known = kind != "linear" or "original_max_position_embeddings" in rope.shipped
    start = f" from {window} tokens" if known else ", from a window its config does not give"
    factor = rope.shipped.get("factor")
    text = f"{model} ships {kind} scaling"
    text += f", factor {factor:g}{start}" if isinstance(factor, int | float) else start
    attention = native.frequencies(rope, rope.trained_length).attention_factor
    if attention != 1:
        text += f", attention factor {attention:.4g}"
    two = f": one list of factors up to {window} tokens, another above" * (kind == "longrope")
    taken = window if known else f"{window}, its max_position_embeddings"
    return (
        f"{text}. native keeps it (= {equal_to(rope)}{two}); none removes it (base "
        f"{rope.base:g}, trained window {taken}); every other method starts from none, its "
        f"factors relative to {window} tokens."
    )


def composed(rope: Rope, method: Plugin) -> str:
    """Say of a method on top of another one whether it keeps the shipped scaling."""
    on = method.options.get("on")
    if on is None or not native.ships(rope):
        return ""
    lowest = str(on).rpartition("on=")[2].partition(":")[0]
    fate = "kept" if lowest == "native" else "removed"
    return f"{method.label} builds on {on}: the shipped scaling is {fate}."


def equal_to(rope: Rope) -> str:
    """Return the method, as written after --scaling, that equals native for this checkpoint."""
    dual = native.dual_chunk_options(rope)
    if dual is not None:
        below = native.shipped_type(rope) != "default"
        given = [f"{option}={value}" for option, value in dual.items()]
        return f"dual_chunk:form=qwen,{','.join(given)}{',on=…' * below}"
    method = native.TYPES[native.shipped_type(rope)]
    name, known = method.__name__.rpartition(".")[2], parameters(method, "method")
    given = [
        f"{option}={str(value).lower().removesuffix('.0')}"
        for option, value in native.shipped_options(rope).items()
        if value is not None and value != known[option].default
    ]
    return f"{name}:{','.join(given)}" if given else name


def acted_on(layers: Layers, rope: Rope, longest: int) -> str:
    """Say which layers a method scales, unless it scales all of them."""
    rotated, plain, window = layers.rotated, layers.plain, layers.window
    total, sliding = rotated.total() + plain.total(), rotated["sliding"]
    have = "has" if plain.total() == 1 else "have"
    bare = f"{plain.total()} {have} no rotary embedding" if plain.total() else ""
    if window is None or not sliding or (window >= longest and not layers.own_sliding):
        return f"Of {total} attention layers, {bare}: no method changes them." if bare else ""
    see = "sees" if sliding == 1 else "see"
    text = f"Of {total} attention layers, {sliding} {see} only {window:,} tokens back"
    if layers.own_sliding:
        text += ", with their own rotary embedding, which no method changes"
    elif rotated["full"]:
        text += ", with the rotary embedding of the others, so that a method scales them too"
    else:
        text += " and no other one rotates"
        if window <= rope.trained_length:
            text += ": no distance exceeds the trained window, so a method has no use"
    return f"{text}; {bare}." if bare else f"{text}."


def trained_with(method: Plugin) -> str:
    """Say of a method that its authors train with it: its file has TRAINING."""
    training = getattr(method.module, "TRAINING", None)
    if training is None:
        return ""
    return (
        f"{method.label} is made for training: {training}. Here the weights are used without "
        "training."
    )
