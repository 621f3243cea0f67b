"""Examine a model: its config, its layers, its cache, and a server that runs it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from harness.data.documents import open_documents
from harness.data.tokenize import tokenize
from harness.errors import UserError
from harness.hub import attempting
from harness.methods.findings import Finding
from harness.methods.resolve import resolve
from harness.models.checkpoint import Checkpoint
from harness.models.structure import Layers, layers_of
from harness.models.weights import load_weights
from harness.patching.patch import answering, patched
from harness.plugins import Plugin, load
from harness.serve._doctor_cache import LONGEST, affordable, cache_finding, checked_length
from harness.serve._doctor_compare import server_finding
from harness.serve._doctor_config import config_findings, layer_findings, plain_finding
from harness.serve._doctor_server import Say, Server
from harness.sweep.plan import check_rotary, open_model
from harness.sweep.spec import Spec
from scaling import native
from scaling.types import Rope, Rotation
from tasks.types import Loglikelihood

COMPARED = 256  # tokens of the document that a server is asked about
CHARACTERS = 8 * COMPARED  # at most so many a token in real tokenizers' long words
QUICK = 64  # tokens that are read of the document, for the cache and by a server


def examine(
    spec: Spec, server: Server | None = None, *, quick: bool = False, say: Say = lambda _: None
) -> Iterator[Finding]:
    """Yield what is found, part by part; raise UserError for what cannot be examined.

    Without a method of its own the model is examined as it is loaded; the losses of a server are
    compared with those of ``scaling``, which is ``native`` by default. ``quick`` reads short texts
    alone, on one thread; ``say`` is given, in words, what is done next.
    """
    with _one_thread() if quick else nullcontext():
        yield from _examined(spec, server, quick, say)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute on one thread: short texts gain little from more, which wait for a server's cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _examined(spec: Spec, server: Server | None, quick: bool, say: Say) -> Iterator[Finding]:
    """Yield the same."""
    say("Reading the config and the tokenizer")
    checkpoint, method = open_model(spec), load("method", spec.scaling[0])
    check_rotary(checkpoint, [method])
    with attempting("config", checkpoint.name):
        found, layers = _described(checkpoint)
    yield from found
    own, rope = method.label == "native", checkpoint.rope
    (length,) = spec.lengths(rope.trained_length)
    rotation = resolve(method, rope, length)
    text, tokens = _document(spec, checkpoint)
    if min(length, len(tokens)) < 2:
        raise UserError(
            "a cache has 2 tokens or more: --length is "
            f"{length:,}, and the first document of --docs has {len(tokens):,}."
        )
    say(f"Loading the weights: {checkpoint.parameter_count / 1e6:,.0f} million parameters")
    model: Any = load_weights(checkpoint)
    if layers is not None:
        say("Checking what the method changes in the layers")
        yield from _layers(model, layers, method, (rope, length), rotation)
    with nullcontext() if own else patched(model, rotation):
        most = QUICK if quick else affordable(model, rotation)
        windows = {"the trained window": rope.trained_length}
        if checkpoint.sliding_window:
            windows["the sliding window"] = checkpoint.sliding_window
        yield _cache(model, most, tokens, windows, None if own else length, say)
    if server is not None:
        size = QUICK if quick else COMPARED
        read = tokenize(checkpoint.tokenizer, text)[0][: max(2, min(size, length - 1))]
        yield _served(server, checkpoint, model, list(read), (method, length), say)


def _described(checkpoint: Checkpoint) -> tuple[list[Finding], Layers | None]:
    """Return what is found in the config, and the layers of a model that has rotary ones."""
    config, trusted = checkpoint.config, checkpoint.trust_remote_code
    if not checkpoint.rope.rotary_dim:
        told = f"{config.model_type} has no rotary embedding: no scaling acts on it"
        return [Finding("layers", "note", told)], None
    found = config_findings(checkpoint.name, checkpoint.revision, config, trusted)
    return found, layers_of(config, trust_remote_code=trusted)


def _layers(
    model: Any, layers: Layers, method: Plugin, asked: tuple[Rope, int], rotation: Rotation
) -> Iterator[Finding]:
    """Yield on which layers a method acts, once the patch has proved itself."""
    rope, length = asked
    none = resolve(load("method", "none"), rope, length)
    plain = method.label != "native" and rotation.fingerprint == none.fingerprint
    is_scaled = native.ships(rope) if method.label == "native" else not plain
    if plain and method.label != "none":
        yield plain_finding(method, rope, length)
    for finding in layer_findings(layers, method.label, rotation, scaled=is_scaled):
        try:
            with patched(model, rotation):
                pass  # the patch proves itself on the model's output
        except UserError as error:
            finding = Finding("layers", "failed", f"{method.label} does not act: {error}")
        yield finding


def _cache(
    model: Any, most: int, tokens: list[int], windows: Mapping[str, int], length: int | None,
    say: Say,
) -> Finding:  # fmt: skip
    """Compare a cache with one forward, on as many tokens as there are and may be read."""
    limits = {
        f"here no more than {most:,} are read": most,
        f"the first document of --docs has {len(tokens):,}": len(tokens),
    } | ({} if length is None else {f"--length is {length:,}": length})  # bands reach no further
    limit = min(limits, key=limits.__getitem__)
    read = tokens[: checked_length(windows, limits[limit])]
    say(f"Comparing the cache with one forward, on {len(read):,} tokens")
    return cache_finding(model, read, windows, limit)


def _document(spec: Spec, checkpoint: Checkpoint) -> tuple[str, list[int]]:
    """Return the beginning of the first document, and its tokens, as many as the model reads."""
    docs = spec.docs if isinstance(spec.docs, str) else next(iter(spec.docs.values()))
    text = next(iter(open_documents(docs).read()))[1] or ""
    tokens = tokenize(checkpoint.tokenizer, text)[0][: checkpoint.positions or LONGEST]
    return text[:CHARACTERS], list(tokens[:LONGEST])


def _served(
    server: Server, checkpoint: Checkpoint, model: Any, read: list[int],
    asked: tuple[Plugin, int], say: Say,
) -> Finding:  # fmt: skip
    """Compare a server with the method, with the model's other readings, with and without bos."""
    (method, length), tokenizer, rope = asked, checkpoint.tokenizer, checkpoint.rope
    text = tokenizer.decode(read, clean_up_tokenization_spaces=False)
    ids, bos = list(tokenize(tokenizer, text)[0]), tokenizer.bos_token_id
    whole = tokenizer(text).input_ids  # as a server reads a prompt
    begun = bos is not None and whole[:1] == [bos] and ids[:1] != [bos]
    first = [bos] if begun else []
    theirs, count = server.losses(text, [*first, *ids], say)
    say("Computing the same losses here")
    before = (len(first) + len(ids) if count is None else count) - len(ids)
    wanted = {at - before: nll for at, nll in theirs.items() if at >= before}
    names = ("none", "native") if rope.rotary_dim else ()
    rotations = {n: resolve(load("method", n), rope, rope.trained_length) for n in names}
    # Its tokens may be more when they are read again, and a begin token is one.
    rotations[method.label] = resolve(method, rope, max(length, len(ids) + 1))
    beginnings = {"": first}
    if bos is not None:
        beginnings |= {" without its begin token": []} if begun else {" with a begin token": [bos]}
    same: dict[tuple[str, str], dict[int, float]] = {}  # each rotation is run once
    known = {}
    for name, found in rotations.items():
        for told, begin in beginnings.items():
            at = found.fingerprint, told
            same[at] = known[name + told] = same.get(at) or _losses(model, found, begin, ids)
    counts = len(ids), len(ids) if before in (0, 1) else count
    return server_finding(method.label, known, wanted, counts, model.dtype)


def _losses(
    model: Any, rotation: Rotation, first: Sequence[int], ids: Sequence[int]
) -> dict[int, float]:
    """Return the loss of each token of a text by its place, read behind some first tokens."""
    question = Loglikelihood((*first, *ids), 1, doc_id="text")
    with answering(model, rotation) as answers:
        _, answer = next(iter(answers([question])))
    return {at + 1 - len(first): nll for at, nll in enumerate(answer.nll)}  # type: ignore[union-attr]
