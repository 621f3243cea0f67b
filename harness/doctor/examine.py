"""Examine a model: its config, its layers, its cache, and a server that runs it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from harness.data.documents import open_documents
from harness.data.tokenize import tokenize
from harness.doctor.cache import LONGEST, affordable, cache_finding, checked_length
from harness.doctor.compare import server_finding
from harness.doctor.config import config_findings, layer_findings, plain_finding
from harness.doctor.server import Server
from harness.engine import answers
from harness.errors import UserError
from harness.methods.findings import Finding
from harness.methods.resolve import resolve
from harness.model.layers import layers_of
from harness.model.weights import load_weights
from harness.plugins import Plugin, load
from harness.rope.config import is_rotary
from harness.rope.patch import scaled
from harness.rope.stateful import fresh, served_answers
from harness.sweep.plan import open_model
from harness.sweep.spec import Spec
from scaling import native
from scaling._rotation import Rotation
from scaling._served import Served
from tasks._types import Question

COMPARED = 256  # tokens of the document that a server is asked about
CHARACTERS = 8 * COMPARED  # at most so many a token in real tokenizers' long words


def examine(spec: Spec, server: Server | None = None) -> Iterator[Finding]:
    """Yield what is found, part by part; raise UserError for what cannot be examined.

    Without a method of its own the model is examined as it is loaded; the losses of a server are
    compared with those of ``scaling``, which is ``native`` by default.
    """
    checkpoint = open_model(spec)
    config, trusted, rope = checkpoint.config, spec.trust_remote_code, checkpoint.rope
    if not is_rotary(config):
        message = f"{spec.model} has no rotary embedding: there is nothing to examine."
        raise UserError(message)
    yield from config_findings(checkpoint.name, checkpoint.revision, config, trusted)
    method = load("method", spec.scaling[0])
    own = method.label == "native"
    layers = layers_of(config, trust_remote_code=trusted)
    (length,) = spec.lengths(rope.trained_length)
    rotation = resolve(method, rope, length)
    none = resolve(load("method", "none"), rope, length)
    plain = not own and rotation.fingerprint == none.fingerprint
    is_scaled = native.ships(rope) if own else not plain
    text, tokens = _document(spec, checkpoint.tokenizer)
    if min(length, len(tokens)) < 2:
        message = (
            "a cache has 2 tokens or more: --length is "
            f"{length:,}, and the first document of --docs has {len(tokens):,}."
        )
        raise UserError(message)
    model: Any = load_weights(checkpoint)
    if plain and method.label != "none":
        yield plain_finding(method, rope, length)
    for finding in layer_findings(layers, method.label, rotation, scaled=is_scaled):
        try:
            with _running(model, rotation):
                pass  # the patch proves itself on the model's output
        except UserError as error:
            finding = Finding("layers", "failed", f"{method.label} does not act: {error}")
        yield finding
    windows = {"the trained window": rope.trained_length, "the sliding window": layers.window}
    with nullcontext() if own else _running(model, rotation):
        yield _cache(model, rotation, tokens, windows, None if own else length)
    if server is not None:
        yield _served(server, checkpoint.tokenizer, model, text, (method, length), rope)


def _running(model: Any, rotation: Rotation) -> AbstractContextManager[None]:
    """Run a model with a rotation; the library's stateful type begins anew."""
    return fresh(model, rotation) if isinstance(rotation, Served) else scaled(model, rotation)


def _cache(
    model: Any, rotation: Rotation, tokens: list[int], named: Mapping[str, int | None],
    length: int | None,
) -> Finding:  # fmt: skip
    """Compare a cache with one forward, on as many tokens as there are and may be read."""
    most = affordable(model, rotation)
    limits = {
        f"here no more than {most:,} are read": most,
        f"the first document of --docs has {len(tokens):,}": len(tokens),
    } | ({} if length is None else {f"--length is {length:,}": length})  # bands reach no further
    limit = min(limits, key=limits.__getitem__)
    windows = {name: window for name, window in named.items() if window}
    return cache_finding(model, tokens[: checked_length(windows, limits[limit])], windows, limit)


def _document(spec: Spec, tokenizer: Any) -> tuple[str, list[int]]:
    """Return the beginning of the first document, and its tokens."""
    docs = spec.docs if isinstance(spec.docs, str) else next(iter(spec.docs.values()))
    text = next(iter(open_documents(docs).read()))[1] or ""
    return text[:CHARACTERS], list(tokenize(tokenizer, text)[0][:LONGEST])


def _served(
    server: Server, tokenizer: Any, model: Any, text: str, asked: tuple[Plugin, int], rope: Any
) -> Finding:
    """Compare a server with the method, with the model's other readings, with and without bos."""
    method, length = asked
    read = tokenize(tokenizer, text)[0][: max(2, min(COMPARED, length - 1))]
    text = tokenizer.decode(list(read), clean_up_tokenization_spaces=False)
    ids, bos = list(tokenize(tokenizer, text)[0]), tokenizer.bos_token_id
    whole = tokenizer(text).input_ids  # as a server reads a prompt
    begun = bos is not None and whole[:1] == [bos] and ids[:1] != [bos]
    first = [bos] if begun else []
    theirs, count = server.losses(text, [*first, *ids])
    before = (len(first) + len(ids) if count is None else count) - len(ids)
    wanted = {at - before: nll for at, nll in theirs.items() if at >= before}
    rotations = {
        n: resolve(load("method", n), rope, rope.trained_length) for n in ("none", "native")
    }
    # Its tokens may be more when they are read again, and a begin token is one.
    rotations[method.label] = resolve(method, rope, max(length, len(ids) + 1))
    known = {}
    for name, found in rotations.items():
        known[name] = _losses(model, found, first, ids)
        if bos is not None:
            told = "without its begin token" if begun else "with a begin token"
            known[f"{name} {told}"] = _losses(model, found, [] if begun else [bos], ids)
    counts = len(ids), len(ids) if before in (0, 1) else count
    return server_finding(method.label, known, wanted, counts, model.dtype)


def _losses(
    model: Any, rotation: Rotation, first: Sequence[int], ids: Sequence[int]
) -> dict[int, float]:
    """Return the loss of each token of a text by its place, read behind some first tokens."""
    question = Question("text", len(first) + len(ids), (*first, *ids), 1)
    if isinstance(rotation, Served):
        _, answer = next(iter(served_answers(rotation, model, [question])))
    else:
        with scaled(model, rotation):
            _, answer = next(iter(answers(model, [question])))
    return {at + 1 - len(first): nll for at, nll in enumerate(answer.nll)}  # type: ignore[union-attr]
