"""``ropewalk doctor``: does a model, its config and its server do what is meant."""

from __future__ import annotations

from harness.cli.console import COMPLETE, WITH_FAILURES, Switch, err, screen
from harness.cli.one_model import read_spec
from harness.names import printable

MARKS = {"passed": "✓", "failed": "✗", "note": "·"}


def doctor(
    model: str,
    *,
    scaling: str = "native",
    length: str = "1x",
    server: str | None = None,
    docs: str | None = None,
    revision: str | None = None,
    dtype: str | None = None,
    device: str | None = None,
    offline: Switch = None,
    trust_remote_code: Switch = None,
    quick: Switch = None,
) -> int:
    """Find faults of a model's config, its patch, its cache, and of a server; status 1 if any.

    Args:
        model: A folder, a hub name or a GGUF file.
        scaling: The method that is meant, NAME:option=value,…; default: what the checkpoint ships.
        length: The length that the method is for: 512, 4k (4096) or 2x (twice the trained window).
        server: http://HOST:PORT of a running server (vLLM, SGLang, llama.cpp); losses are compared.
        docs: Whose first document is read; default: the embedded documents.
        revision: Branch, tag or commit on the hub.
        dtype: auto, float32, bfloat16 or float16.
        device: auto, cpu, cuda, cuda:1, …
        offline: Send no request to the hub; use what its cache has.
        trust_remote_code: Let code from the model's repository run.
        quick: Read 64 tokens alone, and wait a minute at most for a server.
    """
    asked = {
        "model": model, "scaling": [scaling], "length": [length], "docs": docs,
        "revision": revision, "dtype": dtype, "device": device, "offline": offline,
        "trust_remote_code": trust_remote_code,
    }  # fmt: skip
    spec = read_spec(asked)
    failed = 0
    with err.status("Examining") as status:
        from harness.serve._doctor_examine import examine
        from harness.serve._doctor_server import Server

        def say(text: str) -> None:
            status.update(printable(text))
            if not err.is_terminal:
                err.print(f"{printable(text)}.", soft_wrap=True)

        other = Server(server, quick=bool(quick)) if server else None
        for finding in examine(spec, other, quick=bool(quick), say=say):
            line = f"{MARKS[finding.verdict]} {finding.about:<6}  {printable(finding.text)}"
            screen.print(line, soft_wrap=True)
            failed += finding.verdict == "failed"
    return WITH_FAILURES if failed else COMPLETE
