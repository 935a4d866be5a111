"""A device of our own, "far": the CPU computes for it, but nobody else can read its memory, and CPU
tensors may not meet its tensors.

``python tests/far.py NAME ...`` runs programs there and on the CPU, and prints what nanlab says of each as
JSON. It needs a process of its own, for torch takes one such backend a process. Tried with torch
2.13.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

FAR, HERE = torch.device("privateuseone:0"), torch.device("cpu")
CPU_KERNEL = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
COMPOSITE = ("CompositeImplicitAutograd", "CompositeExplicitAutograd")
COPIES = ("_copy_from", "_copy_from_and_resize")
point_at = torch.ops.aten.set_.source_Storage_storage_offset
waits: Counter[str] = Counter()  # how often the host waited: for a number, for a copy
memory: list[torch.Tensor] = []  # of the device; never freed


def is_far(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "far"


def near(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor in the memory of a far one."""
    storage = tensor.untyped_storage()
    same = torch._C._construct_storage_from_data_pointer(storage.data_ptr(), HERE, storage.nbytes())
    return point_at(
        torch.empty(0, dtype=tensor.dtype, device="cpu"),
        same,
        tensor.storage_offset(),
        tensor.size(),
        tensor.stride(),
    )


def moved(tensor: torch.Tensor) -> torch.Tensor:
    """A new far tensor with the elements and strides of a CPU tensor."""
    span = (
        1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        if tensor.numel()
        else 0
    )
    memory.append(torch.zeros(max(span * tensor.itemsize, 8), dtype=torch.uint8, device="cpu"))
    storage = torch._C._construct_storage_from_data_pointer(
        memory[-1].data_ptr(), FAR, span * tensor.itemsize
    )
    made = torch._C._acc.create_empty_tensor((0,), tensor.dtype)
    point_at.redispatch(CPU_KERNEL, made, storage, 0, tensor.size(), tensor.stride())
    if tensor.numel():
        near(made).copy_(tensor)
    return made


def number_as_tensor(op: Any, place: int, value: Any, args: tuple[Any, ...]) -> Any:
    """What the dispatcher turned from a wrapped number into a Python number."""
    if (
        not isinstance(value, (bool, int, float))
        or str(op._schema.arguments[place].type) != "Tensor"
    ):
        return value
    dtypes = [t.dtype for t in args if isinstance(t, torch.Tensor)]
    fitting = [d for d in dtypes if d.is_floating_point] or [
        d for d in dtypes if type(value) is int and d != torch.bool
    ]
    return torch.tensor(value, dtype=fitting[0] if fitting else None, device="cpu")


def compute(op: Any, *args: Any, **kwargs: Any) -> Any:
    """An operation on far tensors, by the kernel of the CPU."""
    name = op._schema.name.removeprefix("aten::")
    waits["number"] += name == "_local_scalar_dense"
    if name in COPIES:
        waits["copy"] += not is_far(args[1])
        source, target = (near(t) if is_far(t) else t for t in args[:2])
        target.copy_(source)
        return args[1]
    shows = any(r.alias_info is not None and not r.alias_info.is_write for r in op._schema.returns)
    if shows or name == "set_":
        return op.redispatch(CPU_KERNEL, *args, **kwargs)
    stray = [
        t
        for t in tree_leaves((args, kwargs))
        if isinstance(t, torch.Tensor) and not is_far(t) and t.dim()
    ]
    if stray and not (name.startswith(("index", "_index")) and is_far(args[0])):
        raise RuntimeError(
            f"expected all tensors of {name} to be on one device, found far:0 and cpu"
        )
    back: dict[int, torch.Tensor] = {}

    def enter(value: Any) -> Any:
        if is_far(value):
            entered = near(value)
            back[id(entered)] = value
            return entered
        return HERE if isinstance(value, torch.device) else value

    entered = tuple(number_as_tensor(op, i, v, args) for i, v in enumerate(tree_map(enter, args)))
    named = tree_map(enter, kwargs)
    hollow = kwargs.get("out")  # allocated with no element, to be given its size
    if is_far(hollow) and not hollow.numel():
        named["out"] = torch.empty(0, dtype=hollow.dtype, device="cpu")
        back[id(named["out"])] = hollow
    result = op(*entered, **named)
    if is_far(hollow) and not hollow.numel():
        made = moved(named["out"])
        point_at.redispatch(
            CPU_KERNEL, hollow, made.untyped_storage(), 0, made.size(), made.stride()
        )
    return tree_map(
        lambda v: back[id(v)] if id(v) in back else moved(v) if isinstance(v, torch.Tensor) else v,
        result,
    )


def set_up() -> torch.library.Library:
    """Register the device, and a kernel for each operation that has one on the CPU; the library
    must stay alive."""
    _setup_privateuseone_for_python_backend("far")
    library, has = (
        torch.library.Library("aten", "IMPL"),
        torch._C._dispatch_has_kernel_for_dispatch_key,
    )
    for full in torch._C._dispatch_get_all_op_names():
        base, _, overload = full.removeprefix("aten::").partition(".")
        known = (
            full.startswith("aten::")
            and has(full, "CPU")
            and not any(has(full, key) for key in COMPOSITE)
        )
        if known or full.removeprefix("aten::") in COPIES:
            op = getattr(getattr(torch.ops.aten, base, None), overload or "default", None)
            if op is not None:
                library.impl(full.removeprefix("aten::"), partial(compute, op), "PrivateUse1")
    return library


def as_on_cuda() -> None:
    """Rows of statistics come from one kernel, and not from a hundred operations."""
    from nanlab.stats import device as rows

    plain = rows.row_of

    def row_of(t: torch.Tensor, times: int, zeros: int) -> Any:
        if not is_far(t):
            return plain(t, times, zeros)
        with torch._C._DisableTorchDispatch():
            row = plain(near(t), times, zeros)
            return replace(row, words=moved(row.words))

    rows.row_of = row_of


# -- programs
# ------------------------------------------------------------


def train(loss_of: Callable[[Any, Any], Any], steps: int = 1) -> Callable[[torch.device], Any]:
    """Steps of a small model; the fault is in the loss."""

    def program(device: torch.device) -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 3)).to(device)
        optimizer = torch.optim.Adam(model.parameters(), 0.01, foreach=True)
        for _ in range(steps):
            x = torch.rand(6, 4, device="cpu").to(device)
            optimizer.zero_grad()
            loss_of(model(x), x).backward()
            optimizer.step()
        return [p.detach().cpu().numpy().tobytes().hex() for p in model.parameters()]

    return program


def repaired(y: Any, x: Any) -> Any:
    ratio = x[:, :3] / (y.detach() * 0.0)
    ratio[ratio.isinf()] = 0.0
    return ((ratio + y) * ratio.sum()).mean()


FAULTS = {
    "healthy": train(lambda y, x: y.square().mean(), steps=3),
    "log": train(lambda y, x: torch.log(y.relu() * 0.0).mean()),
    "power": train(lambda y, x: ((y * 0.0) ** -0.5).mean()),
    "inverse": train(lambda y, x: torch.linalg.inv_ex((y.t() @ y) * 0.0)[0].sum()),
    "repaired": train(repaired),
}


def told(program: Callable[[torch.device], Any], device: torch.device) -> dict[str, Any]:
    """What the program computes without a watch and with one, and what nanlab says of it."""
    import nanlab

    bare = program(device)
    waits.clear()
    with nanlab.watch(on_fault="record", keep=9) as trace:
        watched = program(device)
    waited, found = dict(waits), trace.culprit
    told: dict[str, Any] = {
        "same": bare == watched,
        "notes": trace.notes,
        "rows": len(trace.ops),
        "waits": waited,
    }
    born = trace.ops[trace.ops.status.isin(["born", "turned"])]
    told["births"] = born[["op", "phase", "status"]].values.tolist()
    kept = [(k.args, k.outputs) for k in trace.recording.kept.values()]
    told["kept"] = [str(t.tolist()) for t in tree_leaves(kept) if isinstance(t, torch.Tensor)]
    if found is not None:
        told["place"] = [found.cause, found.op, found.phase, found.step, found.title]
        told["elements"] = found.evidence.to_string()
        # names are read where a fault shows, and on a device that is known too late
        known = [fix for fix in found.fixes if fix.left_out is None]
        told["fixes"] = [(fix.title, fix.code, fix.verified) for fix in known]
    return told


def main() -> None:
    torch.set_num_threads(1)
    library = set_up()
    torch.set_default_device("far")  # a watch must start under it
    import nanlab

    with nanlab.watch():
        torch.ones(2)
    torch.set_default_device(None)
    as_on_cuda()
    expected = {name: told(FAULTS[name], HERE) for name in sys.argv[1:]}
    there = {name: told(FAULTS[name], FAR) for name in sys.argv[1:]}
    print(json.dumps({"cpu": expected, "far": there}))
    del library


if __name__ == "__main__":
    main()
