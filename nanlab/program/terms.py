"""Terms that a program adds up, and that a condition leaves out of the sum."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from nanlab.errors import NotReplayable
from nanlab.program.expression import Code, Made, key_of, span_of
from nanlab.program.readings import Readings, device_of
from nanlab.program.rebuild import Patch
from nanlab.program.rerun import Get, written_by
from nanlab.trace.program import Ref, Segment, refs_in

Named = Mapping[str, Any]  # values of names, by key
_CHANGES = "other lines read what the term is made of"


def added_by(statement: ast.AST) -> ast.expr | None:
    """The term that a statement adds to a name, or takes from it; None for any other statement."""
    match statement:
        case ast.AugAssign(target=ast.Name(), op=ast.Add() | ast.Sub(), value=term):
            return term
        case ast.Assign(
            targets=[ast.Name(id=name)],
            value=ast.BinOp(left=ast.Name(id=total), op=ast.Add() | ast.Sub(), right=term),
        ) if name == total:
            return term
        case ast.Assign(
            targets=[ast.Name(id=name)],
            value=ast.BinOp(left=term, op=ast.Add(), right=ast.Name(id=total)),
        ) if name == total:
            return term
    return None


def left_out(
    readings: Readings,
    statement: ast.stmt,
    test: ast.expr,
    named: Callable[[int, Sequence[int]], Named],
) -> Iterator[tuple[int, int, Any, Patch]]:
    """(segment, index and result of the call that ends it, patch) for each run of a statement that
    adds a term, in which a test does not hold. Raises NotReplayable where that is not known.

    named: gives values of the test's names in a run, from the segment and indices of its calls.
    """
    whole = span_of(statement.value if isinstance(statement, ast.Assign) else statement)
    code = Code(test, (), readings.names)
    for at, group in readings.made(span_of(statement)):
        segment, rest, chains = readings.segments[at], [*group], list[list[_Term]]()
        ends = [m for m in group if m.span == whole and _adds(m)]
        for end in ends:
            own = [m for m in rest if m.index <= end.index]
            rest = rest[len(own) :]
            values = dict(named(at, [m.index for m in own]))
            for path in code.free:
                if key_of(path) not in values:
                    values[key_of(path)] = readings.elsewhere(path, at, [m.index for m in own])
            term = _Term(at, own, Code(test, values, readings.names), values)
            term.code.check()
            last = chains[-1][-1].end.call.out if chains else None
            if last is None or last.storage not in {ref.storage for ref in end.call.read}:
                chains.append([])
            chains[-1].append(term)
        for chain in chains:
            gone = [term for term in chain if not term.holds(readings)]
            if len(gone) == len(chain) and not chain[0].is_added_to_a_gradient:
                raise NotReplayable("no term of the sum would be left")
            for term in gone:
                end = term.end
                yield at, end.index, end.call.out, term.patch(segment)


def _adds(made: Made) -> bool:
    name = getattr(made.call.func, "_opname", "").rstrip("_")
    return name in ("add", "sub") and made.call.out.__class__ is Ref


class _Term:
    """A run of the statement: its calls, and the values of the test's names."""

    def __init__(self, at: int, own: Sequence[Made], code: Code, values: Named) -> None:
        self.at, self.own, self.end, self.code, self.values = at, own, own[-1], code, values
        seen: set[Any] = set()
        self.made: set[Any] = set()  # storages
        for m in own[:-1]:
            seen |= {ref.storage for ref in m.call.read} - self.made
            self.made |= _storages(m) - seen
        given = self.end.call.args[:2]
        inner = [each for each in given if each.__class__ is Ref and each.storage in self.made]
        if len(inner) != 1:
            raise NotReplayable("the term that is added is not known")
        self.result = inner[0]
        self.total = next((each for each in given if each is not self.result), None)

    @property
    def is_added_to_a_gradient(self) -> bool:
        """Whether a gradient is left where the term is none."""
        return self.total.__class__ is Ref and bool(self.total.tracked)

    def holds(self, readings: Readings) -> bool:
        """Whether the test held in the program."""
        index = self.end.index
        shared, found = readings.shared, dict[str, Any]()
        for key, value in self.values.items():
            if value.__class__ is not Ref:
                found[key] = value
                continue
            read = (m.index for m in self.own if any(r.view == value.view for r in m.call.read))
            index = next(read, -1)
            ((_, shown),) = shared.of([(self.at, index)]) if index >= 0 else ((None, None),)
            if shown is None or value.view not in shown.read:
                raise NotReplayable("what the condition reads is not known")
            found[key] = shown.read[value.view]
        return bool(self.code(found))

    def patch(self, segment: Segment) -> Patch:
        """A zero in the place of the term. Raises NotReplayable where more goes with it."""
        inner = list(self.own[:-1])
        last = max(m.index for m in inner if self.result.storage in _storages(m))
        indices = frozenset(m.index for m in inner)
        for m in inner:
            if torch.Tag.nondeterministic_seeded in getattr(m.call.func, "tags", ()):
                raise NotReplayable("the edit takes away a call that draws random numbers")
            if not self.made.issuperset(written_by(m.call)):
                raise NotReplayable("the term writes what lives on")
        for index, call in enumerate(segment.calls[self.own[0].index :], self.own[0].index):
            behind = any(run.first <= index < run.last for run in segment.engine)
            if index in indices or index == self.end.index or behind:
                continue
            if any(ref.storage in self.made for ref in call.read):
                raise NotReplayable(_CHANGES)
        ref, device = self.result, device_of(self.own)
        # which leaves the sign of a zero as it is
        nothing = -0.0 if "add" in self.end.call.func._opname else 0.0

        def run(get: Get) -> Any:
            if self.code({key: get(value) for key, value in self.values.items()}):
                raise NotReplayable("the condition does not hold where it did")
            return torch.full(ref.size, nothing, dtype=ref.dtype, device=device)

        return Patch(self.at, last, indices, ref, run)


def _storages(made: Made) -> set[Any]:
    return {ref.storage for ref in refs_in(made.call.out)}
