"""Connect to Ray, on this machine or at an address (``ropewalk[cluster]``)."""

from __future__ import annotations

import atexit
import logging
import os
import re
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

import ropewalk
from ropewalk.harness.errors import UserError, reason
from ropewalk.harness.sweep.ray import Cluster, StrandedError, Workers
from ropewalk.harness.sweep.spec import Spec

log = logging.getLogger("ropewalk")
PARENT = Path(ropewalk.__file__).parent.parent
HINT = "install it with: pip install 'ropewalk[cluster]'"
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is sent anywhere
    "RAY_DEDUP_LOGS_SKIP_REGEX": "^",  # no log of a lost node in our output: a sentence reports it
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else a warning about a later version
    # What Ray adds to the niceness of its workers: its own 15 leaves each about 3 % of a core that
    # another process wants too.
    "RAY_worker_niceness": "0",
    # Seconds until Ray ends this process, without a sentence, where the head is gone.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "86400",
}


@contextmanager
def connected(spec: Spec) -> Iterator[Workers]:
    """Connect to the cluster of a spec, or start one on this machine, and yield its workers.

    Raises UserError where Ray is not installed, or no cluster answers at the address.
    """
    try:
        os.environ.update({name: os.environ.get(name, value) for name, value in SETTINGS.items()})
        import ray
    except ImportError:
        raise UserError(f"--workers and --cluster need Ray; {HINT}") from None
    # The path of a socket has at most 107 characters, and TMPDIR may be long.
    place = os.environ.get("RAY_TMPDIR", "/tmp")
    try:
        temporary = tempfile.TemporaryDirectory(
            prefix="ropewalk-ray-", dir=place, ignore_cleanup_errors=True
        )
    except OSError as error:
        raise UserError(
            f"Ray's files cannot be in {place}: {error.strerror}; set RAY_TMPDIR to a folder."
        ) from None
    with temporary as folder:
        try:
            yield Workers(_local(ray, spec, folder) if spec.cluster is None else _joined(ray, spec))
        except StrandedError:
            _leave_behind(ray)
            raise
        except BaseException:
            ray.shutdown()
            raise
        ray.shutdown()


def _leave_behind(ray: Any) -> None:
    """Let the process end without Ray, whose own end would wait for its head and then crash."""
    atexit.unregister(ray.shutdown)
    atexit.register(_end)


def _end() -> None:
    """End the process with the status of a UserError, before Ray's destructors run."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(2)


def _local(ray: Any, spec: Spec, folder: str) -> Cluster:
    """Start Ray on this machine, with its own files in ``folder``; workers share the cores."""
    import torch

    count = spec.workers or 1
    threads = max(1, torch.get_num_threads() // count)
    cores = count * threads
    _start(ray, address="local", num_cpus=cores, include_dashboard=False, _temp_dir=folder)
    device = _device(ray, spec)
    gpus = int(ray.cluster_resources().get("GPU", 0))
    if device == "cuda" and not gpus:
        raise UserError("--device cuda: this machine has no GPU for a worker; use --device cpu.")
    if device == "cuda" and gpus < count and not spec.device_map:
        log.info(f"Each worker needs a GPU of its own, of {count} not all will work at once.")
    return _cluster(ray, count, device, threads, gpus_each(spec, device, [gpus], count))


def _joined(ray: Any, spec: Spec) -> Cluster:
    """Connect to a running cluster; one worker per GPU, or per node with GPUs or with cores."""
    address = str(spec.cluster)
    host, _, port = address.rpartition(":")
    known = re.fullmatch(r"[^/\s]+:[0-9]{1,5}", address) and int(port) < 2**16
    if address != "auto" and not known:
        raise UserError(
            f"--cluster {reason(repr(address))} is no address; give HOST:PORT, or auto on a node"
            " of it."
        )
    if address != "auto":  # Ray itself would try for two minutes, with many messages
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
        except (OSError, ValueError) as error:  # a ValueError of a host that cannot be
            why = getattr(error, "strerror", None) or reason(error)
            raise UserError(
                f"no cluster answers at {address}: {why}; start one with: ray start --head"
            ) from None
    try:
        _start(ray, address=address)
    except ConnectionError as error:
        raise UserError(
            "no cluster runs on this machine; start one with: ray start --head"
            if "not find any running" in str(error)
            else f"Ray at {address} does not let us in; set RAY_AUTH_MODE here as on its nodes."
        ) from None
    device = _device(ray, spec)
    has = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    gpus, cores = ([int(node.get(kind, 0)) for node in has] for kind in ("GPU", "CPU"))
    nodes = sum(map(bool, gpus if device == "cuda" else cores))
    by_gpu = device == "cuda" and not spec.device_map
    count = spec.workers or max(1, sum(gpus) if by_gpu else nodes)
    threads = 1 if device == "cuda" else most_each(cores, count)
    return _cluster(ray, count, device, threads, gpus_each(spec, device, gpus, count))


def _cluster(ray: Any, count: int, device: str, threads: int, gpus: int) -> Cluster:
    here = ray.get_runtime_context()
    head, node = here.gcs_address, here.get_node_id()
    return Cluster(count, device, threads, gpus, head=head, node=node)


def gpus_each(spec: Spec, device: str, gpus: Sequence[int], workers: int) -> int:
    """Return the number of GPUs per worker; the worker's model is spread over them.

    Raises UserError where there are fewer than workers whose models are spread.
    """
    if device != "cuda":
        return 0
    if not spec.device_map:
        return 1
    if sum(gpus) < workers:
        raise UserError(
            f"--workers {workers} with --device-map {spec.device_map}: each worker needs GPUs of"
            f" its own, and there are {sum(gpus)}; use --workers {sum(gpus)} or fewer."
        )
    return most_each(gpus, workers)


def most_each(amounts: Sequence[int], workers: int) -> int:
    """Return how many cores or GPUs so many workers can have each, on nodes with these; 1 at least.

    A worker is on one node.
    """
    fits = (n for n in range(max(amounts), 0, -1) if sum(has // n for has in amounts) >= workers)
    return next(fits, 1)


def _start(ray: Any, **where: Any) -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        with chdir(PARENT):  # Ray lets its workers import from the current directory
            ray.init(logging_level="ERROR", log_to_driver=False, **where)
    except ConnectionError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"Ray cannot be reached: {reason(error)}") from error
    finally:
        signal.signal(signal.SIGTERM, before)  # Ray's own ends the process with another status


def _device(ray: Any, spec: Spec) -> str:
    """Return the device of the workers; Ray assigns the GPUs."""
    if spec.device == "auto":
        return "cuda" if ray.cluster_resources().get("GPU", 0) else "cpu"
    if spec.device not in ("cpu", "cuda"):
        raise UserError(
            f"workers are given their GPU by Ray: --device {spec.device} must be cpu or cuda."
        )
    return spec.device
