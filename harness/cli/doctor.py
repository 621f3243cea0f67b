"""``ropewalk doctor``: does a model, its config and its server do what is meant."""

from __future__ import annotations

from harness.cli.console import COMPLETE, TERMINAL, WITH_FAILURES, Switch, print_finding


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
    from harness.api.model import findings

    failed = 0
    with TERMINAL.status("Examining") as update:
        for finding in findings(
            model,
            server=server,
            quick=bool(quick),
            say=update,
            scaling=[scaling],
            length=[length],
            docs=docs,
            revision=revision,
            dtype=dtype,
            device=device,
            offline=offline,
            trust_remote_code=trust_remote_code,
        ):
            print_finding(finding, 6)
            failed += finding.verdict == "failed"
    return WITH_FAILURES if failed else COMPLETE
