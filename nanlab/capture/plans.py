"""What an operator writes and which indices it may take, known before it runs; and one call."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from nanlab.errors import NanlabError
from nanlab.operators import card, having, in_place
from nanlab.stats.memory import has_memory, is_wrapper, local_part
from nanlab.trace.chunk import Names
from nanlab.trace.escapes import BadIndices
from nanlab.trace.op import module_name
from nanlab.trace.recording import Recording

if TYPE_CHECKING:
    from nanlab.capture.dispatch import OpRecorder


# Indices checked before the kernel runs: on a device a bad one is an assertion that ends the
# context.

Tensor = torch.Tensor
SHOWN = 20  # bad indices that are listed
COPIES = 64  # latest checks whose indices are kept on the host
# elements of the largest indices that are copied whole; of larger ones the least and the greatest
COPY_LIMIT = 1 << 17

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_ALONG_A_DIMENSION = having("indexes_dim", in_place=True)
_EMBEDDINGS = having("embeds")
_LIKELIHOODS = having("likelihood")
_SUBSCRIPTS = having("subscript", in_place=True)
INDEXING = _ALONG_A_DIMENSION | _EMBEDDINGS | _LIKELIHOODS | _SUBSCRIPTS | {"take"}
# The same elements, or some of them: the range of the operand holds for the result.
_REMARKABLE = having("remarkable")
_NARROWS = having("copies", "reshapes", "parts", "picks_any") | {"copy_", "contiguous"}
_LONGEST_CHAIN = 32


class IndexOutOfRangeError(NanlabError, IndexError):
    """The CPU's error, raised before the kernel in place of a device-side assertion."""

    def __init__(self, text: str, bad: BadIndices) -> None:
        super().__init__(text)
        self.bad = bad


@dataclass(frozen=True, slots=True)
class Allowed:
    """The range that one tensor of indices may hold: ``low <= index < high``, or ``ignored``."""

    argument: str
    indices: Tensor
    low: int
    high: int
    ignored: int | None = None

    def broken_by(self, low: float, high: float) -> bool:
        """Whether indices between a least and a greatest value may be out of range."""
        return high >= self.high or (low < self.low and low != self.ignored)


def allowed(op: str, args: Any) -> Iterator[Allowed]:
    """The tensors of indices in a call, each with its range."""
    if op in _EMBEDDINGS:
        yield Allowed("indices", args[1], 0, args[0].shape[0])
    elif op in _ALONG_A_DIMENSION:
        target = args[0]
        yield Allowed("index", args[2], 0, target.shape[args[1]] if target.dim() else 1)
    elif op in _LIKELIHOODS:
        ignored = next((a for a in args[4:5] if isinstance(a, int)), -100)
        yield Allowed("target", args[1], 0, args[0].shape[1 if args[0].dim() > 1 else 0], ignored)
    elif op == "take":
        yield Allowed("index", args[1], -args[0].numel(), args[0].numel())
    elif op in _SUBSCRIPTS:
        yield from _subscripts(args[0], args[1])


def _subscripts(target: Tensor, subscripts: Any) -> Iterator[Allowed]:
    """The range of each subscript: negative ones count from the end, masks span dimensions."""
    dimension = 0
    for i, index in enumerate(subscripts):
        if index is None:
            dimension += 1
        elif index.dtype in (torch.bool, torch.uint8):
            dimension += index.dim()
        else:
            size = target.shape[dimension]
            yield Allowed(f"indices[{i}]", index, -size, size)
            dimension += 1


def bad_indices(op: str, args: Any) -> BadIndices | None:
    """The indices of a call that are out of range; None if there are none. Waits for a device."""
    for each in allowed(op, args):
        found = examine(op, each.indices, each)
        if found is not None:
            return found
    return None


def examine(op: str, indices: Tensor, limits: Allowed) -> BadIndices | None:
    """The elements of ``indices`` that are outside of ``limits``; None where there are none."""
    if indices.dtype not in _INTEGERS or not indices.numel():
        return None
    wrong = (indices < limits.low) | (indices >= limits.high)
    if limits.ignored is not None:
        wrong &= indices != limits.ignored
    places = wrong.nonzero()
    if not len(places):
        return None
    first = places[:SHOWN].tolist()
    values = indices[wrong][:SHOWN].tolist()
    return BadIndices(
        op,
        limits.argument,
        limits.low,
        limits.high,
        limits.ignored,
        len(places),
        tuple(values),
        tuple(map(tuple, first)),
        tuple(indices.shape),
        int(indices[wrong].max()),
        len(places[:, :1].unique()),
    )


def message(bad: BadIndices, module: str) -> str:
    """One sentence: which index, where, and what would have been allowed."""
    where = f" at position {list(bad.places[0])}" if bad.places and bad.places[0] else ""
    inside = f", in {module_name(module)}" if module else ""
    more = f" and {bad.count - 1} more" if bad.count > 1 else ""
    return (
        f"index {bad.values[0]} is out of range for {bad.op}{inside}: expected {bad.low} to"
        f" {bad.high - 1}, seen{where} of {bad.argument} with shape {list(bad.shape)}{more}; raised"
        " before the kernel ran, so that the device goes on working. nanlab.explain() says more"
    )


@dataclass(frozen=True, slots=True)
class Copied:
    """Indices on their way to the host, enqueued before the kernel that uses them."""

    op: str
    limits: Allowed  # its ``indices`` are the copy, or the least and the greatest
    shape: tuple[int, ...]  # of all the indices
    module: int
    line: int


class IndexGuard:
    """Keeps bad indices from a device, without waiting for it.

    Where the indices came from the CPU their range is known there, and a bad one is an ordinary
    IndexError. Otherwise they are copied to pinned memory on the stream of the kernel; that copy
    outlives the context when the kernel's assertion ends it.
    """

    def __init__(
        self,
        recorder: OpRecorder,
        elsewhere: Callable[[Tensor], bool] = lambda tensor: bool(tensor.is_cuda),
    ) -> None:
        self._recorder = recorder
        self._elsewhere = elsewhere  # whether the indices are on a device that asserts
        self._copies: deque[Copied] = deque(maxlen=COPIES)

    def before(self, op: str, args: Any, frame: FrameType | None) -> None:
        """Look at the indices of a call that is about to run; raises IndexOutOfRangeError."""
        # backward uses the indices of forward
        if self._recorder.where.in_backward or not self._elsewhere(args[0]):
            return
        try:
            bad = self._check(op, args, frame)
        except Exception as error:
            self._recorder.failed(error)
            return
        if bad is not None:
            raise IndexOutOfRangeError(
                message(bad, self._recorder.recording.modules.items[self._recorder.where.module]),
                bad,
            )

    def _check(self, op: str, args: Any, frame: FrameType | None) -> BadIndices | None:
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return None
        for each in allowed(op, args):
            if each.indices.dtype not in _INTEGERS or not each.indices.numel():
                continue
            known = known_range(self._recorder.recording, self._recorder.source(each.indices))
            # between ignore_index and 0
            hidden = known is not None and known[0] == each.ignored and known[1] < each.high
            if known is None or hidden:
                self._copy(op, each, frame)
            elif each.broken_by(*known) and (bad := examine(op, each.indices, each)) is not None:
                return bad
        return None

    def _copy(self, op: str, each: Allowed, frame: FrameType | None) -> None:
        """Enqueue a copy to the host."""
        whole = each.indices.numel() <= COPY_LIMIT
        values = each.indices if whole else torch.stack(torch.aminmax(each.indices))
        host = torch.empty(
            values.shape, dtype=values.dtype, device="cpu", pin_memory=values.is_cuda
        )
        host.copy_(values, non_blocking=True)
        limits = Allowed(each.argument, host, each.low, each.high, each.ignored)
        shape = tuple(each.indices.shape)
        self._copies.append(
            Copied(
                op, limits, shape, self._recorder.where.module, self._recorder.lines.here(frame)[0]
            )
        )

    def row_of(self, tensor: Tensor) -> int:
        """The row (or source, negative) that describes what a tensor holds now."""
        return self._recorder.source(tensor)

    def place(self, number: int) -> tuple[str, int, str]:
        """(file as shown, line, real file) by its number."""
        return self._recorder.lines.places[number]

    def suspect(self) -> tuple[BadIndices, str, int] | None:
        """(indices, module, number of the line) of the first bad copy, for when a device failed."""
        for copied in self._copies:
            bad = examine(copied.op, copied.limits.indices, copied.limits)
            if bad is not None and bad.shape != copied.shape:
                bad = replace(bad, shape=copied.shape, places=((),) * len(bad.places))
            if bad is not None:
                return bad, self._recorder.recording.modules.items[copied.module], copied.line
        return None


def known_range(recording: Recording, position: int) -> tuple[float, float] | None:
    """(least, greatest) that a tensor can hold, as the host knows; None: only its device does."""
    for _ in range(_LONGEST_CHAIN):
        table, at = recording.table_of(recording.stat_of(position))
        if table is not None and not table.is_pending(at):
            stats = recording.stats(position)
            return None if stats is None or stats.min is None else (stats.min, stats.max)
        row = recording.op(position)
        parents = recording.parents(position)
        if row is None or not parents or row.name not in _NARROWS:
            return None
        position = parents[-1] if row.name == "copy_" else parents[0]
    return None


# What there is to know of an operator before it runs: what it writes, whether it makes a view.

# Writes all of its target without reading it, so what was there before is no operand.
_OVERWRITES = in_place(having("overwrites", lists=True))
# The same elements in another shape or order: the statistics are those of the base.
_SAME_ELEMENTS = having("same_elements")
_UNINITIALISED = having("uninitialised")
# Operators that tell nothing about numbers.
_SKIPPED_NAMESPACES = frozenset({"profiler", "prim", "prims"})
FUNCTIONAL = frozenset("_c10d_functional c10d_functional _c10d_functional_autograd".split())
# namespaces of the operators that exchange tensors with other processes
COLLECTIVES = FUNCTIONAL | {"c10d"}
_SCALES = having("scales", in_place=True)
_SKIPPED = having("skipped")
_FILLS = having("fills")
# Pure functions of one operand that destroy it when done in place; worth a copy of a small operand.
RISKY_IN_PLACE = in_place(having("lossy"))


# The Python numbers of such a call are noted: epsilons, bounds, factors, exponents.
_WITH_SCALARS = having("arithmetic", "clamps", in_place=True)
RISKY_IN_OPTIMIZER = in_place(having("lossy_in_optimizer"))


@dataclass(frozen=True, slots=True)
class Plan:
    """How to record the calls of one operator overload."""

    name: str  # aten name without overload
    skip: bool = False
    writes: tuple[int | str, ...] = ()  # arguments it mutates, by index or keyword
    fresh: bool = False  # it also returns tensors of its own
    hidden: tuple[int, ...] = ()  # arguments it mutates in secret
    overwrites: bool = False  # its target is no operand
    blind: bool = False  # ... which is its first argument, or the second of one that `fills`
    view: bool = False
    same_elements: bool = False
    copies: bool = False  # the result holds the same elements in memory of its own
    uninitialised: bool = False
    pointwise: bool = False
    inplace_risk: bool = False
    optimizer_risk: bool = False  # also inside an optimizer step
    plain: bool = False  # it writes nothing, so all there is to record is what it returns
    lifts: bool = False  # it brings in a literal
    special: str = ""  # "" or what the training recorder wants to see
    reads_out: bool = False  # it turns a tensor into a Python number
    scales: bool = False  # it multiplies or divides, perhaps by a Python number
    pads: bool = False  # the result holds the elements of the first operand, and zeros
    scalars: bool = False  # the Python numbers among its operands are noted
    marked: bool = False  # uninitialised, scales or scalars
    number: int = -1  # of the name, in the recording
    opaque: tuple[int, ...] = ()  # outputs that are no numbers
    draws: bool = False  # it draws random numbers
    namespace: str = "aten"
    fills: bool = False  # what it returns first is memory that it has written
    collective: bool = False  # it exchanges tensors with other processes; `skip` holds too
    # it takes indices that a device cannot refuse without an assertion that ends its context
    indexes: bool = False
    # what it reads takes more than a look at its arguments
    rare: bool = False
    # calls it; an overload only hands on to its ``_op`` (torch 2.6 to 2.13)
    run: Callable[..., Any] = lambda *args, **kwargs: None

    def keeps(self, args: Any, optimizes: bool) -> bool:
        """Whether what a call overwrites may be evidence, and is small enough for a copy."""
        target = args[0] if args else None
        return bool(
            self.inplace_risk
            and (self.optimizer_risk or not optimizes)
            and self.writes
            and not self.overwrites
            and isinstance(target, Tensor)
            and target.layout is torch.strided
            and target.numel() <= 4096
            and (target.is_floating_point() or target.is_complex())
        )


_SPECIAL = {
    "_amp_update_scale_": "scale",
    "_amp_foreach_non_finite_check_and_unscale_": "unscale",
}


def plan_for(func: Any, names: Names | None = None) -> Plan:
    """The plan of an operator overload, from its schema. Its name is entered in ``names``."""
    schema = getattr(func, "_schema", None)
    name = str(getattr(func, "_opname", None) or getattr(func, "__name__", func))
    namespace = getattr(func, "namespace", "")
    if schema is None:  # a higher-order operator
        return Plan(name, skip=True)
    writes: list[int | str] = []
    for i, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            writes.append(argument.name if argument.kwarg_only else i)
    known = card(name)
    out_only = bool(writes) and all(isinstance(w, str) for w in writes)
    view = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
    return Plan(
        name=name,
        skip=namespace in _SKIPPED_NAMESPACES or name in _SKIPPED or namespace in COLLECTIVES,
        writes=tuple(writes),
        fresh=bool(writes)
        and any(r.alias_info is None and "Tensor" in str(r.type) for r in schema.returns),
        hidden=known.hidden_writes,
        overwrites=name in _OVERWRITES or out_only,
        blind=(name in _OVERWRITES and 0 in writes) or name in _FILLS,
        view=view or name == "lift_fresh",
        same_elements=name in _SAME_ELEMENTS,
        copies=name == "clone",
        uninitialised=name in _UNINITIALISED,
        pointwise=torch.Tag.pointwise in getattr(func, "tags", ()),
        inplace_risk=name in RISKY_IN_PLACE,
        optimizer_risk=name in RISKY_IN_OPTIMIZER,
        fills=name in _FILLS,
        plain=not writes and not known.hidden_writes and name not in _FILLS,
        lifts=name == "lift_fresh",
        special=_SPECIAL.get(name, ""),
        reads_out=name == "_local_scalar_dense",
        scales=name in _SCALES,
        pads=name in ("select_backward", "slice_backward"),
        scalars=name in _WITH_SCALARS,
        marked=name in _UNINITIALISED or name in _SCALES or name in _WITH_SCALARS,
        number=-1 if names is None else names(name),
        opaque=known.opaque,
        draws=torch.Tag.nondeterministic_seeded in getattr(func, "tags", ()),
        namespace=namespace,
        collective=namespace in COLLECTIVES and name not in _SKIPPED,
        indexes=name in INDEXING,
        rare=name in _OVERWRITES
        or out_only
        or name in _FILLS
        or name in _UNINITIALISED
        or name in _REMARKABLE,
        run=_with_zeros(func._op) if func in _DEADLY else getattr(func, "_op", func),
    )


# Given a tensor of zeros that has no memory, as tangents are, these end the process where a
# dispatch mode is on: torch 2.13.
_DEADLY = {torch.ops.aten.mul.Scalar, torch.ops.aten.add.Scalar}


def _with_zeros(op: Callable[..., Any]) -> Callable[..., Any]:
    """The operator with allocated zeros in place of a tensor without memory."""

    def run(first: Tensor, *others: Any, **kwargs: Any) -> Any:
        if first._is_zerotensor():
            first = first.new_zeros(first.shape)
        return op(first, *others, **kwargs)

    return run


@cache
def plan_of(func: Any) -> Plan:
    """The plan of an overload, apart from any recording."""
    return plan_for(func)


# One call of an operation as it was observed, and what the autograd node behind it had saved.

SavedTensor = torch._C._autograd.SavedTensor
LEAF = 1 << 63  # AccumulateGrad nodes bear a sequence number above this


@dataclass(slots=True)
class SavedValues:
    """The values that an autograd node had saved, after it has freed its tensors."""

    label: str
    values: dict[str, Any]
    hidden: tuple[str, ...] = ()  # what it had saved behind a hook

    def name(self) -> str:
        return self.label


@dataclass(slots=True)
class Call:
    """A call with the tensors that it read and made; of distributed ones the local part."""

    func: Any
    plan: Plan
    position: int  # of its first row
    outputs: int  # rows
    targets: list[Tensor]  # what it made, then what it changed: a row each
    sources: list[int]
    args: Any
    kwargs: Any
    old: Tensor | None  # what the first operand held before it was overwritten
    flags: int
    node: Any  # the autograd node that ran, its SavedValues, or None
    lost: str = ""  # why targets, args, kwargs and old are not at hand; "": they are

    def __post_init__(self) -> None:
        # this is called for every operation on a device
        if "torch.distributed.tensor" not in sys.modules:
            return
        self.targets, self.old = local_parts(self.targets), local_parts(self.old)
        self.args, self.kwargs = local_parts(self.args), local_parts(self.kwargs)


def saved_names(node: Any) -> list[str]:
    """Attributes by which a node gives what it saved: ``_saved_*``, or ``saved_tensors``."""
    return [name for name in dir(node) if name.startswith("_saved_") or name == "saved_tensors"]


def saved_values(node: Any, names: list[str], copied: bool = False) -> dict[str, Any]:
    """Values that a node has saved, by name, uncopied; without those that must not or cannot be
    read.

    copied: include what ``save_on_cpu`` keeps, copied back to its device.
    """
    found: dict[str, Any] = {}
    for name in names:
        if _has_hook(node, name, copied):
            continue
        try:
            value = getattr(node, name)
        except Exception:
            continue
        if isinstance(value, Tensor):
            value = unwrapped(value)
            if not is_wrapper(value) and has_memory(value):
                found[name.removeprefix("_saved_")] = value
        elif isinstance(value, (int, float, bool, str, complex)) or value is None:
            found[name.removeprefix("_saved_")] = value
        elif isinstance(value, (tuple, list)) and not any(
            isinstance(v, Tensor) and is_wrapper(v) for v in value
        ):
            found[name.removeprefix("_saved_")] = tuple(value)
    return found


def told_and_hidden(
    names: list[str], values: dict[str, Any]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The saved values that were read, and the names of the others."""
    short = (name.removeprefix("_saved_") for name in names)
    return values, tuple(name for name in short if name not in values)


def _has_hook(node: Any, name: str, copied: bool) -> bool:
    """Whether reading a saved tensor would run somebody's hook, such as a checkpoint's, which may
    run only once.

    copied: not counting the hooks of ``save_on_cpu``, which copy. ``SavedTensor.unpack_hook`` was
    tried with torch 2.13; torch 2.6 and 2.9 have none and cannot say, so nothing is read there.
    """
    if not hasattr(SavedTensor, "unpack_hook"):
        return True
    try:
        raw = getattr(node, "_raw" + name if name.startswith("_") else "_raw_" + name, None)
    except RuntimeError:  # of a list of tensors, once the graph is freed
        return True
    hooks = [
        getattr(r, "unpack_hook", None) for r in (raw if isinstance(raw, (tuple, list)) else (raw,))
    ]
    return any(hook is not None and not (copied and _copies(hook)) for hook in hooks)


def _copies(hook: Any) -> bool:
    name = getattr(hook, "__qualname__", "")
    return getattr(hook, "__module__", "") == "torch.autograd.graph" and name.startswith(
        "save_on_cpu."
    )


def read_by_derivative(node: str, func: Any, args: Any) -> dict[str, Any]:
    """The saved tensors of a node that hides them, from the arguments that its formula reads."""
    first = args[0] if args and isinstance(args[0], Tensor) else None
    name = func.overloadpacket.__name__ if func is not None else ""
    if first is None or first.is_complex():
        return {}
    if node == "PowBackward0" and name == "pow":  # p x**(p - 1)
        return {"self": first}
    if node in ("AcosBackward0", "AsinBackward0") and name == "rsqrt":  # of 1 - x**2
        return {"self": (1 - first).sqrt()}
    if node == "AcoshBackward0" and name == "rsqrt":  # of x**2 - 1
        return {"self": (1 + first).sqrt()}
    return {}


def unwrapped(tensor: Tensor) -> Tensor:
    """The tensor inside of torch.func's wrappers, which has memory. As in torch 2.13."""
    functorch = torch._C._functorch
    if functorch.is_legacy_batchedtensor(tensor):  # of autograd's own vmap, which does not nest
        tensor = torch._remove_batch_dim(tensor, 1, 1, 0)
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


def local_parts(value: Any) -> Any:
    """The arguments with the local part in place of each distributed tensor."""
    if isinstance(value, Tensor):
        return local_part(value)
    if type(value) in (list, tuple):
        return type(value)(local_parts(v) for v in value)
    return {k: local_parts(v) for k, v in value.items()} if type(value) is dict else value


def argument(where: int | str, args: Any, kwargs: Any) -> Any:
    """An argument by index or keyword; None where it was not given."""
    if isinstance(where, str):
        return kwargs.get(where)
    return args[where] if where < len(args) else None


def tensors_of(args: Any) -> list[Tensor]:
    """The tensors among arguments, in their order."""
    found = []
    for value in args:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(v for v in value if isinstance(v, Tensor))
    return found
