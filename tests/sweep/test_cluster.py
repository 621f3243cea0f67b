"""The same plan on Ray: the same records and bits, and a lost worker costs no sample."""

import json
import os
import re
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest

from ropewalk.harness.recommend import race
from ropewalk.harness.runs.store import RUN, append
from ropewalk.harness.sweep.ray import SETTINGS, Workers
from tests.command_line import MANY, samples, sweep

os.environ.update(SETTINGS)  # which Ray reads when it is imported
ray = pytest.importorskip("ray")


def processes(dispatch: Workers) -> list[int]:
    """Return the processes of this sweep's workers that hold the weights and are there."""
    held = [*dispatch.free, *dispatch.busy.values()]
    found = [int(re.findall(r"process (\d+)", worker.place)[0]) for worker in held]
    waiting = [*dispatch.loading]
    done = ray.wait(waiting, num_returns=len(waiting), timeout=0)[0] if waiting else []
    found += [int(re.findall(r"process (\d+)", ray.get(one)["place"])[0]) for one in done]
    return [process for process in found if psutil.pid_exists(process)]


def lose(patch: pytest.MonkeyPatch, kill: Callable[[list[int]], None]) -> None:
    """Let ``kill`` take a worker in mid-sweep, when two have the weights and work is left.

    It is given the processes of this sweep's workers: another test run on the machine has its own.
    """
    count = [0]
    made: list[Workers] = []
    start = Workers.answers

    def noted(dispatch: Workers, *plan: Any) -> Any:
        made.append(dispatch)
        return start(dispatch, *plan)

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

    patch.setattr(Workers, "answers", noted)
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


@pytest.mark.parametrize(("address", "told"), [
    ("nonsense", "no cluster answers at nonsense (HOST:PORT): "),
    ("127.0.0.1:1", "127.0.0.1:1 (HOST:PORT): Connection refused. Start one"),
    ("auto", "Ray cannot be reached: Could not find any running Ray"),
])  # fmt: skip
def test_an_address_where_nothing_is(address, told, tiny, docs, tmp_path, ropewalk):
    done = ropewalk(*sweep(tiny, docs, tmp_path / "run"), "--cluster", address)
    assert (done.status, done.out, done.err.count("\n")) == (2, "", 1)
    assert told in done.err
    assert not (tmp_path / "run").exists()


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
