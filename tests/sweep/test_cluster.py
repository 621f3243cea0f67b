"""The same plan on Ray: the same records and bits, and a lost worker costs no sample."""

import json
import os
import re
import signal
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from ropewalk.harness.engine import DEFAULT, OutOfMemory, Sizes
from ropewalk.harness.errors import UserError
from ropewalk.harness.recommend import race
from ropewalk.harness.runs.store import RUN, append
from ropewalk.harness.sweep._connect import SETTINGS, connected, gpus_each
from ropewalk.harness.sweep.backend import Failed
from ropewalk.harness.sweep.plan import Batch, Cell, Item
from ropewalk.harness.sweep.ray import (
    LOSSES,
    Loaded,
    Watch,
    Workers,
)
from ropewalk.harness.sweep.spec import Spec
from ropewalk.scaling.types import Frequencies
from ropewalk.tasks.types import Loglikelihood, Request
from tests.command_line import MANY, samples, sweep

os.environ.update(SETTINGS)  # which Ray reads when it is imported
ray = pytest.importorskip("ray")


def test_more_spread_models_than_gpus_are_an_error():
    with pytest.raises(UserError, match="--workers 4 with --device-map auto: .* there are 2; use"):
        gpus_each(Spec(device_map="auto"), "cuda", [2], 4)


def batch_of(*tokens: Sequence[int]) -> Batch:
    rotation = Frequencies(torch.ones(1))
    cell = Cell("none", "task", 1, rotation, "key", ())
    items = (Item(cell, Loglikelihood(tuple(t), 1, doc_id="u")) for t in tokens)
    return Batch(rotation, tuple(items))


class TestLosses:
    """What loses workers is tried again, then question by question, and then told."""

    @pytest.fixture
    def dispatch(self) -> Any:
        """Return a dispatch whose workers are objects, and which notes what they are asked."""
        given: list[Any] = []

        def remote(_: Any, questions: Mapping[Any, Request], sizes: Sizes) -> object:
            given.append((len(questions), sizes))
            return object()

        answer = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=remote))
        made: Any = object.__new__(Workers)
        made.ray, made.sizes = ray, DEFAULT
        made.queue, made.busy, made.free, made.loading = deque(), {}, [], {}
        made.cluster = SimpleNamespace(gpus=0)
        made.watch = Watch(ray, "127.0.0.1:9", "here")
        made.given = given
        made.loaded = Loaded(SimpleNamespace(answer=answer), "the worker on here (process 7)")
        return made

    def lose(self, dispatch: Any, batch: Batch, losses: int, error: Exception) -> list[Any]:
        """Give out the batch, lose its worker, and return what is told of its questions."""
        dispatch._assign(dispatch.loaded, batch, losses)
        return list(dispatch._retry(dispatch.busy.popitem()[1], error))

    @pytest.mark.parametrize(
        ("error", "failure"),
        [
            (RuntimeError("long\nkilled by a signal"), "3 workers were lost over it: killed by a "),
            (ray.exceptions.OutOfMemoryError("too much"), None),  # told by the estimate
        ],
    )
    def test_what_loses_every_worker_is_a_failure(self, error, failure, dispatch):
        batch = batch_of([1, 2], [3, 4])
        for losses in range(LOSSES - 1):
            assert self.lose(dispatch, batch, losses, error) == []
            assert dispatch.queue.popleft() == (batch, losses + 1)
        assert self.lose(dispatch, batch, LOSSES - 1, error) == []
        for (alone, losses), item in zip(dispatch.queue, batch.items, strict=True):
            ((lost, reply),) = self.lose(dispatch, alone, losses, error)
            assert lost is item
            if failure is None:
                assert reply.outcome == OutOfMemory("the worker on here (process 7)")
            else:
                assert isinstance(reply.outcome, Failed)
                assert reply.outcome.reason.startswith(failure)
        wanted = [(2, DEFAULT), *[(2, DEFAULT.least)] * (LOSSES - 1), *[(1, DEFAULT.least)] * 2]
        assert dispatch.given == wanted


def processes(dispatch: Workers) -> list[int]:
    """Return the processes of this sweep's workers that hold the weights and are there."""
    held = [*dispatch.free, *(assignment.worker for assignment in dispatch.busy.values())]
    found = [int(re.findall(r"process (\d+)", worker.place)[0]) for worker in held]
    waiting = [*dispatch.loading]
    done = ray.wait(waiting, num_returns=len(waiting), timeout=0)[0] if waiting else []
    found += [ray.get(ready)["process"] for ready in done]
    return [process for process in found if psutil.pid_exists(process)]


def lose(patch: pytest.MonkeyPatch, kill: Callable[[list[int]], None]) -> None:
    """Let ``kill`` take a worker in mid-sweep, when two have the weights and work is left.

    It is given the processes of this sweep's workers: another test run on the machine has its own.
    """
    count = [0]
    made: list[Workers] = []
    start = Workers.start

    def noted(dispatch: Workers) -> None:
        made.append(dispatch)
        start(dispatch)

    def wait(over: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not over():
            assert time.monotonic() < deadline, f"there are the workers {processes(made[0])}"
            time.sleep(0.05)

    def losing(file: Any, record: Any) -> None:
        append(file, record)
        count[0] += 1
        if count[0] == 3:
            wait(lambda: len(processes(made[0])) == 2)
        if count[0] == 6:
            first = processes(made[0])
            kill(first)
            wait(lambda: not all(map(psutil.pid_exists, first)))

    patch.setattr(Workers, "start", noted)
    patch.setattr("ropewalk.harness.sweep.measure.append", losing)


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a short folder for Ray's files, and let no Ray of another test run be found."""
    with tempfile.TemporaryDirectory(prefix="rw-", dir="/tmp", ignore_cleanup_errors=True) as own:
        monkeypatch.setenv("RAY_TMPDIR", own)
        monkeypatch.setattr("ray._private.services.find_gcs_addresses", cache(set))
        monkeypatch.setattr("ray._private.services.find_bootstrap_address", lambda _: None)
        yield Path(own)


@pytest.mark.slow
def test_a_lost_worker_costs_nothing(many, tiny, docs, tmp_path, ropewalk, monkeypatch, place):

    def kill(workers: list[int]) -> None:
        first, second = workers
        assert {os.getpriority(os.PRIO_PROCESS, it) for it in (first, second)} == {os.nice(0)}
        os.kill(first, signal.SIGKILL)

    (tmp_path / "numpy.py").write_text("raise SystemExit")
    monkeypatch.chdir(tmp_path)
    words = [*sweep(tiny, docs, tmp_path, **MANY), "--workers", "2"]
    lose(monkeypatch, kill)
    done = ropewalk(*words)
    assert done.status == 0, done.err
    assert "A worker was lost; its " in done.err
    assert samples(tmp_path) == samples(many)
    assert not ray.is_initialized()
    assert list(place.iterdir()) == []
    monkeypatch.setattr(
        "ropewalk.harness.sweep.this_process.load_weights",
        lambda _: pytest.fail("weights were read"),
    )
    assert ropewalk(*words[:-2]).status == 0  # nothing is left to measure
    assert len(json.loads((tmp_path / RUN).read_text())["sessions"]) == 1


class TestRefused:
    """What Ray cannot do is one sentence and exit status 2."""

    @pytest.mark.parametrize(
        ("words", "told"),
        [
            (["--cluster", "nonsense"], "--cluster 'nonsense' is no address; give HOST:PORT"),
            (["--cluster", "127.0.0.1:1"], "no cluster answers at 127.0.0.1:1: Connection refused"),
            (["--cluster", "auto"], "no cluster runs on this machine; start one with: ray start"),
            (["--workers", "0"], "workers: it must be greater than or equal to 1 (given: 0)."),
        ],
    )
    def test_an_address_where_nothing_is(self, words, told, bare, ropewalk):
        done = ropewalk(*bare, *words)
        assert (done.status, done.out, done.err.count("\n")) == (2, "", 1)
        assert told in done.err
        assert not Path("run").exists()

    @pytest.fixture
    def bare(
        self, tiny: Path, docs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> list[str]:
        monkeypatch.chdir(tmp_path)
        return sweep(tiny, docs, Path("run"))

    @pytest.mark.parametrize(
        ("device", "message"), [("cuda", "has no GPU"), ("mps", "cpu or cuda")]
    )
    def test_a_device_that_no_worker_can_have(self, device, message, tmp_path, monkeypatch):
        """It is refused at once, and not waited for; a long TMPDIR leaves Ray's sockets short."""
        started: dict[str, Any] = {}
        monkeypatch.setattr(ray, "init", lambda **given: started.update(given))
        monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 2.0})
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("x" * 60)))
        with (
            pytest.raises(UserError, match=message),
            connected(Spec(workers=2, device=device)),
        ):
            pass
        assert len(started["_temp_dir"]) < 40


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Return Ray's own test cluster of two nodes of one core each."""
    from ray.cluster_utils import Cluster

    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory(prefix="rw-", dir="/tmp", ignore_cleanup_errors=True) as own,
    ):
        patch.setenv("RAY_worker_niceness", "0")  # other tests leave less of a core to a nice one
        patch.setattr("ray._private.utils.write_ray_address", lambda *_: None)  # for "auto"
        head = {"num_cpus": 1, "include_dashboard": False, "temp_dir": own}
        made = Cluster(initialize_head=True, head_node_args=head)
        made.second = made.add_node(num_cpus=1, temp_dir=own)
        yield made
        made.shutdown()


@pytest.mark.slow
def test_a_race_that_loses_a_node_ends_as_in_one_process(
    ropewalk, tiny, docs, tmp_path, cluster, monkeypatch
):
    """On two nodes of which one is killed in mid-sweep: the bits of one process, each once."""
    monkeypatch.setattr(race, "FIRST", 2)
    words = ["recommend", "--model", tiny, "--docs", docs, "--budget", "all", "--scaling",
             "pi:factor=4", "yarn:factor=4", "self_extend", "--out"]  # fmt: skip
    one, other = tmp_path / "one", tmp_path / "ray"
    assert ropewalk(*words, one).status == 0
    lose(monkeypatch, lambda _: cluster.remove_node(cluster.second, allow_graceful=False))
    done = ropewalk(*words, other, "--cluster", cluster.address)
    assert done.status == 0, done.err
    assert "A worker was lost; its " in done.err
    assert "raylet" not in done.out + done.err
    assert samples(one) == samples(other)
    alone, run = (json.loads((folder / RUN).read_text()) for folder in (one, other))
    sessions = run.pop("sessions")
    assert len(sessions) > 1
    for session in sessions:
        assert [worker["threads"] for worker in session["workers"]] == [1, 1]  # and none later
        assert all("host" not in worker for worker in session["workers"])
    del alone["sessions"], run["asked"], alone["asked"]
    assert run == alone
