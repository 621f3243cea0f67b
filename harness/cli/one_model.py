"""Read the flags of a command about one model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from harness.hub import go_offline

if TYPE_CHECKING:
    from harness.sweep.spec import Spec


def read_spec(flags: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> Spec:
    """Return the settings; a flag that is None was not given. With --offline, go offline.

    Raises UserError as ``parse`` does.
    """
    from harness.sweep.parse import parse

    given = {name: value for name, value in flags.items() if value is not None}
    spec = parse(None, {**(defaults or {}), **given})
    if spec.offline:
        go_offline()
    return spec
