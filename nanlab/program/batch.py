"""The step without some rows of its batch: forward calls on fewer rows, and numbers of rows that
the program wrote."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from nanlab.errors import NotReplayable, UsageError
from nanlab.operators import having
from nanlab.program.rerun import Get, Window, operate, operate_call, seed, written_by
from nanlab.trace.program import Call, Ref, Segment, refs_in
from nanlab.trace.recording import NamedTensor

Tensor = torch.Tensor
_VIEWS = having("sized")
_PARTS = having("divides_rows")
_INDEXED = having("indexed", in_place=True)
_ALONG = having("along", in_place=True)
_CREATED = having("created")
_JOINS = ("cat", "stack")
_PICKS = having("indexes_dim", in_place=True) & _ALONG
_LIKELY = having("likelihood")
_RANKS = having("ranks")
_COUNTS = (".shape", ".size(", "len(", ".numel(")  # how a line asks for the number of rows


@dataclass
class Batch:
    """A batch without some of its rows."""

    rows: int  # of the recorded batch
    kept: Tensor  # their numbers
    leaves: frozenset[int]  # storages of the data
    lines: dict[int, str] = field(default_factory=dict)  # position of a call -> its source
    # positions of the calls that make the batch of something else: X[i], a stack of samples
    makers: frozenset[int] = frozenset()
    # tensors whose rows are left out from a call on, and the position of that call
    entering: tuple[Ref, ...] = ()
    start: int = 0
    # gives the number of a call in a library that has fewer rows, from the storages reached
    recount: Callable[[Call, Container[int]], float | None] | None = None
    running: Call | None = None  # the call that runs now, or that failed
    # storages of numbers of rows, as arange counts them: those that they had in the recorded batch
    _counters: set[int] = field(default_factory=set)
    _reached: set[int] = field(default_factory=set)  # storages that the batch has a part in
    # views of what is computed of rows that are left out alone, on another row in their place
    _lost: set[Any] = field(default_factory=set)
    _means: set[int] = field(default_factory=set)  # storages of means over the batch
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

    def enter(self, get: Get, rebind: Callable[[Ref, Any], None]) -> None:
        """Leave the rows out of the tensors known by names."""
        for ref in self.entering:
            rebind(ref, get(ref).index_select(0, self.kept))
            self._reached.add(ref.storage)

    def leaves_alone(self, storage: int) -> bool:
        """Whether all rows of a storage are kept, where the batch is known by names."""
        return bool(self.start) and storage not in self._reached

    # -- a call

    def run(self, segment: Segment, index: int, call: Call, args: Any, kwargs: Any) -> Any:
        """The call on the rows that are left. Raises NotReplayable where that is unclear."""
        if call.position < self.start:
            return operate_call(call, args, kwargs)
        self.running = call
        name = getattr(call.func, "_opname", "")
        before = call.read
        reached = any(r.storage in self._reached for r in before)
        if any(r.view in self._lost for r in before):
            return self._lose(name, call, args, kwargs)
        if call.position in self.makers:
            made = operate(call.func, args, kwargs).index_select(0, self.kept)
        elif index in segment.states:
            made = self._drawn(segment, index, call, args, kwargs)
        elif not before:
            made = self._created(name, call, args, kwargs)
        elif name == "unbind" and _is_along(call, args):
            made = self._unbound(call, operate(call.func, args, kwargs))
        elif reached or name in _CREATED:
            args = self._sizes(name, call, args)
            # fewer rows may lie otherwise in memory: a copy has the same elements
            func = torch.ops.aten.reshape.default if name == "view" else call.func
            made = operate(func, args[:2] if name == "view" else args, kwargs)
            made = self._numbered(name, call, args, made)
            if name == "select" and call.out.view in self._lost:  # nothing writes into the other
                made = made.clone()
        else:
            made = operate(call.func, args, kwargs)
        outs = list(refs_in(call.out))
        made_of = zip(outs, _tensors(made), strict=False)
        if reached or any(ref.size != tuple(t.shape) for ref, t in made_of):
            self._reached |= {r.storage for r in outs}
        if reached and _is_mean(name, call):
            self._means |= {r.storage for r in outs if not r.size}
        self._inherit(before, outs)
        self._count(name, call, before, outs)
        return made

    def replaced(self, calls: Iterable[Call], out: Any) -> None:
        """Note that new code, not these calls, gave a result."""
        before = [ref for call in calls for ref in call.read]
        if any(ref.view in self._lost for ref in before):
            self._lost |= {ref.view for ref in refs_in(out)}
        if any(ref.storage in self._reached for ref in before):
            self._reached |= {ref.storage for ref in refs_in(out)}

    def check(self, roots: Any) -> None:
        """Raise NotReplayable where a backward pass is that of a row that is left out, or where
        nothing has fewer rows."""
        if not self._reached and not self.start:
            raise NotReplayable("nanlab could not tell which data the rows of its batch come from")
        if any(ref.view in self._lost for ref in refs_in(roots)):
            raise NotReplayable("a backward pass is that of a sample which is left out")

    def _unbound(self, call: Call, made: Any) -> tuple[Tensor, ...]:
        """The rows one by one, another in the place of one that is left out."""
        rows, outs = list[Tensor](), [*refs_in(call.out)]
        numbers = {row: at for at, row in enumerate(self.kept.tolist())}
        for row, out in enumerate(outs):
            if row not in numbers:
                self._lost.add(out.view)
            rows.append(made[numbers[row]] if row in numbers else made[0].clone())
        self._reached |= {out.storage for out in outs}
        return tuple(rows)

    def _lose(self, name: str, call: Call, args: Any, kwargs: Any) -> Any:
        """A call that reads what is computed of rows that are left out: a list of such loses
        theirs, and anything else is lost, too."""
        parts = call.args[0] if call.args else None
        outs = [*refs_in(call.out)]
        if name in _JOINS and isinstance(parts, tuple | list):
            stay = [i for i, part in enumerate(parts) if part.view not in self._lost]
            if stay:
                self._reached |= {ref.storage for ref in outs}
                return operate(call.func, ([args[0][i] for i in stay], *args[1:]), kwargs)
        others = (ref for ref in call.read if ref.view not in self._lost)
        if any(ref.storage in self._reached for ref in others):
            raise NotReplayable(f"{self._line(call)} computes with rows and one that is left out")
        self._lost |= {ref.view for ref in outs}
        return operate(call.func, args, kwargs)

    def _numbered(self, name: str, call: Call, args: Any, made: Any) -> Any:
        """What a call found, places along the rows given as their numbers."""
        ref, results = call.args[0] if call.args else None, _tensors(made)
        if name not in _RANKS or ref.__class__ is not Ref or _named_dim(call, args) is None:
            return made
        dim, found = _dimension(call, args, len(ref.size)), results[-1]
        if dim not in _changed(ref, args[0]) or found.dtype is not torch.int64:
            return made
        with _disable_current_modes():
            results[-1] = self._places(ref, dim).to(found.device)[found]
        self._counters.add([*refs_in(call.out)][-1].storage)
        return results[0] if isinstance(made, Tensor) else tuple(results)

    def _count(self, name: str, call: Call, before: Sequence[Ref], outs: Sequence[Ref]) -> None:
        """Note whether the results are numbers of rows, or computed from such numbers alone."""
        numbers = [a for a in call.args if isinstance(a, int | float)]
        counts = name == "arange" and numbers in ([self.rows], [0, self.rows], [0, self.rows, 1])
        of = {ref.storage in self._counters for ref in before if ref.dtype is not torch.bool}
        if counts or of == {True}:
            self._counters |= {ref.storage for ref in outs if ref.dtype is not torch.bool}
        elif of:
            self._counters -= {*written_by(call)}

    def _inherit(self, before: Sequence[Ref], outs: Sequence[Ref]) -> None:
        """Let the results inherit, by size, what the operands' dimensions were flattened from."""
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
        """The recorded random numbers, without the rows that are left out."""
        name = getattr(call.func, "_opname", "")
        if name == "randperm":
            raise NotReplayable("the step draws an order of the rows")
        whole: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
        given: dict[Any, Any] = {**dict(enumerate(call.args)), **call.kwargs}
        inputs = [(i, r, whole[i]) for i, r in given.items() if r.__class__ is Ref]
        for i, ref, actual in inputs:
            for dim in _changed(ref, actual):
                if name == "multinomial" and dim == len(ref.size) - 1:
                    raise NotReplayable(f"{self._line(call)} draws rows of the batch")
                with _disable_current_modes():
                    places = self._places(ref, dim)
                    # for a row that is left out the first: what it holds can be drawn from
                    rows = torch.zeros(ref.size[dim], dtype=torch.long)
                    rows[places] = torch.arange(len(places))
                whole[i] = whole[i].index_select(dim, rows)
        seed(segment, index)
        named = {name: whole[name] for name in kwargs}
        made = operate(call.func, tuple(whole[i] for i in range(len(args))), named)
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
                raise NotReplayable("two dimensions of a tensor that is made may be the batch")
            return (args[0], [len(self.kept) if n == self.rows else n for n in args[1]], *args[2:])
        if not dims:
            return self._counted(name, call, args)
        dim = _dimension(call, args, len(ref.size) if ref is not None else 1)
        if name == "slice" and dim in dims and not _is_whole(args, self.rows):
            raise NotReplayable(f"{self._line(call)} takes a part of the rows")
        if name == "select" and dim in dims:
            return (args[0], args[1], self._row(call, args[2]), *args[3:])
        along = (
            {d % len(ref.size) for d in args[1]} if name == "flip" and ref is not None else {dim}
        )
        if name in _PARTS and (not along.isdisjoint(dims) or name == "as_strided"):
            raise NotReplayable(f"{self._line(call)} takes a part of the rows, or reorders them")
        if name in _LIKELY and self._class_dim(ref) in dims:
            return self._renumbered(call, args, self._class_dim(ref), 1)
        if name in _PICKS and dim in dims:
            return self._renumbered(call, args, dim, 2)
        if name in _ALONG and dim in dims:
            raise NotReplayable(f"{self._line(call)} goes along the rows of the batch")
        if name in _INDEXED:
            return self._indexed(call, args, dims)
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

    def _row(self, call: Call, number: int) -> int:
        """The number of a row among those that are left; that of another where it is none."""
        number %= self.rows
        found = (self.kept == number).nonzero().flatten().tolist()
        if not found:
            self._lost |= {ref.view for ref in refs_in(call.out)}
        return int(found[0]) if found else 0

    def _indexed(self, call: Call, args: Any, dims: list[int]) -> Any:
        """The arguments of an indexing call, with indices along the rows renumbered."""
        found = list(args[1])
        for dim, index in enumerate(call.args[1]):
            if dim in dims and index.__class__ is Ref and index.dtype is not torch.bool:
                found[dim] = self._new_numbers(call, dim, index, found[dim])
        return (args[0], found, *args[2:])

    def _renumbered(self, call: Call, args: Any, dim: int, at: int) -> Any:
        """The arguments with an index along the rows renumbered for the rows left."""
        return (*args[:at], self._new_numbers(call, dim, call.args[at], args[at]), *args[at + 1 :])

    def _new_numbers(self, call: Call, dim: int, ref: Any, index: Tensor) -> Tensor:
        """The index that each row number has among the rows left. Raises NotReplayable."""
        if ref.__class__ is not Ref or ref.storage not in self._counters:
            raise NotReplayable(f"{self._line(call)} picks rows of the batch by their numbers")
        with _disable_current_modes():
            size, negative = call.args[0].size[dim], index < 0
            ignored = negative if call.func._opname in _LIKELY else torch.zeros_like(negative)
            places = self._places(call.args[0], dim).to(index.device)
            numbers = torch.where(negative, index + size, index).contiguous()
            found = torch.searchsorted(places, numbers).clamp(max=len(places) - 1)
            lost = (places[found] != numbers) & ~ignored
            if lost.any():
                row = int(numbers[lost][0]) % self.rows
                raise NotReplayable(f"{self._line(call)} picks row {row}, which is left out")
            return torch.where(ignored, index, found)

    @staticmethod
    def _class_dim(ref: Ref | None) -> int:
        """The dimension along which a likelihood picks."""
        return min(1, len(ref.size) - 1) if ref is not None else -1

    def _counted(self, name: str, call: Call, args: Any) -> Any:
        """The arguments of a call that divides a sum over the batch, with the new count where the
        number is the count of its rows. Raises NotReplayable where it only may be."""
        if name.rstrip("_") not in ("div", "mul") or len(args) < 2:
            return args
        number, divided = args[1], call.args[0]
        if divided.__class__ is Ref and divided.storage in self._means:
            return args
        if isinstance(number, bool) or not isinstance(number, int | float) or number <= 0:
            return args
        count = number if name.rstrip("_") == "div" else 1 / number
        if round(count) < 2 or abs(count - round(count)) > 1e-9 * count or round(count) % self.rows:
            return args
        line = self.lines.get(call.position, "")
        if not any(each in line for each in _COUNTS):
            found = self.recount(call, self._reached) if self.recount is not None else None
            if found is not None:
                return (args[0], found, *args[2:])
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


def _is_along(call: Call, args: Any) -> bool:
    """Whether a call goes along a dimension that has another size now."""
    ref = call.args[0]
    return ref.__class__ is Ref and _dimension(call, args, len(ref.size)) in _changed(ref, args[0])


def _dimension(call: Call, args: Any, count: int) -> int:
    """The dimension along which a call works, 0 where it names none."""
    number = _named_dim(call, args)
    return 0 if number is None else number % max(count, 1)


def _named_dim(call: Call, args: Any) -> int | None:
    """The value of a call's ``dim`` argument, by default too; None where that is no integer, or
    there is none."""
    for i, argument in enumerate(call.func._schema.arguments):
        if argument.name == "dim":
            usual = call.kwargs.get("dim", argument.default_value)
            number = args[i] if i < len(args) else usual
            return number if isinstance(number, int) else None
    return None


def _is_mean(name: str, call: Call) -> bool:
    """Whether a call divides by the number of what it sums."""
    arguments = zip(call.func._schema.arguments, call.args, strict=False)
    return name == "mean" or any(a.name == "reduction" and given == 1 for a, given in arguments)


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
        for index, call in enumerate(segment.calls[:end]):
            for ref in call.read:
                fits = ref.storage in segment.leaves and ref.storage not in names
                if fits and not ref.tracked and ref.size and ref.storage not in state:
                    if ref.storage not in data:
                        sizes[ref.size[0]] += 1
                        data[ref.storage] = ref.size[0]
            if not data and index in segment.states and call.out.__class__ is Ref and call.out.size:
                if not any(refs_in(call.args)):
                    sizes[call.out.size[0]] += 1  # drawn by the step itself
    if not sizes:
        raise NotReplayable("it reads no data that has rows")
    rows = sizes.most_common(1)[0][0]
    entering = _rows_entering(where, names)
    others = entering and rows not in entering  # what the batch is made of has more
    if others:
        rows = next((n for n in entering if n in data.values()), next(iter(entering)))
    makers = _makers(where, names, rows, joins=not others) if rows in entering else frozenset()
    wrong = [r for r in without if not -rows <= r < rows]
    if wrong:
        raise UsageError(f"the batch has rows 0 to {rows - 1}; row {wrong[0]} is not among them")
    left = {r % rows for r in without}
    kept = torch.tensor([r for r in range(rows) if r not in left], dtype=torch.long)
    if not len(kept):
        raise UsageError(f"all {rows} rows of the batch are left out; leave at least one")
    lines = {call.position: where.recording.at(call.position).source for call in where.calls}
    leaves = frozenset(n for n, size in data.items() if size == rows)
    return Batch(rows, kept, leaves, lines, makers)


@dataclass(frozen=True)
class LeftOut:
    """Rows to leave out of some tensors, at the first read after all of these are written."""

    rows: int  # of the recorded tensors
    without: tuple[int, ...]  # the numbers of those that they lose
    tensors: tuple[NamedTensor, ...]


def refs_by_name(calls: Iterable[Call], named: Iterable[NamedTensor]) -> dict[str, Ref]:
    """The named tensors that some calls read and autograd does not follow, by name."""
    read = {tuple(ref[:4]): ref for call in calls for ref in call.read if not ref.tracked}
    keys = {n.name: (n.storage, n.offset, n.size, n.stride) for n in named}
    return {name: read[key] for name, key in keys.items() if key in read}


def batch_without(where: Window, out: LeftOut) -> Batch:
    """The batch without these rows. Raises NotReplayable."""
    refs = tuple(refs_by_name(where.calls, out.tensors).values())
    first = next((call for _, _, call in readers_of(where, refs)), None)
    if first is None or len(refs) < len(out.tensors):
        raise NotReplayable("nothing reads these rows, or autograd follows them")
    if any(ref.size[:1] != (out.rows,) for ref in refs):
        raise NotReplayable("the tensors have other numbers of rows")
    kept = torch.tensor([r for r in range(out.rows) if r not in {*out.without}], dtype=torch.long)
    lines = {call.position: where.recording.at(call.position).source for call in where.calls}
    start = max(first.position, 1)
    return Batch(out.rows, kept, frozenset(), lines, entering=refs, start=start)


def readers_of(where: Window, refs: Sequence[Ref]) -> Iterator[tuple[int, int, Call]]:
    """(segment, index, call) of each read of one of these tensors, after the last write to them."""
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
    """The storages of a step that hold data, or what is computed from data without parameters."""
    found: set[int] = set()
    for call, data in _data_calls(where, where.recording.program.names):
        found |= {r.storage for r in (*call.read, *refs_in(call.out)) if r.storage in data}
        found -= {r.storage for r in refs_in(call.out) if r.storage not in data}
    return found


def _rows_entering(where: Window, parameters: Container[int]) -> dict[int, None]:
    """The leading sizes of data that calls combine with parameters, in their order."""
    found: dict[int, None] = {}
    for call, data in _data_calls(where, parameters):
        if call.out.__class__ is not Ref or call.out.storage not in data:
            met = [ref for ref in call.read if ref.storage in data and ref.size]
            if len(met) < len(call.read):
                found.update(dict.fromkeys(ref.size[0] for ref in met))
    return found


def _makers(where: Window, parameters: Container[int], rows: int, joins: bool) -> frozenset[int]:
    """The positions of calls on data that make results of that many rows from other operands.

    joins: of those alone that put tensors together."""
    return frozenset(
        call.position
        for call, data in _data_calls(where, parameters)
        if call.out.__class__ is Ref and call.out.storage in data and call.out.size[:1] == (rows,)
        if call.read and not any(ref.size[:1] == (rows,) for ref in call.read)
        if not joins or getattr(call.func, "_opname", "") in _JOINS
    )


def _data_calls(where: Window, parameters: Container[int]) -> Iterator[tuple[Call, Container[int]]]:
    """Each call of the forward pass, with the storages computed from data alone up to there, those
    of the call among them."""
    data: set[int] = set()
    for segment in where.segments:
        end = min((run.first for run in segment.engine), default=len(segment.calls))
        for call in segment.calls[:end]:
            data |= {r.storage for r in call.read if r.storage in segment.leaves and not r.tracked}
            own = (r.storage for r in call.read if r.storage in segment.leaves)
            data -= {storage for storage in own if storage in parameters}
            if all(ref.storage in data for ref in call.read):
                data |= {ref.storage for ref in refs_in(call.out)}
            else:
                data -= {ref.storage for ref in refs_in(call.out)}
            yield call, data
