"""``ropewalk publish``: a run for readers elsewhere."""

from __future__ import annotations

from pathlib import Path

from harness.cli.console import TERMINAL, WITH_FAILURES, Done, screen
from harness.cli.output import command
from harness.cli.settings import Out


@command
def publish(
    run: Path,
    /,
    *,
    to: str,
    out: Out = None,
    task: tuple[str, ...] | None = None,
    samples: bool = False,
    model: str | None = None,
    docs: str | None = None,
    run_code: bool = False,
) -> Done:
    """Write a run for readers elsewhere, or send it to a tracker.

    Paths, hosts and the address of a cluster are left out. Files are written and sent nowhere.

    Args:
        run: A run folder.
        to: card, folder or every-eval-ever (JSON of scores with intervals) to write files, or a
            tracker to send the run to, as in `ropewalk run --track`.
        out: A new folder to write. [default: RUN-card and so on, beside the run]
        task: Your own task files that the run was measured with: only these are executed.
        samples: To every-eval-ever, also write every sample that is right or wrong, with the text
            of its question. The text may come from your documents. It is made again from them and
            the model's tokenizer, without weights.
        model: With --samples, where the model or its tokenizer is now, if it moved.
        docs: With --samples, where the documents are now, if they moved.
        run_code: With --samples, let code that the record names run: that of a model's repository,
            tasks of lm-eval in a folder.
    """
    from harness.api.share import NotSentError, publish

    try:
        files = publish(
            run,
            to=to,
            out=out,
            task=task or (),
            samples=samples,
            model=model,
            docs=docs,
            run_code=run_code,
            observer=TERMINAL,
        )
    except NotSentError:
        return Done([], WITH_FAILURES)
    if files:
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        screen.print(f"{files[0]}{more}", soft_wrap=True)
    return Done(files)
