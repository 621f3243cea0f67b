"""What a sweep outlives: kills at any moment, a full disk, too little memory, code that raises."""

import ctypes
import gc
import os
import resource
import shutil
import signal
import sys
import time
import weakref
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ropewalk.harness.cli import main
from ropewalk.harness.commands import report
from ropewalk.harness.reports import _write as write
from ropewalk.harness.runs.store import SAMPLES, append, read_samples
from ropewalk.harness.sweep import measure, this_process
from tests.child import in_child, mapped
from tests.command_line import MANY, samples, sweep
from tests.tiny import save_tiny


def run_and_kill(folder: Path, words: list[str]) -> None:
    """Run a sweep in children that are killed, till one ends; write kills and its status."""
    write.FIGURES = ()  # a kill may meet a report
    draw, file = Random(7), folder / SAMPLES
    kills, partly, status = 0, 0, int(signal.SIGKILL)

    def size() -> int:
        return file.stat().st_size if file.exists() else 0

    while status == signal.SIGKILL:
        began, before = time.monotonic(), size()
        # By the clock, from planning to reports; or after so many bytes, while it measures.
        by_clock = draw.random() < 0.15
        seconds, more = (draw.uniform(0, 0.3), 1e9) if by_clock else (60, draw.uniform(0, 900))
        pause, child, pid = draw.uniform(0, 0.002), _run(words), 0
        while not pid:
            time.sleep(0.0005)
            pid, status = os.waitpid(child, os.WNOHANG)
            late = time.monotonic() - began > seconds or size() - before > more
            if not pid and kills < 4 and late:
                time.sleep(pause)
                os.kill(child, signal.SIGKILL)
                pid, status = os.waitpid(child, 0)
        if status == signal.SIGKILL:
            kills, partly = kills + 1, partly + (size() > before)
    sys.stdout.write(f"{kills} {partly} {os.waitstatus_to_exitcode(status)}")


def _run(words: list[str]) -> int:
    """Run a sweep in a child, slowed down, so that the parent sees it measure."""
    child = os.fork()
    if child:
        return child
    try:
        measure.append = _slowly
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        main(words)
    except SystemExit as ended:
        os._exit(int(ended.code or 0))
    os._exit(99)


def _slowly(file: Any, record: Any) -> None:
    append(file, record)
    time.sleep(0.002)


@pytest.mark.slow
def test_kills_at_random_moments_change_no_bit(many, tiny, docs, tmp_path, ropewalk):
    folder = tmp_path / "run"
    done = in_child(run_and_kill, folder, sweep(tiny, docs, folder, **MANY))
    kills, partly, status = map(int, done.out.split())
    assert (done.status, status) == (0, 0), done.err
    assert kills >= 3, done.out
    assert partly >= 2, done.out
    assert samples(folder) == samples(many)
    assert ropewalk("report", many, "--report", "cells", "--out", tmp_path).status == 0
    scores = (tmp_path / "cells.csv").read_bytes()
    assert (folder / "reports" / "cells.csv").read_bytes() == scores


@pytest.mark.slow
def test_a_disk_that_fills_up_keeps_what_was_measured(
    many, tiny, docs, tmp_path, ropewalk, monkeypatch
):

    def limited(file: Any, record: Any) -> None:
        # A file may grow to 2000 bytes: as on a full disk, the last write is cut short.
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
        try:
            append(file, record)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)

    words = sweep(tiny, docs, tmp_path, **MANY)
    with monkeypatch.context() as patch:
        patch.setattr("ropewalk.harness.sweep.measure.append", limited)
        done = ropewalk(*words)
    assert done.status == 2
    assert done.err.splitlines()[-1] == (
        f"ropewalk: {tmp_path / SAMPLES} cannot be written: File too large; everything "
        "measured before is kept, and the same command continues."
    )
    left = (tmp_path / SAMPLES).read_bytes()
    assert left.endswith(b"\n")
    assert 1000 < len(left) <= 2000
    (tmp_path / "reports").touch()  # nor do reports that cannot be written cost a number
    assert ropewalk(*words).status == 2
    (tmp_path / "reports").unlink()
    assert ropewalk(*words).status == 0
    assert (tmp_path / SAMPLES).read_bytes().startswith(left)
    assert samples(tmp_path) == samples(many)


@pytest.mark.slow
def test_a_batch_systems_end_is_an_interrupt(tiny, docs, tmp_path, ropewalk, monkeypatch):
    """SIGTERM keeps what was measured, says so and ends with exit status 130."""

    def ended(file: Any, record: Any) -> None:
        append(file, record)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("ropewalk.harness.sweep.measure.append", ended)
    before = signal.getsignal(signal.SIGTERM)
    try:
        done = ropewalk(*sweep(tiny, docs, tmp_path))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert done.status == 130
    assert done.err.endswith("everything measured is kept. The same command continues.\n")
    assert len(samples(tmp_path)) == 1


def take_free_heap(size: int = 16 * 2**20) -> None:
    """Take every free block of ``size`` bytes that earlier tests left, which a limit cannot see."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    while True:
        before, block = mapped(), libc.malloc(size)
        if mapped() > before:
            libc.free(block)
            return


def run_limited(mib: int, words: list[str]) -> None:
    """Run a sweep that may take so much memory beyond the weights."""
    ready, reported = this_process.ready, report.report

    def limited(checkpoint: Any) -> Any:
        model = ready(checkpoint)
        take_free_heap()
        limit = mapped() + mib * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        return model

    def freed(*folders: Any, **options: Any) -> Any:  # the reports may take what they like
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
        return reported(*folders, **options)

    this_process.ready, report.report = limited, freed
    main(words)


@pytest.mark.slow
def test_too_little_memory_is_tried_again_then_told_and_never_wrong(docs, tmp_path, ropewalk):
    """30 MiB are enough for one length; with 180 the other has the number of unlimited memory."""
    model = save_tiny(tmp_path / "broad", intermediate_size=40_000)
    changes = {"task": ["perplexity:tail=16"], "scaling": ["none"], "length": ["1x", "8x"]}
    poor, rich = (
        sweep(model, docs / "document-0.txt", tmp_path / name, **changes)
        for name in ("poor", "rich")
    )
    done = in_child(run_limited, 30, poor)
    assert done.status == 1, done.err
    found = {record["length"]: record for record in samples(tmp_path / "poor").values()}
    assert (found[64]["status"], found[512]["status"]) == ("ok", "out_of_memory")
    assert "none, perplexity:tail=16, 512 tokens: out of memory: the memory of this" in done.out
    assert 100 < found[512]["facts"]["estimate_mib"] < 1000
    assert in_child(run_limited, 180, poor).status == 0
    assert ropewalk(*rich).status == 0
    one, two = (read_samples(tmp_path / name) for name in ("poor", "rich"))
    assert {key: it["value"] for key, it in one.items()} == {k: v["value"] for k, v in two.items()}


def test_of_several_models_one_is_in_memory(tiny, docs, tmp_path, ropewalk, monkeypatch):
    seen: list[weakref.ref[Any]] = []
    ready = this_process.ready

    def alone(checkpoint: Any) -> Any:
        assert not [one for one in seen if one() is not None]
        model = ready(checkpoint)
        seen.extend(map(weakref.ref, model.modules()))
        return model

    monkeypatch.setattr(this_process, "ready", alone)
    shutil.copytree(tiny, other := tmp_path / "other")
    words = sweep(
        tiny, docs, tmp_path, task=["perplexity:tail=16"], length=["1x"], scaling=["none"]
    )
    words.insert(words.index(str(tiny)) + 1, str(other))
    gc.disable()
    try:
        assert ropewalk(*words).status == 0
    finally:
        gc.enable()
    assert len(seen) > 20
