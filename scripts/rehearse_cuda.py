"""Rehearse passes of large models on a GPU without a GPU, on fake CUDA tensors.

The engine's own code runs over tensors that have a shape, a dtype and a CUDA device, and no data.
Every operator is counted, live memory is added up, and a roofline gives the seconds that an H100
would take at best. Nothing here is measured on a GPU. It needs PyTorch's CUDA build, which takes
several GB, in an environment that has Ropewalk too; no driver is needed:

    pip install torch   # where the default is a CUDA build
    python -m scripts.rehearse_cuda --shape 8B --length 8192,131072 --method none,rerope
    python -m scripts.rehearse_cuda --shape 70B --length 131072 --gpus 8

On one GPU a pass runs with one layer and with two, from which the whole model's follows. Over
several GPUs the whole model runs, once with overlapping chunks and once layer by layer; a GPU's
queue takes so many kernels, and the host waits while it is full. A case fails if one of these
happens:

- the peak of memory is above the engine's estimate;
- an operator mixes devices;
- plain attention is called more than once per chunk of rows and layer;
- the host waits for the device before the end of the pass;
- a copy skips one of the GPUs that overlap.
"""

from __future__ import annotations

import argparse
import sys
import time
import weakref
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from accelerate import dispatch_model
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from transformers import AutoModelForCausalLM, LlamaConfig

from harness.engine import DEFAULT, answers, forward, memory, sdpa
from harness.engine.prefix_tree import build_tree
from harness.methods.resolve import resolve
from harness.models.weights import with_input_device
from harness.patching.banded_attention import BandedAttention, kept_of
from harness.patching.config import rope_of
from harness.patching.frequencies import placed, rotary_name
from harness.patching.layout import attending, layouts_of
from harness.plugins import load
from scaling.types import Bands, Frequencies
from scripts.bench import SHAPES as MEASURED
from scripts.bench import operations
from tasks.types import Loglikelihood

aten = torch.ops.aten
WINDOW = 8192  # tokens; of the models
SHAPES: dict[str, dict[str, Any]] = {
    "1B": MEASURED["1B"],
    # of Llama 3 8B
    "8B": {
        "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128_256,
    },
    # of Llama 3 70B
    "70B": {
        "hidden_size": 8192, "intermediate_size": 28_672, "num_hidden_layers": 80,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128_256,
    },
}  # fmt: skip
GIB = 2**30
LAYERS = 2
READBACKS = 2  # of a pass: losses, and the most likely tokens
BLOCK = 512  # bytes of which PyTorch's allocator gives whole ones
BANDWIDTH, LINK = 2.8e12, 400e9  # bytes per second: of memory, and between two GPUs
LAUNCH, QUEUE = 4e-6, 1024  # seconds of the host for a kernel, and kernels that wait on a GPU
PRODUCTS = 600e12  # operations per second of large matrix products
ATTENTION = {"flash": 360e12, "cudnn": 600e12, "efficient": 200e12, "math": 30e12}
FA3 = 600e12  # what flash comes to where FlashAttention-3 is active
PEAK = 989e12  # operations per second of an H100 by its data sheet, dense bfloat16
VIEWS = (
    "_unsafe_view", "lift_fresh", "detach", "empty", "empty_like", "alias", "new_empty",
    "empty_strided", "new_empty_strided",
)  # fmt: skip
READS_A_PART = ("gather", "index", "index_select", "embedding")


def nbytes(value: Any) -> int:
    """Return the bytes of the tensors on a GPU in a nested value."""
    parts = [t for t in tree_flatten(value)[0] if isinstance(t, torch.Tensor)]
    return sum(prod(t.shape) * t.element_size() for t in parts if t.device.type == "cuda")


class Rehearsal(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs operators on fake CUDA tensors and adds up what a GPU would do.

    ``host`` is the second at which the host has launched everything, and ``clock`` the second at
    which each device has finished its work so far. ``seconds`` adds up the time of all devices by
    kind of work. ``transfers`` counts the copies between two GPUs.
    """

    def __init__(self, flash: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.speeds = {**ATTENTION, "flash": flash}
        self.kernels = self.readbacks = self.uploads = self.live = self.peak = 0
        self.attention: Counter[str] = Counter()
        self.mixed: Counter[str] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.clock: defaultdict[torch.device, float] = defaultdict(float)
        self.host = 0.0
        self.queues: defaultdict[torch.device, deque[float]] = defaultdict(deque)
        self.transfers: Counter[tuple[int, int]] = Counter()
        self.known: set[int] = set()
        self.largest = 0  # elements of the largest tensor that attention creates on any device

    def ignore(self, model: Any) -> None:
        """Leave a model's weights out of what is counted as live."""
        every = [*model.parameters(), *model.buffers()]
        self.known |= {t.untyped_storage()._cdata for t in every}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run one operator on fake tensors, and count it."""
        kwargs = kwargs or {}
        tensors = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, torch.Tensor)]
        fakes = [t for t in tensors if isinstance(t, FakeTensor)]
        devices = (x for x in (kwargs.get("device"), *args) if isinstance(x, torch.device))
        target = next(devices, None)
        name = func.__name__.partition(".")[0]
        if func is torch.ops.prim.device.default:
            return args[0].fake_device if fakes else args[0].device
        if not fakes and (target is None or torch.device(target).type != "cuda"):
            return func(*args, **kwargs)
        read = self._readback(name, args, kwargs)
        if read is not None:
            return read
        if name == "scaled_dot_product_attention":
            return self._sdpa(*args, **kwargs)
        if func._can_decompose() and name != "_to_copy":
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        self._check(name, tensors)
        with self.fake:
            out = func(*args, **kwargs)
        self._count(func, name, args, kwargs, out)
        return out

    def _readback(self, name: str, args: Sequence[Any], kwargs: Any) -> Any:
        """Return made-up numbers where the host waits for some of a GPU, else None."""
        to_host = kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cpu"
        found: Any = None
        if name == "equal":
            found = True
        elif name in ("_local_scalar_dense", "is_nonzero"):
            found = False if args[0].dtype == torch.bool else 0
        elif name == "_to_copy" and to_host:
            found = torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        self.readbacks += found is not None
        return found

    def _check(self, name: str, tensors: Sequence[torch.Tensor]) -> None:
        """Note an operator that mixes devices, which only a copy may."""
        places = {t.device for t in tensors if t.dim()}
        if len(places) > 1 and name not in ("_to_copy", "copy_"):
            self.mixed[f"{name} of {', '.join(sorted(map(str, places)))}"] += 1

    def _sdpa(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        _dropout: float = 0.0,
        is_causal: bool = False,
        **_: Any,
    ) -> torch.Tensor:
        """Choose a kernel as PyTorch does on compute capability 9.0, which prefers cuDNN's."""
        half, square = query.dtype.itemsize == 2, query.shape[2] == key.shape[2]
        if half and query.shape[3] <= 128 and key.shape[2] > 1:
            kind = "cudnn"
        elif half and attn_mask is None and (square or not is_causal):
            kind = "flash"
        else:
            kind = "efficient" if query.shape[1] == key.shape[1] else "math"
        if attn_mask is not None:
            self.largest = max(self.largest, prod(attn_mask.shape))
        with self.fake:
            out = query.new_empty((query.shape[0], query.shape[2], query.shape[1], value.shape[3]))
            scores = None if kind != "math" else query.new_empty((*query.shape[:3], key.shape[2]))
            out = out.transpose(1, 2)
        self._track((out, scores))
        self._attend(kind, query, key, causal=is_causal)
        return out

    def _attend(self, kind: str, query: torch.Tensor, key: torch.Tensor, *, causal: bool) -> None:
        rows, keys = query.shape[2], key.shape[2]
        pairs = rows * (keys - rows) + rows * (rows + 1) / 2 if causal else rows * keys
        work = 4 * query.shape[0] * query.shape[1] * query.shape[3] * pairs
        self.kernels += 1
        self.attention[kind] += 1
        self._spend(
            "attention", query.device, max(work / self.speeds[kind], nbytes(key) / BANDWIDTH)
        )

    def _spend(self, kind: str, device: torch.device, seconds: float) -> None:
        self.seconds[kind] += seconds
        self._queue([device], seconds)

    def _queue(self, devices: Sequence[torch.device], seconds: float) -> None:
        """Queue a kernel, or a copy for which two devices wait."""
        self.host += LAUNCH
        for device in devices:
            if len(self.queues[device]) == QUEUE:
                self.host = max(self.host, self.queues[device].popleft())
        done = max(self.host, *(self.clock[device] for device in devices)) + seconds
        for device in devices:
            self.clock[device] = done
            self.queues[device].append(done)

    def _count(self, func: Any, name: str, args: Sequence[Any], kwargs: Any, out: Any) -> None:
        """Count an operator that ran: its kernel, memory and seconds."""
        made = [t for t in tree_flatten(out)[0] if isinstance(t, FakeTensor)]
        made = [t for t in made if t.device.type == "cuda"]
        self._track(out)
        if not made or func.is_view or name in VIEWS:
            return
        device = made[0].device
        if self._fused(func, name, args, kwargs):
            return
        self.kernels += 1
        inputs = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, torch.Tensor)]
        if name in ("_to_copy", "copy_") and any(t.device != device for t in inputs):
            self._transfer(inputs[-1] if name == "copy_" else inputs[0], device)
            return
        moved = nbytes((args, kwargs)) + nbytes(made)
        if name in ("mm", "addmm", "bmm"):
            one, other = args[-2:] if name != "addmm" else args[1:3]
            work = 2 * prod(one.shape) * other.shape[-1]
            kind = "head" if other.shape[-1] > 10 * one.shape[-1] else "products"
            self._spend(kind, device, max(work / PRODUCTS, moved / BANDWIDTH))
            return
        moved = 2 * nbytes(made) if name in READS_A_PART else moved
        self._spend("rest", device, moved / BANDWIDTH)

    def _transfer(self, source: torch.Tensor, device: torch.device) -> None:
        """Copy to a device: from the host, or from another GPU, where both wait for the other."""
        if source.device.type != "cuda":
            self.uploads += 1
            return
        self.transfers[source.device.index, device.index] += 1
        self._queue([source.device, device], nbytes(source) / LINK)

    def _fused(self, func: Any, name: str, args: Sequence[Any], kwargs: Any) -> bool:
        """Count a call of a fused attention kernel by its own operator."""
        kinds = [kind for kind in ("flash", "cudnn", "efficient") if f"{kind}_attention" in name]
        if not kinds:
            return False
        given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
        query, key = given["query"], given["key"]
        if name.endswith("_forward"):  # (batch, rows, heads, channels)
            query, key = query.transpose(1, 2), key.transpose(1, 2)
        causal = bool(given.get("is_causal") or given.get("custom_mask_type"))
        self._attend(kinds[0], query, key, causal=causal)
        return True

    def _track(self, out: Any) -> None:
        for tensor in tree_flatten(out)[0]:
            if isinstance(tensor, FakeTensor) and tensor.device.type == "cuda":
                storage = tensor.untyped_storage()
                place = storage._cdata
                if place not in self.known:
                    size = -(-storage.nbytes() // BLOCK) * BLOCK
                    self.known.add(place)
                    self.live += size
                    self.peak = max(self.peak, self.live)
                    weakref.finalize(storage, self._drop, place, size)

    def _drop(self, place: int, size: int) -> None:
        self.known.discard(place)
        self.live -= size


@dataclass(frozen=True)
class Case:
    """A pass that is rehearsed."""

    shape: str
    length: int
    method: str
    gpus: int = 1
    overlap: bool = False

    @property
    def order(self) -> str:
        """The GPUs, and in which order they get chunks and layers."""
        order = "overlapping" if self.overlap else "layer by layer"
        return "1" if self.gpus == 1 else f"{self.gpus}, {order}"


@dataclass(frozen=True)
class Result:
    """What a pass of the whole model comes to; bytes are those beside the weights."""

    case: Case
    kernels: int
    readbacks: int
    uploads: int
    attention: str
    peak: int
    estimate: int
    seconds: float
    share: float  # of the operations per second of an H100
    faults: tuple[str, ...]

    def line(self) -> str:
        """Return the row of the table."""
        case = self.case
        return (
            f"| {case.shape} | {case.length:,} | {case.method} | {case.order} | {self.kernels:,} |"
            f" {self.readbacks:,} | {self.uploads:,} | {self.attention} | {self.peak / GIB:.2f} |"
            f" {self.peak / self.estimate:.2f} | {self.seconds:.2f} | {self.share:.2f} |"
        )


COLUMNS = (
    "shape", "tokens", "method", "GPUs", "kernels", "readbacks", "uploads", "attention",
    "peak, GiB", "of the estimate", "seconds", "share of the peak",
)  # fmt: skip
HEAD = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"


def config(shape: str, layers: int = LAYERS, **changes: Any) -> LlamaConfig:
    """Return the config of one of the shapes with few layers."""
    theta = {"rope_type": "default", "rope_theta": 500_000.0}
    given = {**SHAPES[shape], "num_hidden_layers": layers, "rope_parameters": theta, **changes}
    return LlamaConfig(**given, max_position_embeddings=WINDOW, tie_word_embeddings=False)


def flash_takes(query: torch.Tensor, _key: torch.Tensor, _value: torch.Tensor) -> bool:
    """Return what PyTorch says of its flash kernel on compute capability 8.0 and above."""
    return query.dtype.itemsize == 2 and query.shape[-1] <= 256


@contextmanager
def on_no_gpu() -> Iterator[None]:
    """Let PyTorch make fake CUDA tensors, and leave its questions to a driver out."""
    lazy, own = torch.cuda._lazy_init, sdpa._flash_takes
    torch._C._ensureCUDADeviceGuardSet()
    torch._C._set_only_lift_cpu_tensors(True)
    torch.cuda._lazy_init = lambda: None
    sdpa._flash_takes = flash_takes  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.cuda._lazy_init, sdpa._flash_takes = lazy, own


@contextmanager
def rotated(model: Any, rotation: Any) -> Iterator[None]:
    """Run a model with a rotation, without the checks that read its numbers back."""
    if not isinstance(rotation, Bands):
        with placed(model, rotary_name(model), rotation):
            yield
        return
    tiny = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": model.config.head_dim}
    small = LlamaConfig(
        hidden_size=64, intermediate_size=64, num_hidden_layers=1, vocab_size=64, **tiny
    )
    (layout,) = layouts_of(AutoModelForCausalLM.from_config(small).eval()).values()
    layouts = {layer.self_attn: layout for layer in model.model.layers}
    attention = BandedAttention(rotation, layouts)
    attention.kernel = attention.attend
    at_rest = Frequencies(torch.zeros(model.config.head_dim // 2))
    with placed(model, rotary_name(model), at_rest), attending(model, attention, attention.mask):
        yield


def passed(case: Case, rotation: Any, layers: int, flash: float) -> Rehearsal:
    """Run one pass over every position of a text in a model of so many layers."""
    tokens = tuple(i * 7919 % 128_256 for i in range(case.length))
    gpu = Rehearsal(flash)
    with gpu.fake, torch.device("cuda:0"):
        model = AutoModelForCausalLM.from_config(config(case.shape, layers), dtype=torch.bfloat16)
    if case.gpus > 1:
        model = spread(model, gpu.fake, case.gpus)
    gpu.ignore(model.eval())
    forward._known[model] = {"sdpa": True, "ropewalk": True}
    with rotated(model, rotation), gpu:
        sizes = replace(DEFAULT, overlap=case.overlap)
        list(answers(model, [Loglikelihood(tokens, 1, doc_id="text")], sizes))
    return gpu


def spread(model: Any, fake: FakeTensorMode, gpus: int) -> Any:
    """Spread a model over GPUs as accelerate does: layers in order, norm and head on the last."""
    layers, last = model.model.layers, gpus - 1
    places = {"model.embed_tokens": 0, "model.rotary_emb": 0, "model.norm": last, "lm_head": last}
    places |= {f"model.layers.{at}": at * gpus // len(layers) for at in range(len(layers))}
    with fake:
        for name, place in places.items():
            for module in model.get_submodule(name).modules():
                for own in (module._parameters, module._buffers):
                    for key, one in own.items():
                        own[key] = None if one is None else one.detach().to(f"cuda:{place}")
        return with_input_device(dispatch_model(model, places))


def rehearse_spread(case: Case, flash: float) -> Result:
    """Rehearse a pass of the whole model over several GPUs."""
    count = int(SHAPES[case.shape]["num_hidden_layers"])
    shaped = config(case.shape, count)
    rotation = resolve(load("method", case.method), rope_of(shaped), case.length)
    moved = kept_of(rotation) if isinstance(rotation, Bands) else memory.Moved()
    gpu = passed(case, rotation, count, flash)
    shape = memory.Shape.of(shaped, 2).on(torch.device("cuda"), gpus=case.gpus)
    tree, sizes = build_tree([tuple(range(case.length))]), replace(DEFAULT, overlap=case.overlap)
    estimate = memory.shared(shape, tree, case.length, sizes, (), moved)
    faults = [f"mixes devices: {what}" for what in gpu.mixed]
    if gpu.peak > estimate:
        faults.append(f"the peak is {gpu.peak / estimate:.2f} of the estimate")
    if gpu.readbacks > READBACKS:
        faults.append(f"{gpu.readbacks} readbacks")
    far = sorted(pair for pair in gpu.transfers if pair[1] > pair[0] + 1)
    if case.overlap and far:
        faults.append(f"copies that skip a GPU: {far}")
    seconds = max(gpu.clock.values())
    return Result(
        case=case,
        kernels=gpu.kernels,
        readbacks=gpu.readbacks,
        uploads=gpu.uploads,
        attention=", ".join(f"{n:,} {kind}" for kind, n in sorted(gpu.attention.items())),
        peak=gpu.peak,
        estimate=estimate,
        seconds=seconds,
        share=sum(operations(shaped, case.length)) / seconds / PEAK / case.gpus,
        faults=tuple(faults),
    )


def rehearse(case: Case, flash: float) -> Result:
    """Rehearse a pass of the whole model from one and two of its layers."""
    shaped = config(case.shape, LAYERS)
    rotation = resolve(load("method", case.method), rope_of(shaped), case.length)
    moved = kept_of(rotation) if isinstance(rotation, Bands) else memory.Moved()
    one, gpu = (passed(case, rotation, layers, flash) for layers in (1, LAYERS))
    more = int(SHAPES[case.shape]["num_hidden_layers"]) - LAYERS

    def whole(first: float, second: float) -> float:
        return second + more * (second - first)

    shape = memory.Shape.of(shaped, 2).on(torch.device("cuda"))
    rows = DEFAULT.layer_rows(memory.of_a_row(shape), causal=not moved.tables)
    tree = build_tree([tuple(range(case.length))])
    estimate = memory.shared(shape, tree, case.length, DEFAULT, (), moved)
    seconds = whole(sum(one.seconds.values()), sum(gpu.seconds.values()))
    chunks, calls = -(-case.length // rows), sum(gpu.attention.values())
    faults = [f"mixes devices: {what}" for what in gpu.mixed]
    if gpu.peak > estimate:
        faults.append(f"the peak is {gpu.peak / estimate:.2f} of the estimate")
    if not moved.tables and calls != chunks * LAYERS:
        faults.append(f"{calls} calls of attention for {chunks} chunks of {LAYERS} layers")
    if gpu.readbacks > READBACKS:
        faults.append(f"{gpu.readbacks} readbacks")
    work = sum(operations(config(case.shape, LAYERS + more), case.length))
    return Result(
        case=case,
        kernels=round(whole(one.kernels, gpu.kernels)),
        readbacks=gpu.readbacks,
        uploads=round(whole(one.uploads, gpu.uploads)),
        attention=", ".join(
            f"{whole(one.attention[kind], count):,.0f} {kind}"
            for kind, count in sorted(gpu.attention.items())
        ),
        peak=gpu.peak,
        estimate=estimate,
        seconds=seconds,
        share=work / seconds / PEAK,
        faults=tuple(faults),
    )


def results(case: Case, flash: float) -> Iterator[Result]:
    """Yield the result on one GPU, or those of both orders on several."""
    if case.gpus == 1:
        yield rehearse(case, flash)
        return
    for overlap in (True, False):
        yield rehearse_spread(replace(case, overlap=overlap), flash)


def main() -> int:
    """Print the table; return 1 where a case has a fault."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shape", default="1B,8B")
    parser.add_argument("--length", default="8192,131072,1048576")
    parser.add_argument("--method", default="none")
    parser.add_argument("--gpus", type=int, default=1, help="over which the layers are spread")
    parser.add_argument("--fa3", action="store_true", help="flash kernels as fast as FA3's")
    given = parser.parse_args()
    flash = FA3 if given.fa3 else ATTENTION["flash"]
    print(HEAD, flush=True)
    failed = False
    with on_no_gpu():
        for shape in given.shape.split(","):
            for method in given.method.split(","):
                for length in map(int, given.length.split(",")):
                    began = time.perf_counter()
                    for result in results(Case(shape, length, method, given.gpus), flash):
                        print(result.line(), flush=True)
                        for fault in result.faults:
                            print(f"  fault: {fault}", flush=True)
                        failed |= bool(result.faults)
                    print(f"  ({time.perf_counter() - began:.0f} s)", file=sys.stderr, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
