"""From a model, a method and a length to what an engine reads."""

from __future__ import annotations

from harness.encodings._config import EncodingConfig
from harness.errors import UserError
from harness.methods.resolve import resolve
from harness.models.checkpoint import check_shipped
from harness.models.config import open_config
from harness.patching.config import is_rotary, rope_of
from harness.plugins import load
from harness.serve import transformers
from harness.serve._choose import Export, choose
from harness.serve._types import Asked
from harness.sweep.spec import Spec


def export(spec: Spec, engine: str) -> Export:
    """Return what an engine reads for the one method and length of a spec; no weight is read.

    Raises UserError for what the engine cannot express, with its reason and the nearest it can.
    """
    if len(spec.scaling) != 1 or len(spec.length) != 1:
        raise UserError("an export has one --scaling and one --length.")
    plugin, method = load("engine", engine.replace("-", "_")), load("method", spec.scaling[0])
    trusted = spec.trust_remote_code
    where, commit, config = open_config(spec.model, spec.revision, trusted)
    if isinstance(config, EncodingConfig) and plugin.module is not transformers:
        raise UserError(
            f"{spec.model} is a model of the laboratory, which Ropewalk's own class in transformers"
            f" alone reads, and {engine} does not; --to transformers writes methods of frequencies."
        )
    if not is_rotary(config):
        raise UserError(f"{spec.model} has no rotary embedding: there is nothing to export.")
    rope = rope_of(config)
    check_shipped(config, rope.shipped, trust_remote_code=trusted)
    (length,) = spec.lengths(rope.trained_length)
    asked = Asked(
        scaling=method.label,
        length=length,
        rope=rope,
        rotation=resolve(method, rope, length),
        place=where,
        config=config,
        slotted="rope_theta" not in config.get_text_config().rope_parameters,
        trusted=trusted,
        revision=spec.revision if commit else None,
    )
    return choose(asked, plugin, method)
