"""Take out of a run what is of the machine and its user: folders, hosts, where a cluster is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# The folders of an absolute path, of one from home, or of one that begins with a dot; not the
# slash of a closing tag in what a model said: </s>, [/INST].
FOLDERS = re.compile(
    r"(?!(?<=[<\[|])/[\w.:-]+[>\]|])(?<!http:)(?<!https:)(?<![\w.~/-])(?:~[^\s/]*|\.{1,2})?/+"
    r"(?:[^\s/:,='\"][^\n/:,='\"]*/+)*(?=\S)"
)
PRIVATE = {"out", "cluster"}  # settings that name a place and change no number


def clean(value: Any) -> Any:
    """Return JSON in which every path has its last name alone; numbers stay as they are.

    A path below the working folder stays whole: ``books/pg19`` may also be a name on the hub.
    """
    if isinstance(value, str):
        return FOLDERS.sub("", value)
    if isinstance(value, Mapping):
        return {clean(name): clean(one) for name, one in value.items()}
    return [clean(one) for one in value] if isinstance(value, list) else value


def clean_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of a run without paths, and without the hosts of its workers."""
    asked = {name: one for name, one in record["asked"].items() if name not in PRIVATE}
    sessions = [_hostless(session) for session in record["sessions"]]
    return dict(clean({**record, "asked": asked, "sessions": sessions}))


def _hostless(session: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: one for name, one in session.items() if name != "host"}
    if "workers" in kept:
        kept["workers"] = [_hostless(worker) for worker in kept["workers"]]
    return kept
