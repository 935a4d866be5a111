"""``nanlab.diff(a, b)``: the first line where two runs part, though calls were added or dropped."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

import pandas as pd
import torch

from nanlab.errors import TypeMismatchError, UsageError
from nanlab.operators import having
from nanlab.program.capsule import load
from nanlab.trace import Trace
from nanlab.trace.op import location

# ulps of the narrowest dtype that went in: nearer results are the same but for rounding
ROUNDINGS = 16
MOST_PAIRS = 4_000_000  # of calls that are held against each other to align two steps
_COUNTS = ("nan", "posinf", "neginf")
_VALUES = ("max", "min", "mean", "rms")
_Pairs = list[tuple[int | None, int | None]]


@dataclass(frozen=True)
class Difference:
    """Where two runs part.

    place: the first line whose result is another beyond the rounding of its dtype and of those that
    it was computed from, or that only one run has; "" where they do not part. step, op: of that
    call. position_a, position_b: its rows; None in the run that does not have it. what: what
    differs, in words. table: a row for each result that differs, or that one run alone has. added,
    dropped: calls of b alone, of a alone.
    compared: results that both have. notes: what else to know of the two runs.
    """

    place: str
    step: int | None
    op: str
    position_a: int | None
    position_b: int | None
    what: str
    table: pd.DataFrame = field(repr=False)
    added: int = 0
    dropped: int = 0
    compared: int = 0
    notes: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Whether every call is in both runs and no result parts."""
        return self.position_a is None and self.position_b is None

    def told(self) -> list[str]:
        """Where they part, what was compared, and the notes: a line each."""
        count = f"{self.compared:,} result{'s' if self.compared != 1 else ''} compared"
        calls = f"{self.added:,} only in b, {self.dropped:,} only in a"
        if self.same:
            return [f"the runs do not part ({count})", *self.notes]
        where = f" at {self.place}" if self.place else ""
        head = f"the runs part in step {self.step}{where} ({self.op}): {self.what}"
        return [head, f"{count}; {calls}", *self.notes]

    def __repr__(self) -> str:
        return f"<nanlab.Difference: {'; '.join(self.told())}>"


def diff(a: Any, b: Any) -> Difference:
    """The first line where two runs part beyond rounding: that of a result's dtype and of the
    dtypes that it was computed from.

    a, b: traces, or paths of capsules that ``trace.save`` wrote. Their calls are aligned by source
    text, operator and shape, step by step, so calls may have been added or dropped. Raises
    TypeMismatchError for anything else, CapsuleError for a file that is no capsule, UsageError
    where no step is at hand in both.
    """
    one, other = _trace(a, "a"), _trace(b, "b")
    first, second = pd.DataFrame(one.ops), pd.DataFrame(other.ops)
    steps = sorted(set(first.step) & set(second.step))
    if not steps:
        raise UsageError(
            f"no step is at hand in both: a has {_steps(first)}, b has {_steps(second)}; keep more"
            " with watch(keep=...)"
        )
    rough = _roundings(one), _roundings(other)
    rows: list[dict[str, Any]] = []
    compared = added = dropped = 0
    for step in steps:
        left = first[first.step == step].to_dict("records")
        right = second[second.step == step].to_dict("records")
        for i, j in _aligned(left, right):
            x, y = None if i is None else left[i], None if j is None else right[j]
            compared += x is not None and y is not None
            added, dropped = added + (x is None), dropped + (y is None)
            pairs = zip(rough, (x, y), strict=True)
            ulp = max(ulps[row["position"]] for ulps, row in pairs if row is not None)
            what = _parting(x, y, ulp)
            if what:
                rows.append(_row(x, y, what))
    table = pd.DataFrame(rows, columns=_COLUMNS)
    for column in ("position_a", "position_b", "line_a", "line_b"):
        table[column] = table[column].astype("Int64")
    notes = _notes(first, second, steps)
    if not rows:
        return Difference("", None, "", None, None, "", table, 0, 0, compared, notes)
    # a cast, copy or view that one run alone has changes no value by itself
    start = next((row for row in rows if row["position_a"] is not None and row["both"]), rows[0])
    start = rows[0] if not _is_later(rows, start) else start
    worse = next((row for row in rows if row["not_finite"]), start)
    if not start["not_finite"] and worse is not start:
        notes = (
            f"in step {worse['step']} at {worse['place']} ({worse['op']}): {worse['what']}",
            *notes,
        )
    alone = "" if any(row["both"] for row in rows) else "; no result that both have is another"
    return Difference(
        start["place"],
        int(start["step"]),
        start["op"],
        start["position_a"],
        start["position_b"],
        start["what"] + alone + _read_otherwise(one, other, start),
        table,
        added,
        dropped,
        compared,
        notes,
    )


_COLUMNS = [
    *("step", "op", "module", "phase", "place", "source", "line_a", "line_b"),
    *("position_a", "position_b", "dtype_a", "dtype_b", "rms_a", "rms_b", "max_a", "max_b"),
    "what",
]


def _trace(x: Any, name: str) -> Trace:
    if isinstance(x, Trace):
        return x
    if isinstance(x, str | os.PathLike):
        return load(x)
    raise TypeMismatchError(
        f"expected a trace or the path of a capsule for {name}, got {type(x).__name__}"
    )


def _steps(frame: pd.DataFrame) -> str:
    found = sorted(set(frame.step))
    return f"steps {found[0]} to {found[-1]}" if found else "none"


# -- aligning


def _line(row: dict[str, Any]) -> Hashable:
    return row["source"] or (row["file"], row["line"])


def _aligned(a: Sequence[dict[str, Any]], b: Sequence[dict[str, Any]]) -> _Pairs:
    """Pairs of rows of the same call in two steps: by line, operator and shape, then by less."""
    keys = (
        lambda r: (r["phase"], r["op"], r["output"], r["module"], _line(r), r["shape"]),
        lambda r: (r["phase"], r["op"], r["output"], r["shape"]),
        lambda r: (r["phase"], r["op"], r["output"], _line(r)),
    )
    left, right = [[k(r) for r in a] for k in keys], [[k(r) for r in b] for k in keys]
    return list(_within(range(len(a)), range(len(b)), left, right, 0))


def _within(
    a: range, b: range, keys_a: list[list[Any]], keys_b: list[list[Any]], level: int
) -> Iterator[tuple[int | None, int | None]]:
    """Pairs of two stretches of rows, by the keys of a level, and between those by later levels."""
    if not a or not b or level == len(keys_a):
        yield from ((i, None) for i in a)
        yield from ((None, j) for j in b)
        return
    left, right = keys_a[level][a.start : a.stop], keys_b[level][b.start : b.stop]
    i, j = a.start, b.start
    for x, y, size in _blocks(left, right):
        yield from _within(range(i, a.start + x), range(j, b.start + y), keys_a, keys_b, level + 1)
        yield from ((a.start + x + n, b.start + y + n) for n in range(size))
        i, j = a.start + x + size, b.start + y + size
    yield from _within(range(i, a.stop), range(j, b.stop), keys_a, keys_b, level + 1)


def _blocks(left: list[Any], right: list[Any]) -> list[tuple[int, int, int]]:
    """(place, place, length) of each stretch that two sequences share, in order."""
    pairs = enumerate(zip(left, right, strict=False))
    same = next((i for i, (x, y) in pairs if x != y), min(len(left), len(right)))
    head = [(0, 0, same)] if same else []
    left, right = left[same:], right[same:]
    if not left or not right:
        return head
    if len(left) * len(right) > MOST_PAIRS:
        left, right = _numbered(left), _numbered(right)
    found = SequenceMatcher(None, left, right, autojunk=False).get_matching_blocks()
    return [*head, *((x + same, y + same, size) for x, y, size in found if size)]


def _numbered(keys: list[Any]) -> list[Any]:
    """Each key with its count of earlier occurrences, so that no two are equal."""
    seen: Counter[Any] = Counter()
    found = []
    for key in keys:
        found.append((key, seen[key]))
        seen[key] += 1
    return found


# -- comparing


def _roundings(trace: Trace) -> dict[int, float]:
    """By position: an ulp of the narrowest dtype among a result and the results behind it."""
    recording, found = trace.recording, dict[int, float]()
    rows = {position: recording.at(position) for position, _ in recording.rows()}
    # of steps that were folded away only the parameters are at hand
    folded = max((_ulp(str(row.dtype)) for row in rows.values()), default=0.0)

    def of(position: int) -> float:
        if position >= 0:
            return found.get(position, folded)
        source = recording.sources.get(position)
        own = _ulp(source.dtype) if source is not None else 0.0
        return max([own, *map(of, recording.parents(position))])

    for position, row in rows.items():
        found[position] = max([_ulp(str(row.dtype)), *map(of, recording.parents(position))])
    return found


def _parting(x: dict[str, Any] | None, y: dict[str, Any] | None, ulp: float) -> str:
    """What differs between two results of one call, in words; "" where nothing does.

    ulp: of the narrowest dtype behind them.
    """
    if x is None or y is None:
        return "only in b" if x is None else "only in a"
    if x["shape"] != y["shape"]:
        return f"the shape is {x['shape']} in a and {y['shape']} in b"
    if what := _not_finite(x, y):
        return what
    if not all(_known(r["rms"]) for r in (x, y)):
        return ""
    allowed = ROUNDINGS * ulp
    scale = max(abs(x["rms"]), abs(y["rms"]))
    for name in _VALUES:
        if not (_known(x[name]) and _known(y[name])):
            continue
        # a small element among large ones may be what large terms leave of each other
        size = max(abs(x[name]), abs(y[name]), scale)
        if abs(x[name] - y[name]) > allowed * size:
            a, b = _apart(x[name], y[name])
            return f"{name} is {a} in a and {b} in b"
    return ""


def _not_finite(x: dict[str, Any], y: dict[str, Any]) -> str:
    """Which values that are not finite one of two results has more of; "" where neither has."""
    for name in _COUNTS:
        if _known(x[name]) and _known(y[name]) and x[name] != y[name]:
            kind = "NaN" if name == "nan" else "infinite elements"
            return f"{x[name]:,} {kind} in a and {y[name]:,} in b"
    return ""


def _apart(x: float, y: float) -> tuple[str, str]:
    """Two numbers, with as many digits as it takes to tell them apart."""
    shown = ((f"{x:.{n}g}", f"{y:.{n}g}") for n in range(6, 18))
    return next(((a, b) for a, b in shown if a != b), (repr(x), repr(y)))


def _known(value: Any) -> bool:
    return value is not None and value is not pd.NA


def _ulp(dtype: str) -> float:
    kind = getattr(torch, dtype.removeprefix("torch."), None)
    if not isinstance(kind, torch.dtype) or not (kind.is_floating_point or kind.is_complex):
        return 0.0
    return float(torch.finfo(kind).eps)


def _row(x: dict[str, Any] | None, y: dict[str, Any] | None, what: str) -> dict[str, Any]:
    row: dict[str, Any] = x or y or {}
    found = {name: row[name] for name in ("step", "op", "module", "phase", "source")}
    found |= {"place": location(row["file"], row["line"]), "what": what}
    found["both"] = x is not None and y is not None
    found["not_finite"] = _not_finite(x, y) if x is not None and y is not None else ""
    for end, each in (("a", x), ("b", y)):
        for name in ("position", "line", "dtype", "rms", "max"):
            found[f"{name}_{end}"] = None if each is None else each[name]
    return found


def _is_later(rows: Sequence[dict[str, Any]], start: dict[str, Any]) -> bool:
    """Whether only casts and views, which one run has more of, come before a row that parts."""
    before = rows[: rows.index(start)]
    moves = having("copies", "same_elements")
    return bool(start["both"]) and all(r["op"] in moves for r in before)


def _notes(a: pd.DataFrame, b: pd.DataFrame, steps: Sequence[int]) -> tuple[str, ...]:
    told = []
    for frame, other, name in ((a, b, "a"), (b, a, "b")):
        more = len(set(frame.step) - set(other.step))
        if more:
            told.append(f"{more} step{'s' if more != 1 else ''} of {name} alone")
    kinds = [
        sorted({d for d in frame[frame.step.isin(steps)].dtype if _ulp(d)}) for frame in (a, b)
    ]
    if kinds[0] != kinds[1]:
        told.append(f"a computes in {', '.join(kinds[0])}, b in {', '.join(kinds[1])}")
    return tuple(told)


def _read_otherwise(one: Trace, other: Trace, start: dict[str, Any]) -> str:
    """The operand from outside of the step that differs already, in words; "" where none does."""
    if not start["both"]:
        return ""
    for x, y in zip(
        *(_sources(trace, start[f"position_{end}"]) for trace, end in ((one, "a"), (other, "b"))),
        strict=False,
    ):
        if x is not None and y is not None and x[1] != y[1]:
            return f"; it reads {x[0]}, which differs already"
    return ""


def _sources(trace: Trace, position: int) -> list[tuple[str, Any] | None]:
    """(name, statistics) of each operand that no recorded call made."""
    recording = trace.recording
    found: list[tuple[str, Any] | None] = []
    for operand, _ in recording.operands(position):
        source = recording.sources.get(operand)
        name = source and (source.name or f"a tensor of shape {tuple(source.shape)}")
        found.append((name, recording.stats(operand)) if name else None)
    return found
