"""Where an element came from, without copies, back to where a bad one was born."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from nanlab.errors import NotReplayable, TypeMismatchError, UsageError
from nanlab.operators import base_name, having
from nanlab.program.replay import results_of
from nanlab.program.rerun import Memory, operate, rerun, window
from nanlab.trace import Trace
from nanlab.trace.op import location
from nanlab.trace.program import Call, Ref, refs_in
from nanlab.trace.recording import Recording

Tensor = torch.Tensor
MOST = 6  # elements that are told of those that made one
LONGEST = 200  # operations that are gone back through
BYTES = 512 << 20  # of operands that are held for it
BENIGN = 0.5  # an operand that every operator takes


@dataclass(frozen=True)
class Element:
    """One element of a row of ``trace.ops``, or of a tensor that the step read."""

    position: int  # negative: a parameter or the data
    index: tuple[int, ...]
    value: float
    name: str  # of the operator, or of what was read
    place: str = ""  # line of the program
    made_of: tuple[Element, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        at = f"[{', '.join(map(str, self.index))}]" if self.index else ""
        where = f"  ({self.place})" if self.place else ""
        value = f"{self.value:.6g}".replace("nan", "NaN")
        return f"{self.name}{at} = {value}{where}"


class Origin(list[Element]):
    """The elements from the one that was asked for back to where it was born."""

    def __repr__(self) -> str:
        lines = []
        for element in self:
            lines.append(f"{element}")
            lines += [f"    of {str(each).split('  (')[0]}" for each in element.made_of]
        return "\n".join(lines)


@dataclass
class _Held:
    """A call with the values that its operands had, and its results."""

    call: Call
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: list[Tensor]


def why(trace: Trace, position: int, index: Any = None) -> Origin:
    """Where one element of a row came from.

    index: the element, as an index of each dimension or as its number in the flattened tensor;
    None: the first bad one, without any the largest. A bad element is followed to where it was
    born, a finite one to the operation that computed it.
    Raises NotReplayable, UsageError, TypeMismatchError.
    """
    calls = _Calls(trace.recording, position)
    result = calls.result(position)
    if result is None:
        raise NotReplayable(f"row {position} was not recorded with its operands")
    number, found = _number(result, index), Origin()
    while len(found) < LONGEST and (result := calls.result(position)) is not None:
        value = _value(result, number)
        made = calls.made_of(position, number, value)
        bad = [each for each in made if not _is_finite(each[2])]
        parts = tuple(calls.source(*each) for each in made)
        element = calls.source(position, number, value, tuple(result.shape), parts)
        copies = base_name(element.name) in _COPIES and len(made) == 1
        if not copies or not found:
            found.append(element)
        going = bad if not _is_finite(value) else (made if copies else [])
        if not going:
            break
        position, number = going[0][0], going[0][1]
        if position < 0:
            found.append(calls.source(position, *going[0][1:]))
            break
    return found


_COPIES = (
    having("moves")
    | having("same_elements")
    | having("copies")
    | having("reshapes")
    | having("picks")
)
# position, number in the flattened tensor, value, shape
_Made = tuple[int, int, float, tuple[int, ...]]


class _Calls:
    """The calls that a row may come from, run again, with copies of their operands."""

    def __init__(self, recording: Recording, position: int) -> None:
        op = recording.op(position)
        if op is None:
            raise UsageError(
                f"no row at position {position}; trace.ops.position lists those at hand"
            )
        self.recording = recording
        self.held: dict[int, _Held] = {}  # by the first row of a call
        where = window(recording, recording.step_of(position))
        wanted, size, memory = self._ancestors(position, where.start), 0, Memory()

        def run(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            nonlocal size
            if call.position not in wanted or size > BYTES:
                return operate(call.func, args, kwargs)
            flat, spec = tree_flatten((args, kwargs))
            copies = [each.detach().clone() if isinstance(each, Tensor) else each for each in flat]
            size += sum(t.numel() * t.itemsize for t in copies if isinstance(t, Tensor))
            out = operate(call.func, args, kwargs)
            kept_args, kept_kwargs = tree_unflatten(copies, spec)
            self.held[call.position] = _Held(call, kept_args, kept_kwargs, [])
            return out

        def visit(segment: int, index: int, call: Call, out: Any) -> bool:
            nonlocal size
            if call.position in self.held:
                results = [t.detach().clone() for t in results_of(call, out, memory)]
                self.held[call.position].results = results
                size += sum(t.numel() * t.itemsize for t in results)
            return call.position == op.call

        rerun(where.segments, visit, run, memory)

    def _ancestors(self, position: int, start: int) -> set[int]:
        """First rows of the calls of this step that a row was computed from."""
        found: set[int] = set()
        waiting = [position]
        while waiting and len(found) < 4 * LONGEST:
            at = waiting.pop(0)
            op = self.recording.at(at if at >= start else -1)
            if op and op.call not in found:
                found.add(op.call)
                waiting += op.inputs
        return found

    def result(self, position: int) -> Tensor | None:
        """The tensor of a row; None where its call was not run again."""
        op = self.recording.at(position)
        known = self.held.get(op.call)
        return known.results[op.output] if known and op.output < len(known.results) else None

    def made_of(self, position: int, number: int, value: float) -> list[_Made]:
        """The operand elements that made an element: the bad ones of a bad one, else the
        largest."""
        op = self.recording.at(position)
        known = self.held[op.call]
        tensors = [t for t in tree_flatten((known.args, known.kwargs))[0] if isinstance(t, Tensor)]
        floating = [t for t in tensors if t.is_floating_point() and t.numel()]
        if not floating:
            return []
        values = torch.cat([t.reshape(-1).double().cpu() for t in floating])
        poisoned = _Poisoned(known, floating, op.output, number)
        order = values.abs().nan_to_num(nan=torch.inf).argsort(descending=True, stable=True)
        bad = order[~torch.isfinite(values[order])] if not _is_finite(value) else order[:0]
        chosen = (poisoned.search(bad) if len(bad) else []) or poisoned.search(order)
        sources = self._sources(position, tensors)
        ends = [*itertools.accumulate(t.numel() for t in floating)]
        made = []
        for i in chosen:
            operand = floating[bisect_right(ends, i)]
            place = sources.get(id(operand))
            told = place(i - ends[bisect_right(ends, i)] + operand.numel()) if place else None
            if told is not None:
                made.append((told[0], told[1], float(values[i]), told[2]))
        return made

    def _sources(
        self, position: int, tensors: Sequence[Tensor]
    ) -> dict[int, Callable[[int], _Place | None]]:
        """For each operand, by identity: a function from an element's number to the row and the
        element that it shows.

        The row is the last that wrote the storage; in it the element of a view has another number.
        """
        call = self.held[self.recording.at(position).call].call
        refs = [each for each in tree_flatten((call.args, call.kwargs))[0] if isinstance(each, Ref)]
        known = refs if len(refs) == len(tensors) else [None] * len(tensors)
        operands = zip(self.recording.operands(position), tensors, known, strict=False)
        return {
            id(tensor): partial(self._in_source, source, ref, tuple(tensor.shape))
            for (source, _), tensor, ref in operands
        }

    def _in_source(
        self, source: int, ref: Ref | None, shape: tuple[int, ...], number: int
    ) -> _Place | None:
        op = self.recording.at(source)
        outs = [*refs_in(self.held[op.call].call.out)] if op.call in self.held else []
        made = outs[op.output] if op.output < len(outs) else None
        if ref is None or made is None or made.storage != ref.storage or made.view == ref.view:
            stats = self.recording.stats(source)
            same = stats is None or stats.numel == math.prod(shape)
            return (source, number, shape) if same else None
        steps = zip(_index(number, shape), ref[3], strict=True)
        index = _at_offset(made, ref[1] + sum(i * stride for i, stride in steps))
        return None if index is None else (source, _flat(index, made.size), made.size)

    def source(
        self,
        position: int,
        number: int,
        value: float,
        shape: tuple[int, ...],
        parts: tuple[Element, ...] = (),
    ) -> Element:
        """An element of a row's result, or of a tensor read from outside; parts: the elements that
        made it."""
        op, source = self.recording.at(position), self.recording.sources.get(position)
        if source is not None:
            name = " ".join(part for part in (source.kind, source.name) if part)
        else:
            name = op.name or ("a row that is gone" if position >= 0 else "data")
        place = location(op.file, op.line)
        return Element(position, _index(number, shape), value, name, place, parts)


_Place = tuple[int, int, tuple[int, ...]]  # row or source, number in it, its shape


def _number(result: Tensor, index: Any) -> int:
    """The place of an element in the flattened tensor. Raises UsageError, TypeMismatchError."""
    shape = tuple(result.shape)
    if index is None:
        bad = (~torch.isfinite(result.reshape(-1))).nonzero()
        return int(bad[0]) if len(bad) else largest(result)
    given = tuple(index) if isinstance(index, (tuple, list)) else index
    if isinstance(given, tuple):
        fits = len(given) == len(shape) and all(isinstance(i, int) for i in given)
        if not fits or any(not -n <= i < n for i, n in zip(given, shape, strict=True)):
            raise UsageError(f"expected an index within {shape}, got {given}")
        return _flat([i % n for i, n in zip(given, shape, strict=True)], shape)
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeMismatchError(f"expected an index such as (0, 3), or a number, got {given!r}")
    if not 0 <= given < result.numel():
        raise UsageError(f"expected a number from 0 to {result.numel() - 1}, got {given}")
    return given


def largest(tensor: Tensor) -> int:
    """The place, in the flattened tensor, of its largest finite element."""
    flat = tensor.detach().reshape(-1)
    sizes = torch.where(torch.isfinite(flat), flat.abs().double(), -1.0)
    return int(sizes.argmax()) if len(flat) else 0


def _at_offset(ref: Ref, offset: int) -> tuple[int, ...] | None:
    """The index of the element of a view that lies there; None where it has none."""
    left, index = offset - ref[1], [0] * len(ref.size)
    for dim in sorted(range(len(ref.size)), key=lambda d: -ref[3][d]):
        stride, size = ref[3][dim], ref.size[dim]
        if stride > 0 and size > 1:
            index[dim] = left // stride
            left -= index[dim] * stride
    fits = left == 0 and all(0 <= i < n for i, n in zip(index, ref.size, strict=True))
    return tuple(index) if fits else None


class _Poisoned:
    """Which operand elements an element of the result depends on: those whose NaN reaches it."""

    def __init__(self, held: _Held, floating: Sequence[Tensor], output: int, number: int) -> None:
        self.held, self.floating, self.output, self.number = held, floating, output, number

    def reaches(self, chosen: Tensor) -> bool:
        """Whether NaN in these operand elements alone makes the result's element NaN."""
        flat, spec = tree_flatten((self.held.args, self.held.kwargs))
        made: list[Any] = []
        start = 0
        for each in flat:
            if not any(each is t for t in self.floating):
                made.append(each.clone() if isinstance(each, Tensor) else each)
                continue
            benign = torch.full(each.shape, BENIGN, dtype=each.dtype, device=each.device)
            inside = chosen[(chosen >= start) & (chosen < start + each.numel())] - start
            if len(inside):
                benign.view(-1)[inside.to(each.device)] = torch.nan
            start += each.numel()
            made.append(benign)
        args, kwargs = tree_unflatten(made, spec)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            out = operate(self.held.call.func, args, kwargs)
        results = [t for t in tree_flatten(out)[0] if isinstance(t, Tensor)] or [args[0]]
        result = results[min(self.output, len(results) - 1)].reshape(-1)
        return self.number < len(result) and bool(torch.isnan(result[self.number]))

    def search(self, order: Tensor) -> list[int]:
        """The first few of these elements, in their order, that reach the result's element."""
        try:
            if self.reaches(order[:0]):
                return order[:MOST].tolist()  # no harmless operands are known: all that are bad
            found: list[int] = []
            waiting = [order] if len(order) else []
            while waiting and len(found) < MOST:
                part = waiting.pop()
                if not self.reaches(part):
                    continue
                if len(part) == 1:
                    found.append(int(part[0]))
                else:
                    waiting += [part[len(part) // 2 :], part[: len(part) // 2]]
            return found
        except (RuntimeError, IndexError, TypeError, NotImplementedError):
            return order[:MOST].tolist()


def _index(number: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(int, np.unravel_index(number, shape)))


def _flat(index: Sequence[int], shape: tuple[int, ...]) -> int:
    return int(np.ravel_multi_index(tuple(index), shape)) if shape else 0


def _value(result: Tensor, number: int) -> float:
    value = result.reshape(-1)[number]
    return float(value.abs() if value.is_complex() else value)


def _is_finite(value: float) -> bool:
    return abs(value) < float("inf")
