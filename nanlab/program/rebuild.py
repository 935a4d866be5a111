"""The step run again above autograd, some calls replaced, or on fewer rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from nanlab.capture.ledger import tracked_by
from nanlab.errors import NotReplayable, UsageError
from nanlab.operators import having
from nanlab.program.rerun import (
    Get,
    Instead,
    Memory,
    Window,
    grouped,
    last_uses,
    make,
    operate,
    operate_call,
    seed,
    seed_first,
    surroundings,
    written_by,
)
from nanlab.trace.program import (
    Call,
    EngineRun,
    FunctionRun,
    FunctionUse,
    Held,
    HookUse,
    Look,
    Ref,
    Segment,
    refs_in,
)
from nanlab.trace.recording import NamedTensor

# The step without some rows of its batch: forward calls on fewer rows, sizes that the program
# wrote as numbers included.

Tensor = torch.Tensor
_VIEWS = having("sized")
_PARTS = having("divides_rows")
_INDEXED = having("indexed", in_place=True)
_ALONG = having("along", in_place=True)
_CREATED = having("created")
_COUNTS = (".shape", ".size(", "len(", ".numel(")  # how a line asks for the number of rows


@dataclass
class Batch:
    """A batch of which some rows are left out."""

    rows: int  # of the recorded batch
    kept: Tensor  # their numbers
    leaves: frozenset[int]  # storages of the data
    lines: dict[int, str] = field(default_factory=dict)  # position of a call -> its source
    # positions of the calls that make the batch of something else: X[i], a stack of samples
    makers: frozenset[int] = frozenset()
    # tensors of which the rows are left out from a call on, and the position of that call
    entering: tuple[Ref, ...] = ()
    start: int = 0
    _counters: set[int] = field(default_factory=set)  # storages that arange made
    _reached: set[int] = field(default_factory=set)  # storages that the batch has a part in
    # (storage, flattened size) -> whether the batch comes last in it
    _inner: dict[tuple[int, int], bool] = field(default_factory=dict)

    # -- leaves

    def leaf(self, ref: Ref, found: Tensor) -> Tensor:
        """A tensor that the step reads from outside, without the rows that are left out."""
        if ref.storage not in self.leaves:
            return found
        self._reached.add(ref.storage)
        if ref.size and ref.size[0] == self.rows:
            return found.index_select(0, self.kept)
        raise NotReplayable("a part of the batch is read that is not made of whole rows")

    def enter(self, graph: Graph) -> None:
        """Leave the rows out of what is known under names."""
        for ref in self.entering:
            graph.rebind(ref, graph.get(ref).index_select(0, self.kept))
            self._reached.add(ref.storage)

    def leaves_alone(self, storage: int) -> bool:
        """Whether a storage, of a batch known by names, has its rows."""
        return bool(self.start) and storage not in self._reached

    # -- a call

    def run(self, segment: Segment, index: int, call: Call, args: Any, kwargs: Any) -> Any:
        """The call on the rows that are left. Raises NotReplayable where that is unclear."""
        if call.position < self.start:
            return operate_call(call, args, kwargs)
        name = getattr(call.func, "_opname", "")
        before = call.read
        reached = any(r.storage in self._reached for r in before)
        if call.position in self.makers:
            made = operate(call.func, args, kwargs).index_select(0, self.kept)
        elif index in segment.states:
            made = self._drawn(segment, index, call, args, kwargs)
        elif not before:
            made = self._created(name, call, args, kwargs)
        elif reached or name in _CREATED:
            args = self._sizes(name, call, args)
            # fewer rows may lie otherwise in memory: a copy has the same elements
            func = torch.ops.aten.reshape.default if name == "view" else call.func
            made = operate(func, args[:2] if name == "view" else args, kwargs)
        else:
            made = operate(call.func, args, kwargs)
        outs = list(refs_in(call.out))
        made_of = zip(outs, _tensors(made), strict=False)
        if reached or any(ref.size != tuple(t.shape) for ref, t in made_of):
            self._reached |= {r.storage for r in outs}
        self._inherit(before, outs)
        if name == "arange":
            self._counters |= {r.storage for r in outs}
        return made

    def _inherit(self, before: Sequence[Ref], outs: Sequence[Ref]) -> None:
        """Flattened dimensions are what they were in the operands."""
        known = {
            size: self._inner[ref.storage, size]
            for ref in before
            for size in ref.size
            if (ref.storage, size) in self._inner
        }
        for ref in outs if known else ():
            for size in ref.size:
                if size in known:
                    self._inner.setdefault((ref.storage, size), known[size])

    def _created(self, name: str, call: Call, args: Any, kwargs: Any) -> Any:
        """What a call makes of numbers alone."""
        if name == "arange":
            numbers = [a for a in args if isinstance(a, int | float)]
            if (numbers[-1:] == [self.rows] and len(numbers) == 1) or numbers == [0, self.rows]:
                args = tuple(len(self.kept) if a == self.rows else a for a in args)
            return operate(call.func, args, kwargs)
        made = operate(call.func, args, kwargs)
        return self._narrowed(made, call.out)

    def _narrowed(self, made: Any, out: Any) -> Any:
        if not isinstance(made, Tensor) or out.__class__ is not Ref:
            return made
        places = [i for i, n in enumerate(out.size) if n == self.rows]
        if not places or (len(places) > 1 and places[0] != 0):
            return made
        if len(places) > 1 and len(out.size) == 2:
            raise NotReplayable(
                f"a tensor of shape {tuple(out.size)} is made, and which dimension is the batch is"
                " not clear"
            )
        return made.index_select(places[0], self.kept)

    def _drawn(self, segment: Segment, index: int, call: Call, args: Any, kwargs: Any) -> Any:
        """Random numbers: those of the recorded rows, without the rows that are left out."""
        if getattr(call.func, "_opname", "") == "randperm":
            raise NotReplayable("the step draws an order of the rows")
        inputs = [(i, r, args[i]) for i, r in enumerate(call.args) if r.__class__ is Ref]
        whole = list(args)
        for i, ref, actual in inputs:
            for dim in _changed(ref, actual):
                full = list(whole[i].shape)
                full[dim] = ref.size[dim]
                places = self._places(ref, dim)
                whole[i] = whole[i].new_zeros(full).index_copy(dim, places, whole[i])
        seed(segment, index)
        made = operate(call.func, tuple(whole), kwargs)
        if not inputs:
            return self._narrowed(made, call.out)
        dims = {d for _, ref, actual in inputs for d in _changed(ref, actual)}
        results = _tensors(made)
        for dim in dims:
            places = self._places(inputs[0][1], dim)
            results = [result.index_select(dim, places) for result in results]
        if call.func._schema.is_mutable:
            return args[0].copy_(results[0]) if dims else made
        return results[0] if isinstance(made, Tensor) else tuple(results)

    def _places(self, ref: Ref, dim: int) -> Tensor:
        """The places that are kept of a dimension."""
        size = ref.size[dim]
        times = size // self.rows
        if times == 1:
            return self.kept
        inner = self._inner.get((ref.storage, size))
        if size % self.rows or inner is None:
            raise NotReplayable(f"random numbers of {size} rows, whose samples are not known")
        every = torch.arange(times)
        if inner:
            return (every[:, None] * self.rows + self.kept).flatten()
        return (self.kept[:, None] * times + every).flatten()

    # -- numbers that the program wrote

    def _sizes(self, name: str, call: Call, args: Any) -> Any:
        """The arguments with sizes of the batch as they are now."""
        first = call.args[0] if call.args else None
        ref = first if first.__class__ is Ref else None
        actual = args[0] if args and isinstance(args[0], Tensor) else None
        dims = _changed(ref, actual) if ref is not None and actual is not None else []
        if name in _VIEWS and dims and ref is not None:
            return (args[0], self._viewed(ref, actual, call.out), *args[2:])
        if name == "expand":
            return (args[0], self._expanded(ref, actual, call.out.size), *args[2:])
        if name.startswith("new_") and len(args) > 1:
            places = [i for i, n in enumerate(args[1]) if n == self.rows]
            if len(places) > 1:
                raise NotReplayable("a tensor is made of which two dimensions may be the batch")
            return (args[0], [len(self.kept) if n == self.rows else n for n in args[1]], *args[2:])
        if not dims:
            return self._counted(name, call, args)
        dim = _dimension(call, args, len(ref.size) if ref is not None else 1)
        if name == "slice" and dim in dims and not _is_whole(args, self.rows):
            raise NotReplayable(f"{self._line(call)} takes a part of the rows")
        if name == "select" and dim in dims:
            return (args[0], args[1], self._row(args[2]), *args[3:])
        if name in _PARTS and (dim in dims or name in ("as_strided", "flip")):
            raise NotReplayable(f"{self._line(call)} takes a part of the rows, or reorders them")
        if name in _ALONG and dim in dims:
            raise NotReplayable(f"{self._line(call)} goes along the rows of the batch")
        if name in _INDEXED:
            self._check_index(call, dims)
        if name == "native_group_norm" and len(args) > 3 and args[3] == self.rows:
            return (*args[:3], len(self.kept), *args[4:])
        return args

    def _viewed(self, ref: Ref, actual: Any, out: Ref) -> list[int]:
        """The size of a view whose recorded one is that of ``out``."""
        old, new = ref.size, out.size
        found, i, j = list(new), 0, 0
        while i < len(old) and j < len(new):
            begin, start, have, want = i, j, old[i], new[j]
            while have != want:
                if have < want:
                    i += 1
                    have *= old[i]
                else:
                    j += 1
                    want *= new[j]
            i, j = i + 1, j + 1
            changed = [k for k in range(begin, i) if actual.shape[k] != old[k]]
            if changed:
                self._regroup(ref, out, (begin, i), (start, j), changed, found)
        return found

    def _regroup(
        self,
        ref: Ref,
        out: Ref,
        source: tuple[int, int],
        target: tuple[int, int],
        changed: list[int],
        found: list[int],
    ) -> None:
        """The sizes of one group of dimensions, which hold the same elements before and after."""
        old, new = ref.size, out.size
        many = [k for k in range(*target) if new[k] % self.rows == 0 and new[k]]
        if len(changed) > 1 or not many:
            raise NotReplayable("a view mixes the rows of the batch")
        at = changed[0]
        inner = self._inner.get((ref.storage, old[at]), False)
        if source[1] - source[0] > 1 and old[at] == self.rows:
            ahead, behind = math.prod(old[source[0] : at]), math.prod(old[at + 1 : source[1]])
            if ahead > 1 and behind > 1:
                raise NotReplayable("a view has the batch between other dimensions")
            inner = ahead > 1
        if len(many) == 1:
            place = many[0]
        else:
            place = many[-1] if inner else many[0]
        found[place] = new[place] // self.rows * len(self.kept)
        if new[place] != self.rows:
            self._inner[out.storage, new[place]] = inner

    def _expanded(self, ref: Any, actual: Any, new: Sequence[int]) -> list[int]:
        old, now = ref.size, actual.shape
        lead = len(new) - len(old)
        found = [
            now[i - lead] if i >= lead and old[i - lead] == n else n for i, n in enumerate(new)
        ]
        fresh = [
            i for i, n in enumerate(new) if n == self.rows and (i < lead or old[i - lead] != n)
        ]
        if len(fresh) > 1:
            raise NotReplayable("a tensor is expanded in two dimensions that may be the batch")
        for i in fresh:
            found[i] = len(self.kept)
        return found

    def _row(self, number: int) -> int:
        number %= self.rows
        found = (self.kept == number).nonzero().flatten().tolist()
        if not found:
            raise NotReplayable(f"the program takes row {number} by its number")
        return int(found[0])

    def _check_index(self, call: Call, dims: list[int]) -> None:
        """An index along the rows is one that counts them, or a mask."""
        for dim, index in enumerate(call.args[1]):
            if dim not in dims or index.__class__ is not Ref or index.dtype is torch.bool:
                continue
            if index.storage not in self._counters:
                raise NotReplayable(f"{self._line(call)} picks rows of the batch by their numbers")

    def _counted(self, name: str, call: Call, args: Any) -> Any:
        """A sum over the batch divided by a number that may be the count of its rows."""
        if name.rstrip("_") not in ("div", "mul") or len(args) < 2:
            return args
        number = args[1]
        if isinstance(number, bool) or not isinstance(number, int | float) or number <= 0:
            return args
        count = number if name.rstrip("_") == "div" else 1 / number
        if round(count) < 2 or abs(count - round(count)) > 1e-9 * count or round(count) % self.rows:
            return args
        line = self.lines.get(call.position, "")
        if not any(each in line for each in _COUNTS):
            raise NotReplayable(
                f"{self._line(call)} divides by {round(count)}, which may be the count of the rows"
            )
        new = count / self.rows * len(self.kept)
        return (args[0], new if name.rstrip("_") == "div" else 1 / new, *args[2:])

    def _line(self, call: Call) -> str:
        return f"`{self.lines.get(call.position, '') or getattr(call.func, '_opname', '')}`"


def _tensors(made: Any) -> list[Tensor]:
    if isinstance(made, Tensor):
        return [made]
    return [t for t in made if isinstance(t, Tensor)] if isinstance(made, tuple | list) else []


def _changed(ref: Ref, actual: Tensor) -> list[int]:
    """Dimensions that have another size now."""
    if len(ref.size) != actual.dim():
        return []
    return [i for i, (a, b) in enumerate(zip(ref.size, actual.shape, strict=True)) if a != b]


def _dimension(call: Call, args: Any, count: int) -> int:
    """The dimension that a call goes along, 0 by default."""
    for i, argument in enumerate(call.func._schema.arguments):
        if argument.name == "dim":
            number = args[i] if i < len(args) else call.kwargs.get("dim", 0)
            return number % max(count, 1) if isinstance(number, int) else 0
    return 0


def _is_whole(args: Any, rows: int) -> bool:
    start, end, by = (*args[2:], *(None, None, None))[:3]
    return not start and (end is None or end >= rows) and by in (None, 1)


def batch_of(where: Window, without: Sequence[int]) -> Batch:
    """A step's batch without these rows. Raises NotReplayable (none), UsageError (not its)."""
    runs = [r for s in where.segments for r in s.engine if r.accumulates and not r.nested]
    if len(runs) > 1:
        raise NotReplayable(f"{len(runs)} backward passes ran in it: which batch is meant?")
    names = where.recording.program.names
    sizes: Counter[int] = Counter()
    data: dict[int, int] = {}
    for segment in where.segments:
        state = {
            ref.storage
            for run in segment.optimizers
            for g in run.groups
            for ref in refs_in((g.parameters, g.gradients, *(tuple(s.values()) for s in g.state)))
        }
        end = min((r.first for r in segment.engine), default=len(segment.calls))
        for call in segment.calls[:end]:
            for ref in call.read:
                fits = ref.storage in segment.leaves and ref.storage not in names
                if fits and not ref.tracked and ref.size and ref.storage not in state:
                    if ref.storage not in data:
                        sizes[ref.size[0]] += 1
                        data[ref.storage] = ref.size[0]
            if not data and segment.states and call.out.__class__ is Ref and call.out.size:
                if not any(refs_in(call.args)):
                    sizes[call.out.size[0]] += 1  # drawn by the step itself
    if not sizes:
        raise NotReplayable("it reads no data that has rows")
    rows = sizes.most_common(1)[0][0]
    makers = frozenset[int]()
    entering = _rows_entering(where, names)
    if entering and rows not in entering and not entering.keys() & {*data.values()}:
        rows = next(iter(entering))
        makers = _makers(where, names, rows)
    wrong = [r for r in without if not -rows <= r < rows]
    if wrong:
        raise UsageError(f"the batch has rows 0 to {rows - 1}; row {wrong[0]} is not among them")
    left = {r % rows for r in without}
    kept = torch.tensor([r for r in range(rows) if r not in left], dtype=torch.long)
    if not len(kept):
        raise UsageError(f"all {rows} rows of the batch are left out; leave at least one")
    calls = (call for segment in where.segments for call in segment.calls)
    lines = {call.position: where.recording.at(call.position).source for call in calls}
    leaves = frozenset(n for n, size in data.items() if size == rows)
    return Batch(rows, kept, leaves, lines, makers)


@dataclass(frozen=True)
class LeftOut:
    """Rows that some tensors lose where a step first reads one of them, all being written."""

    rows: int  # of the recorded tensors
    without: tuple[int, ...]  # the numbers of those that they lose
    tensors: tuple[NamedTensor, ...]


def refs_by_name(where: Window, named: Iterable[NamedTensor]) -> dict[str, Ref]:
    """The tensors of these names, as far as the step's calls read them, and autograd does not
    follow them."""
    calls = (call for segment in where.segments for call in segment.calls)
    read = {tuple(ref[:4]): ref for call in calls for ref in call.read if not ref.tracked}
    keys = {n.name: (n.storage, n.offset, n.size, n.stride) for n in named}
    return {name: read[key] for name, key in keys.items() if key in read}


def batch_without(where: Window, out: LeftOut) -> Batch:
    """The batch without these rows. Raises NotReplayable."""
    refs = tuple(refs_by_name(where, out.tensors).values())
    first = next((call for _, _, call in readers_of(where, refs)), None)
    if first is None or len(refs) < len(out.tensors):
        raise NotReplayable("nothing reads these rows, or autograd follows them")
    if any(ref.size[:1] != (out.rows,) for ref in refs):
        raise NotReplayable("the tensors have other numbers of rows")
    kept = torch.tensor([r for r in range(out.rows) if r not in {*out.without}], dtype=torch.long)
    calls = (call for segment in where.segments for call in segment.calls)
    lines = {call.position: where.recording.at(call.position).source for call in calls}
    start = max(first.position, 1)
    return Batch(out.rows, kept, frozenset(), lines, entering=refs, start=start)


def readers_of(where: Window, refs: Sequence[Ref]) -> Iterator[tuple[int, int, Call]]:
    """(segment, index, call) of what reads one of these tensors once all are written."""
    views, storages = {ref.view for ref in refs}, {ref.storage for ref in refs}
    every = [
        (at, index, call)
        for at, segment in enumerate(where.segments)
        for index, call in enumerate(segment.calls)
    ]

    def writes(call: Call) -> bool:
        made = {ref.storage for ref in refs_in(call.out)} - {ref.storage for ref in call.read}
        return not storages.isdisjoint(made.union(written_by(call)))

    written = [n for n, (_, _, call) in enumerate(every) if writes(call)]
    for each in every[written[-1] + 1 if written else 0 :]:
        if any(ref.view in views for ref in each[2].read):
            yield each


def data_of(where: Window) -> set[int]:
    """The storages of a step that no parameter has a part in."""
    found: set[int] = set()
    for call, data in _data_calls(where, where.recording.program.names):
        found |= {r.storage for r in (*call.read, *refs_in(call.out)) if r.storage in data}
        found -= {r.storage for r in refs_in(call.out) if r.storage not in data}
    return found


def _rows_entering(where: Window, parameters: Container[int]) -> dict[int, None]:
    """The leading sizes of the data that calls compute with beside parameters, in their order."""
    found: dict[int, None] = {}
    for call, data in _data_calls(where, parameters):
        if call.out.__class__ is not Ref or call.out.storage not in data:
            met = [ref for ref in call.read if ref.storage in data and ref.size]
            if len(met) < len(call.read):
                found.update(dict.fromkeys(ref.size[0] for ref in met))
    return found


def _makers(where: Window, parameters: Container[int], rows: int) -> frozenset[int]:
    """The positions of the calls on data whose results have that many rows, and operands none."""
    return frozenset(
        call.position
        for call, data in _data_calls(where, parameters)
        if call.out.__class__ is Ref and call.out.storage in data and call.out.size[:1] == (rows,)
        if call.read and not any(ref.size[:1] == (rows,) for ref in call.read)
    )


def _data_calls(where: Window, parameters: Container[int]) -> Iterator[tuple[Call, Container[int]]]:
    """The calls of the forward pass, and the storages that no parameter has a part in up to there,
    those of the call among them."""
    data: set[int] = set()
    for segment in where.segments:
        end = min((run.first for run in segment.engine), default=len(segment.calls))
        for call in segment.calls[:end]:
            data |= {r.storage for r in call.read if r.storage in segment.leaves and not r.tracked}
            data -= {r.storage for r in call.read if r.storage in parameters}
            if all(ref.storage in data for ref in call.read):
                data |= {ref.storage for ref in refs_in(call.out)}
            else:
                data -= {ref.storage for ref in refs_in(call.out)}
            yield call, data


# The step run again above autograd, with some of its calls replaced: what the program would
# compute if it were written so.
#
# The forward calls are made with gradients, each run of the engine is a run of the engine, the
# optimizer's calls follow as they were. So the graph, the order of its nodes and the sums of
# gradients are those of the program written anew.

Leaf = Callable[[Ref, Any], Any]  # what stands for a tensor that the step reads from outside
AboutToCall = Callable[[int, int, Call, "Graph"], None]
Around = Callable[[EngineRun, "Graph"], AbstractContextManager[None]]


@dataclass(frozen=True)
class Patch:
    """New code for some calls of a segment, whose result takes the place of theirs."""

    segment: int
    at: int  # index of the call whose result it replaces
    skipped: frozenset[int]  # indices of the calls that are not made, ``at`` among them
    out: Any  # what it replaces: a Ref, or a tuple of them
    run: Callable[[Get], Any]  # from the values of references to the new result
    ahead: bool = False  # before the call at ``at``, not in its place or after it
    follows: bool = False  # it converts what an edit elsewhere changes; None: nothing to convert
    runs: frozenset[int] = frozenset()  # first calls of the engine's runs that are not made


@dataclass
class Rebuilt:
    """What the step computes: roots of engine runs, gradients, tensors at hand."""

    losses: list[Any] = field(default_factory=list)
    gradients: dict[Ref, Any] = field(default_factory=dict)  # leaf -> gradient after its last run
    looked: list[tuple[Look, Any]] = field(default_factory=list)
    ended: bool = False  # before its end


@dataclass(frozen=True, slots=True)
class _Base:
    """The tensor that a storage was made for, and its layout then: ``transpose_`` changes that."""

    ref: Ref
    tensor: Any
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, ref: Ref, made: Tensor) -> _Base:
        return cls(ref, made, made.stride(), int(made.storage_offset()))

    def as_made(self) -> Tensor:
        """The tensor in its layout when it was made."""
        made: Tensor = self.tensor.detach().as_strided(self.ref.size, self.stride, self.offset)
        return made


class Graph:
    """Tensors by the reference under which the recorded program knew them."""

    def __init__(self, leaf: Leaf | None = None) -> None:
        self.memory, self.leaf = Memory(), leaf
        # view -> [the one that autograd does not follow, the one it does, the leaf of its graph,
        # the one that it followed before]
        self.live: dict[Any, list[Any]] = {}
        self.marked: dict[int, Any] = {}  # results that show the memory of others
        # Several results may show one view, as x[0] written twice does: each is read in the order
        # in which it was made.
        self._unread: dict[Any, list[Any]] = {}
        # view -> the leaf of a graph that another may stand for while a custom Function goes back
        self._covered: dict[Any, Any] | None = None
        self.bases: dict[int, _Base] = {}  # by storage
        self.fresh: set[int] = set()  # storages made in this run
        self.edited: set[int] = set()  # storages of what edits made
        self.shared: set[int] = set()  # storages of leaves that other graphs read too
        self._lent: set[int] = set()  # addresses of their memory
        self._views: dict[int, list[Any]] = {}  # storage -> the views of it that are live

    def branch(self) -> Graph:
        """Another graph that goes on from here, with the same tensors."""
        made = Graph(self.leaf)
        made.memory.storages = dict(self.memory.storages)
        made.live = {view: slot[:] for view, slot in self.live.items()}
        made.marked, made.bases = dict(self.marked), dict(self.bases)
        made._unread = {view: found[:] for view, found in self._unread.items()}
        made._views = {number: views[:] for number, views in self._views.items()}
        made.fresh, made.shared = set(self.fresh), set(self.memory.storages)
        made._lent = self._lent | {s.data_ptr() for s in self.memory.storages.values()}
        made.edited = set(self.edited)
        return made

    def own(self, storages: Iterable[int]) -> None:
        """Copy what is about to be written and others read."""
        for number in self.shared.intersection(storages):
            self.shared.discard(number)
            lent = self.memory.storages[number].data_ptr()
            with _disable_current_modes():
                self.memory.storages[number] = self.memory.storages[number].clone()
            for view in self._views.pop(number, ()):
                slot, unread = self.live.pop(view, None), self._unread.pop(view, None)
                if number not in self.edited or slot is None:
                    continue  # it is taken of the copy where it is read next
                shown = next(found for found in slot if found is not None)
                if shown.untyped_storage().data_ptr() == lent:
                    ref = Ref((*view[:5], 0, view[5]))
                    with _disable_current_modes():
                        self.bind(ref, self.memory.tensor(ref))
                    continue
                self.live[view] = slot  # what an edit gave for a part
                self._views.setdefault(number, []).append(view)
                if unread is not None:
                    self._unread[view] = unread

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor that a reference stands for."""
        return (found for slot in self.live.values() for found in slot if found is not None)

    def load(self, segment: Segment, borrow: bool = False) -> None:
        """Leaves, as copies, or to be copied before they are written."""
        for number, storage in segment.leaves.items():
            if number not in self.memory.storages and number not in self.fresh:
                held = segment.saved.get(number, storage)
                self.memory.storages[number] = held if borrow else held.clone()
                if borrow:
                    self.shared.add(number)
                    self._lent.add(held.data_ptr())
        for number, (nbytes, device) in segment.blank.items():
            if number not in self.memory.storages and number not in self.fresh:
                self.memory.storages[number] = torch.empty(
                    nbytes, dtype=torch.uint8, device=device
                ).untyped_storage()

    def get(self, ref: Any) -> Any:
        """The tensor of a reference."""
        kind = ref.__class__
        if kind is not Ref:
            if kind is tuple or kind is list:
                return kind([self.get(item) for item in ref])
            return self.memory.held(ref) if kind is Held else ref
        if ref.tracked is not None and ref.tracked > 2 and ref.tracked in self.marked:
            return self.marked[ref.tracked]
        slot = self.live.get(ref.view)
        if slot is None:
            return self._unseen(ref)
        if ref.tracked is None:
            return next(found for found in (slot[1], slot[2], slot[0]) if found is not None)
        tracked = min(ref.tracked, 1) if ref.tracked != 2 else 2
        unread = self._unread.get(ref.view)
        if tracked == 1 and unread:
            return unread.pop(0)
        found = slot[tracked]
        if found is None or found.requires_grad != bool(tracked):
            found = self._other(ref, slot)
        return found

    def holds(self, value: Any) -> bool:
        """Whether what a reference stands for was made, or loaded."""
        made = self.fresh | self.memory.storages.keys()
        return all(ref.storage in made for ref in refs_in(value))

    def latest(self, ref: Any) -> Any:
        """The tensor of a reference as made last; marked ones stand for it from now on."""
        slot = self.live.get(ref.view) if ref.__class__ is Ref else None
        if slot is None or slot[1] is None or ref.tracked in (0, 2, *self.marked):
            return self.get(ref)
        found = slot[1]
        if ref.tracked > 2:
            self.marked[ref.tracked] = found
            waiting = self._unread.get(ref.view, [])
            waiting[:] = [each for each in waiting if each is not found]
            slot[1] = found if slot[3] is None else slot[3]
        return found

    def _other(self, ref: Ref, slot: list[Any]) -> Any:
        """The twin of a tensor that is known with the other tracking only."""
        if ref.tracked == 2 and slot[0] is not None and not slot[0].requires_grad:
            slot[2] = slot[0].detach().requires_grad_()  # x.detach().requires_grad_()
            return slot[2]
        for found in slot:
            if found is not None and found.requires_grad == bool(ref.tracked):
                slot[tracked_by(found)] = found  # written in place, autograd follows it since
                return found
        found = next(t for t in slot if t is not None)
        if not ref.tracked:
            return found.detach()
        if found.dtype.is_floating_point or found.dtype.is_complex:
            if ref.tracked == 2 or (found.is_leaf and ref.storage not in self.fresh):
                slot[2] = found.detach().requires_grad_()
                return slot[2]
        if self.edited:  # an edit that detaches
            return found
        raise NotReplayable(
            "autograd follows a tensor whose making it did not see, as in a Function written in C++"
        )

    def _unseen(self, ref: Ref) -> Any:
        """A view that no call returned: of a leaf's storage, or of what a call made."""
        if ref.storage in self.bases:
            base = self.bases[ref.storage].tensor
            if base.requires_grad and not ref.tracked:
                base = base.detach()
            if base.dtype != ref.dtype:
                raise NotReplayable(
                    "a tensor was viewed as another dtype where nanlab did not see it"
                )
            found = base.as_strided(ref.size, ref[3], ref[1])
        else:
            with _disable_current_modes():
                found = self.memory.tensor(ref)
                if self.leaf is not None:
                    found = self.leaf(ref, found)
                if ref.tracked == 2:
                    found = found.detach().requires_grad_()
        if ref.tracked and not found.requires_grad:
            if ref.storage in self.fresh and ref.tracked != 2:
                raise NotReplayable(
                    "autograd follows a tensor whose making it did not see, as in a Function"
                    " written in C++"
                )
            found = found.detach().requires_grad_()
        self.bind(ref, found)
        return found

    def rebind(self, ref: Ref, made: Any) -> None:
        """From here on a reference stands for this tensor alone."""
        self.live.pop(ref.view, None)
        self._unread.pop(ref.view, None)
        self.bind(ref, made)

    def release(self, storages: Sequence[int]) -> None:
        """Forget tensors that nothing reads again."""
        self.memory.release(storages)
        for number in storages:
            self.bases.pop(number, None)
            for view in self._views.pop(number, ()):
                self.live.pop(view, None)
                self._unread.pop(view, None)

    @contextmanager
    def covering(self) -> Iterator[None]:
        """What is detached in here may become a leaf of its own, as in a reentrant checkpoint."""
        outer, self._covered = self._covered, {}
        try:
            yield
        finally:
            for view, leaf in self._covered.items():
                if view in self.live:
                    self.live[view][2] = leaf
            self._covered = outer

    def replace(self, ref: Ref, made: Any) -> None:
        """From here on a reference stands for this tensor alone, and its storage for its memory.

        Memory that others read is not handed on: later calls may write into it.
        """
        number, address = ref.storage, _address(made)
        held = self.memory.storages.get(number)
        if held is not None and held.data_ptr() == address:  # as it was, after another value
            self.rebind(ref, made)
            self.bases.pop(number, None)
            self.edited.discard(number)
            if address in self._lent:
                self.shared.add(number)
            return
        made = made.clone() if address in self._lent else made
        self.rebind(ref, made)
        self.fresh.add(number)
        self.edited.add(number)
        self.bases[number] = _Base.of(ref, made)

    def bind(self, ref: Any, made: Any) -> None:
        """From here on a reference stands for this tensor."""
        kind = ref.__class__
        if kind is Ref and isinstance(made, Tensor):
            slot = self.live.get(ref.view)
            if slot is None:
                slot = self.live[ref.view] = [None, None, None, None]
                self._views.setdefault(ref.storage, []).append(ref.view)
            if tracked_by(made) == 1 and slot[1] is not made:
                slot[3] = slot[1]
            slot[tracked_by(made)] = made
            if self._covered is not None and not made.requires_grad and slot[2] is not None:
                self._covered.setdefault(ref.view, slot[2])
                slot[2] = None
            if tracked_by(made) == 1:
                waiting = self._unread.setdefault(ref.view, [])
                if not any(made is each for each in waiting):
                    waiting.append(made)
            if ref.storage not in self.memory.storages:
                self.fresh.add(ref.storage)
                if ref.storage not in self.bases:
                    self.bases[ref.storage] = _Base.of(ref, made)
        elif kind is Held:
            self.memory.place(ref, made)
        elif kind is tuple and isinstance(made, (tuple, list)):
            for part, item in zip(ref, made, strict=False):
                self.bind(part, item)


def _address(t: Tensor) -> int:
    """Of a tensor's memory; -1 of numbers that are kept elsewhere, as exact ones."""
    try:
        return t.untyped_storage().data_ptr()
    except RuntimeError:
        return -1


def rebuild(
    segments: Sequence[Segment],
    patches: Sequence[Patch] = (),
    about_to_call: AboutToCall | None = None,
    instead: Mapping[tuple[int, int], Instead] | None = None,
    rows: Batch | None = None,
    around: Around | None = None,
    beginning: Beginning | None = None,
) -> tuple[Graph, Rebuilt]:
    """Run these segments again with these patches.

    about_to_call: called with (number of the segment, index, call, graph) before each call and each
    run of the engine; the dispatch modes that are on stay on. instead: (segment, index) -> what is
    run from there on in the place of calls. rows: of the batch, of which some are left out.
    around: a context for each run of the engine that is in no other; Ended in it ends the step.
    beginning: what was made of the step already, and no patch changes.

    Raises NotReplayable where the program did what a graph of its calls cannot repeat (hooks that
    change gradients, Functions written in C++, views that nanlab did not see), or where a call of
    the changed step raises.
    """
    building = _Building(patches, about_to_call, instead, rows, around)
    building.done = _done_after_backward(segments, patches)
    begun = 0
    if beginning is not None:
        building.go_on_from(beginning.building)
        begun = beginning.index
    unobserved = _disable_current_modes() if about_to_call is None else nullcontext()
    with surroundings(segments), unobserved, torch.enable_grad():
        try:
            for number, segment in enumerate(segments):
                building.segment(number, segment, 0 if number else begun)
        except Ended:
            building.result.ended = True
    return building.graph, building.result


class Ended(Exception):
    """No more of the step is needed."""


@dataclass
class Beginning:
    """The first calls of a step, made once for all that changes later ones."""

    segments: Sequence[Segment]
    index: int  # of the first call that is not made, in the first segment
    building: _Building
    _versions: list[tuple[Tensor, int]] = field(default_factory=list)

    @classmethod
    def up_to(
        cls, segments: Sequence[Segment], index: int, earlier: Beginning | None = None
    ) -> Beginning | None:
        """What comes before a call, or less; None where nothing can be shared.

        earlier: a beginning that is shorter, from which to go on.
        """
        index = _parting(segments, index)
        if earlier is not None and index <= earlier.index:
            return earlier
        if not index:
            return None
        building = _Building()
        if earlier is not None:
            building.go_on_from(earlier.building)
        with surroundings(segments), _disable_current_modes(), torch.enable_grad():
            building.segment(0, segments[0], earlier.index if earlier is not None else 0, index)
        if building.graph.memory.holds_others():
            return None
        made = cls(segments, index, building)
        made._versions = [(t, t._version) for t in building.graph.tensors()]
        return made

    @property
    def is_intact(self) -> bool:
        """Whether nobody has written what it made."""
        return all(tensor._version == version for tensor, version in self._versions)

    @property
    def nbytes(self) -> int:
        """Bytes of what it made."""
        bases = self.building.graph.bases.values()
        return sum(base.tensor.untyped_storage().nbytes() for base in bases)

    def reaches(self, call: tuple[int, int]) -> int | None:
        """From where on a run below autograd can begin that makes a call; None: from the start."""
        begin = self.index if call[0] else min(call[1], self.index)
        between = range(begin, self.index)
        free = not any(True for i in between for _ in _written_at(self.segments[0], i))
        return begin if free else None

    def memory(self, later: Iterable[Call]) -> Memory:
        """Its storages, for a run of these calls below autograd."""
        graph, found = self.building.graph, Memory()
        found.storages = dict(graph.memory.storages)
        for base in graph.bases.values():
            found.place(base.ref, base.as_made())
        for number in {number for call in later for number in written_by(call)}:
            if number in found.storages:
                found.storages[number] = found.storages[number].clone()
        return found


def _parting(segments: Sequence[Segment], index: int) -> int:
    """The last place up to a call where runs of a step may part: what was made before is not
    written after it, nor is a leaf that autograd follows while the engine still has to run."""
    first, end = segments[0], (-1, 0)
    for at, segment in enumerate(segments):
        for run in segment.engine:
            end = max(end, (at, run.last))
            if not at and not run.nested:
                index = min(index, run.first)
    for update in first.optimizers:
        index = min(index, update.first)
    if first.lost is not None:
        index = min(index, first.lost[0])
    made: dict[int, int] = {}  # storage -> call that made it
    followed: dict[int, int] = {}  # leaf -> call that first read it with gradients
    spans: list[tuple[int, int]] = []  # (made, written): not to be parted
    for at, segment in enumerate(segments):
        for i, call in enumerate(segment.calls):
            if not at and i < index:
                for ref in call.read:
                    if ref.tracked and ref.storage in first.leaves:
                        followed.setdefault(ref.storage, i)
            for number in _written_at(segment, i):
                if number in made:
                    spans.append((made[number], i if not at else index))
                elif number in followed and (at, i) < end:
                    spans.append((followed[number], i if not at else index))
            if not at and i < index:
                for ref in refs_in(call.out):
                    if ref.storage not in first.leaves and ref.storage not in first.blank:
                        made.setdefault(ref.storage, i)
    for begin, write in sorted(spans, reverse=True):
        if begin < index <= write:
            index = begin
    return index


def _done_after_backward(
    segments: Sequence[Segment], patches: Sequence[Patch]
) -> dict[tuple[int, int], list[int]]:
    """Where all runs of the engine and all edits are over: storages after their last use.

    An optimizer makes several times what it updates.
    """
    ends = [(at, run.last) for at, s in enumerate(segments) for run in s.engine]
    ends += [(patch.segment, patch.at + 1) for patch in patches]
    if not ends:
        return {}
    return {at: numbers for at, numbers in last_uses(segments).items() if at >= max(ends)}


def is_skipped(use: FunctionUse, skipped: Collection[int], written: Collection[int]) -> bool:
    """Whether no call of a Function's forward is made, nor any written anew: new code calls it."""
    calls = range(use.first, use.last)
    return bool(calls) and all(i in skipped and i not in written for i in calls)


class Functions:
    """A replayed step's Functions: forward calls give values, backward calls gradients."""

    def __init__(
        self, graph: Graph, go_on: Callable[[int, int, Sequence[EngineRun]], None]
    ) -> None:
        self.graph, self.go_on = graph, go_on
        self.running: list[EngineRun] = []  # inside of each other
        self._segment = Segment(0)
        self._begun: dict[int, list[FunctionUse]] = {}  # index -> those that begin there
        self._ended: dict[int, list[FunctionUse]] = {}
        self._inputs: dict[int, list[Any]] = {}  # id of a use -> its arguments
        self._hooks: dict[int, list[HookUse]] = {}  # index -> those that are registered there
        self._over: set[int] = set()  # ids of runs of backwards
        self.skipped: Collection[int] = ()  # indices of the calls that are not made
        self.written: Collection[int] = ()  # of those that patches take the place of

    def state(self) -> tuple[Any, ...]:
        """Where they stand."""
        lists = (self._begun, self._ended, self._hooks)
        copies = [{index: uses[:] for index, uses in each.items()} for each in lists]
        return self._segment, *copies, dict(self._inputs), set(self._over)

    def restore(self, state: tuple[Any, ...]) -> None:
        """Stand where they stood."""
        self._segment, *lists, inputs, over = state
        self._begun, self._ended, self._hooks = (
            {index: uses[:] for index, uses in each.items()} for each in lists
        )
        self._inputs, self._over, self.running = dict(inputs), set(over), []

    def enter(self, segment: Segment) -> None:
        """Begin a segment."""
        self._segment = segment
        self._begun = grouped(segment.functions, lambda use: use.first)
        self._ended = grouped(segment.functions, lambda use: use.last)
        self._hooks = grouped(segment.hooks, lambda hook: hook.index)

    def reached(self, index: int, first: int) -> None:
        """Calls from ``first`` to ``index`` ran: apply Functions they end, keep what is taken."""
        ended = self._ended.get(index)
        if ended:
            for use in [each for each in ended if each.first >= first]:
                ended.remove(use)
                if not is_skipped(use, self.skipped, self.written):
                    self.apply(use)
        for use in self._begun.pop(index, ()):
            if use.last > index and not is_skipped(use, self.skipped, self.written):
                self._begin(use)
        for hook in self._hooks.pop(index, ()):
            self._register(hook)

    def _register(self, use: HookUse) -> None:
        tensor = self.graph.latest(use.tensor)
        if use.late and tensor.is_leaf:
            tensor.register_post_accumulate_grad_hook(partial(self._added, use))
        elif tensor.requires_grad and not use.late:
            tensor.register_hook(partial(self._hooked, use))

    def _hooked(self, use: HookUse, gradient: Any) -> Any:
        run = self._run_of_hook(use, gradient)
        return None if run is None else self.graph.get(run.left[0])

    def _added(self, use: HookUse, leaf: Any) -> None:
        run = self._run_of_hook(use, leaf.grad)
        if run is not None:
            leaf.grad = self.graph.get(run.left[0])

    def _run_of_hook(self, use: HookUse, gradient: Any) -> FunctionRun | None:
        """The run of a hook, its calls made for this gradient; None of an earlier leaf's."""
        outer = self.running[-1] if self.running else None
        run = backward_of(self._segment, use, outer, self._over)
        if run is not None:
            self._make(run, run.arrived, (gradient,), "a hook")
        elif use.tensor.tracked != 2 or outer is None or use.index == outer.first:
            raise NotReplayable("a hook is called where it was not")
        return run

    def _begin(self, use: FunctionUse) -> None:
        if id(use) not in self._inputs:
            self._inputs[id(use)] = [*map(self.graph.get, use.inputs)]

    def apply(self, use: FunctionUse) -> None:
        """The calls of its forward were made: tie their values to its inputs."""
        self._begin(use)
        graph, inputs = self.graph, self._inputs.pop(id(use))
        if any(ref.__class__ is not Ref for ref in use.outputs.values()):
            raise NotReplayable(f"{use.name} gives a tensor that is no plain one")
        values = [graph.get(Ref((*ref[:5], 0, ref[6]))).detach() for ref in use.outputs.values()]
        given = [at for at, each in enumerate(inputs) if each is not None]

        def go_back(gradients: Sequence[Any]) -> list[Any]:
            left = self._go_back(use, gradients)
            return [left[at] for at in given]

        with torch.enable_grad():
            made = _function(use.name).apply(values, go_back, *[inputs[at] for at in given])
        for ref, result in zip(use.outputs.values(), made, strict=True):
            if ref.tracked > 2:
                graph.marked[ref.tracked] = result
            else:
                graph.rebind(ref, result)

    def _go_back(self, use: FunctionUse, gradients: Sequence[Any]) -> list[Any]:
        """What the recorded backward leaves of these gradients of the results."""
        outer = self.running[-1] if self.running else None
        run = backward_of(self._segment, use, outer, self._over)
        if run is None:
            raise NotReplayable(f"{use.name} is differentiated where it was not")
        self._make(run, [run.arrived[output] for output in use.outputs], gradients, use.name)
        return [*map(self.graph.get, run.left)]

    def _make(
        self, run: FunctionRun, arrived: Sequence[Any], gradients: Sequence[Any], name: str
    ) -> None:
        """Make the calls of a run for these gradients in the place of those that arrived."""
        self._over.add(id(run))
        for ref, gradient in zip(arrived, gradients, strict=True):
            if (ref is None) != (gradient is None):
                raise NotReplayable(f"{name} is given other gradients than it was")
            if ref.__class__ is Ref:
                self.graph.replace(ref, gradient)
            elif ref is not None:
                raise NotReplayable(f"{name} is given a gradient that is no plain tensor")
        inside = [
            each
            for each in self._segment.engine
            if run.first <= each.first and each.last <= run.last
            if not any(each is outer for outer in self.running)
        ]
        with self.graph.covering():
            direct = [each for each in inside if not _lies_in(each, inside)]
            self.go_on(run.first, run.last, direct)


def backward_of(
    segment: Segment,
    use: FunctionUse | HookUse,
    outer: EngineRun | None,
    over: Collection[int] = (),
) -> FunctionRun | None:
    """The first run, not over, of a Function's backward or a hook in this engine run."""
    for run in segment.function_runs:
        if run.number == use.number and id(run) not in over:
            if outer is None or (outer.first <= run.first and run.last <= outer.last):
                return run
    return None


def _lies_in(run: EngineRun, others: Sequence[EngineRun]) -> bool:
    """Whether a run of the engine happened within another; of these, a later one ended later."""
    later = others[next(at for at, each in enumerate(others) if each is run) + 1 :]
    return any(each.first <= run.first and run.last <= each.last for each in later)


class _Function(torch.autograd.Function):
    """Stands in the graph for a Function of the program."""

    @staticmethod
    def forward(
        ctx: Any, values: list[Any], go_back: Callable[[Sequence[Any]], list[Any]], *inputs: Any
    ) -> Any:
        ctx.go_back = go_back
        ctx.set_materialize_grads(False)
        return tuple(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, None, *ctx.go_back(gradients)


@cache
def _function(node: str) -> type[_Function]:
    """That class by the name of the program's own, which its node has too."""
    return type(node.removesuffix("Backward"), (_Function,), {})


class _Building:
    """A step that is run again: its graph so far."""

    def __init__(
        self,
        patches: Sequence[Patch] = (),
        about_to_call: AboutToCall | None = None,
        instead: Mapping[tuple[int, int], Instead] | None = None,
        rows: Batch | None = None,
        around: Around | None = None,
    ) -> None:
        self.about_to_call, self.rows, self.around = about_to_call, rows, around
        self.instead = instead or {}
        self.by_call = grouped(patches, lambda patch: (patch.segment, patch.at))
        self.skipped = {(p.segment, i) for p in patches for i in p.skipped}
        self.not_run = {(p.segment, first) for p in patches for first in p.runs}
        self.graph, self.result = Graph(None if rows is None else rows.leaf), Rebuilt()
        self.number, self.running = 0, Segment(0)
        self.done: dict[tuple[int, int], list[int]] = {}  # storages after their last use
        self.looks: dict[int, list[Look]] = {}
        self.functions = Functions(self.graph, self.go_on)
        self.state = self.functions.state()  # where others go on from here

    def go_on_from(self, other: _Building) -> None:
        """Begin with what was built elsewhere, whose Functions ask this one from now on."""
        self.graph, self.functions = other.graph.branch(), other.functions
        for leaf in self.graph.tensors():
            # torch refuses to say of a view under no_grad whose base was written since
            with suppress(RuntimeError):
                if leaf.is_leaf:
                    leaf.grad = None  # of the run before
        self.looks = dict(other.looks)
        self.functions.restore(other.state)
        self.functions.graph, self.functions.go_on = self.graph, self.go_on

    def segment(
        self, number: int, segment: Segment, begin: int = 0, end: int | None = None
    ) -> None:
        """Run a segment, or the calls from ``begin`` to ``end`` of it."""
        self.number, self.running = number, segment
        self.functions.skipped = {i for at, i in self.skipped if at == number}
        self.functions.written = {i for at, i in self.by_call if at == number}
        with _disable_current_modes():
            self.graph.load(segment, borrow=end is not None)
        if not begin:
            self.looks = grouped(segment.looks, lambda look: look.index)
            self.functions.enter(segment)
        if end is None:
            engine = [run for run in segment.engine if not run.nested]
            self.go_on(0, len(segment.calls), engine, begin)
        else:
            self.go_on(0, end, (), begin)
            self.state = self.functions.state()

    def go_on(
        self, first: int, last: int, engine: Sequence[EngineRun], begin: int | None = None
    ) -> None:
        """Run the segment's calls from ``first`` to ``last``, and engine runs in between.

        begin: of the first that is run, where those before it were run elsewhere.
        """
        number, segment, graph = self.number, self.running, self.graph
        calls, passes = segment.calls, {run.first: run for run in engine}
        index = first if begin is None else begin
        while index <= last:
            for look in self.looks.pop(index, ()):
                if not self.skipped or graph.holds(look.ref):  # else new code has looked anew
                    self.result.looked.append((look, graph.get(look.ref)))
            self.functions.reached(index, first)
            run = passes.pop(index, None)
            if run is not None and run.unrolled:
                edited = any(at == number and i < run.last for at, i in self.skipped)
                if edited and run.forward:
                    raise NotReplayable(
                        "gradients are differentiated forward, so what comes before them cannot be"
                        " edited"
                    )
                run = run if edited else None  # its calls are run as they are
            if run is not None and (number, index) in self.not_run:
                index = run.last
                continue
            if self.about_to_call is not None and index < len(calls):
                self.about_to_call(number, index, calls[index], graph)
            if run is not None:
                self.functions.running.append(run)
                graph.own(ref.storage for ref in refs_in((*run.before.values(),)))
                with nullcontext() if self.around is None else self.around(run, graph):
                    _go_backward(graph, run, self.result)
                self.functions.running.pop()
                if run.last > index:
                    index = run.last
                    continue
            if index == last:
                break
            if segment.lost is not None and index >= segment.lost[0]:
                raise NotReplayable(segment.lost[1])
            standing = self.instead.get((number, index))
            if standing is not None and standing.when(graph.get):
                seed_first(segment, index, standing.last)
                standing.run(graph.get)
                if standing.last > index:
                    index = standing.last
                    continue
            own = self.by_call.get((number, index), ())
            if graph.shared:
                near = {index, *(i for patch in own for i in patch.skipped)}
                graph.own(storage for i in near for storage in _written_at(segment, i))
            run_patches(graph, [p for p in own if p.ahead], calls[index].grad)
            if (number, index) not in self.skipped:
                _call(graph, segment, index, self.rows)
            run_patches(graph, [p for p in own if not p.ahead], calls[index].grad)
            graph.release(self.done.get((number, index), ()))
            index += 1


def _written_at(segment: Segment, index: int) -> Iterator[int]:
    """Storages that a call writes, or that hold something else when it begins."""
    yield from written_by(segment.calls[index])
    if index in segment.loads:
        yield segment.loads[index][0]


def run_patches(graph: Graph, patches: Sequence[Patch], grad: bool) -> None:
    """Bind the results of patches to what they replace."""
    for patch in patches:
        with torch.set_grad_enabled(grad):
            made = patch.run(graph.get)
        if made is None and patch.follows:
            continue
        refs, results = _paired(patch.out, made)
        for ref, result in zip(refs, results, strict=True):
            if not grad and result.is_leaf:  # what it wrote into, perhaps
                result = result.detach()
            graph.replace(ref, result)


def _paired(out: Any, made: Any) -> tuple[tuple[Ref, ...], tuple[Any, ...]]:
    """The references that a patch replaces, and the tensors that it gives for them."""
    several = out.__class__ is tuple
    refs = out if several else (out,)
    results = tuple(made) if several and isinstance(made, tuple | list) else (made,)
    if len(refs) != len(results) or not all(isinstance(each, Tensor) for each in results):
        raise NotReplayable(f"the edit gives {type(made).__name__}, not a tensor")
    return refs, results


def _call(graph: Graph, segment: Segment, index: int, rows: Batch | None = None) -> None:
    plain = rows is None or rows.leaves_alone(segment.loads.get(index, (-1,))[0])
    if index in segment.loads and plain and segment.loads[index][0] not in graph.edited:
        storage, held = segment.loads[index]
        base = graph.bases.get(storage)
        with _disable_current_modes():
            if base is None:
                graph.memory.storages[storage] = held.clone()
            else:
                base.tensor.untyped_storage().copy_(held)
    if rows is not None and rows.start and segment.calls[index].position == rows.start:
        rows.enter(graph)
    run = operate_call if rows is None else partial(rows.run, segment, index)
    make(segment, index, graph.get, graph.bind, run)


def _go_backward(graph: Graph, run: EngineRun, result: Rebuilt) -> None:
    roots = [*map(graph.get, run.roots)]
    with _disable_current_modes():
        result.losses.extend(root.detach() for root in roots)
    if not run.accumulates:
        differentiate(run, graph)
        return
    for ref in run.after:
        if ref.__class__ is not Ref:
            raise NotReplayable("a parameter is no plain tensor (sparse, nested or a subclass)")
        leaf = graph.get(ref)
        had = run.before.get(ref)
        if had is None:
            leaf.grad = None
        elif leaf.grad is None:
            leaf.grad = graph.get(had).detach()
    inputs = [*map(graph.get, run.inputs)]
    gradients = [*map(graph.get, run.gradients)]
    torch.autograd.backward(
        roots, gradients, retain_graph=True, create_graph=run.create_graph, inputs=inputs or None
    )
    for ref, gradient in run.after.items():
        leaf = graph.get(ref)
        if leaf.grad is None:
            continue
        if gradient.__class__ is Ref:
            graph.rebind(gradient, leaf.grad)
            result.gradients[ref] = leaf.grad
        elif gradient is not None:  # a sparse one
            graph.bind(gradient, leaf.grad)


def differentiate(run: EngineRun, graph: Graph) -> None:
    """A run of ``torch.autograd.grad`` whose results go on; under vmap, of a batch of gradients or
    for each sample by itself."""
    roots, inputs, gradients = (
        [*map(graph.get, refs)] for refs in (run.roots, run.inputs, run.gradients)
    )

    def taken(of: list[Tensor], given: Sequence[Tensor | None], batched: bool) -> Sequence[Any]:
        return torch.autograd.grad(
            roots,
            of,
            given,
            retain_graph=True,
            create_graph=run.create_graph,
            allow_unused=True,
            is_grads_batched=batched,
        )

    apart = run.by_sample
    if any(apart):  # the samples' gradients, those of all but one zero in each
        if not all(root.dim() for root in roots):
            raise NotReplayable("gradients are taken for each sample of one number for all")
        whole = zip(roots, gradients, strict=True)
        each = [_diagonal(torch.ones_like(root) if g is None else g) for root, g in whole]
        made = [
            taken([x], each if own else gradients, own)[0]
            for x, own in zip(inputs, apart, strict=True)
        ]
    elif (at := run.batched_at) is not None:
        batch = [None if g is None else g.movedim(at, 0) for g in gradients]
        made = [None if g is None else g.movedim(0, at) for g in taken(inputs, batch, True)]
    else:
        made = [*taken(inputs, gradients, False)]
    for ref, gradient in zip(run.results, made, strict=False):
        if ref is not None and gradient is not None:
            graph.bind(ref, gradient)


def _diagonal(each: Tensor) -> Tensor:
    """A batch of tensors, the i-th of which has the i-th row of another, and else zeros."""
    return torch.diag_embed(each.movedim(0, -1)).movedim((-2, -1), (0, 1))


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal, NaN to NaN and -0 to 0."""
    if a.shape != b.shape or a.dtype != b.dtype or a.layout != b.layout:
        return False
    if a.layout is not torch.strided:  # torch compares these nowhere
        a, b = a.to_dense(), b.to_dense()
    if a._is_zerotensor() or b._is_zerotensor():  # without memory: comparing it ends the process
        return a._is_zerotensor() == b._is_zerotensor()
    if a.dtype is torch.complex32:  # which torch does not compare
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
    return bool(torch.equal(a, b)) or bool(((a == b) | ((a != a) & (b != b))).all())
