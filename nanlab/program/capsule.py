"""``trace.save()``, ``nanlab.load()``: a file of JSON and numbers, without pickle or code."""

from __future__ import annotations

import hashlib
import itertools
import json
import linecache
import os
import re
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import safetensors.torch
import torch
from torch._ops import OpOverload, OpOverloadPacket

from nanlab.errors import CapsuleError, TypeMismatchError, UsageError
from nanlab.paths import path_of
from nanlab.program.rerun import bytes_of, complete, handed_over, memory_of
from nanlab.stats import layout as L
from nanlab.trace import Trace, history, recording
from nanlab.trace.chunk import (
    DEVICE,
    DTYPE,
    LINE,
    MODULE,
    OP,
    PHASE,
    SHAPE,
    SITE,
    STAT,
    WIDTH,
    Chunk,
    Names,
)
from nanlab.trace.history import Guarded
from nanlab.trace.mode import aside
from nanlab.trace.program import (
    Call,
    Calls,
    EngineRun,
    Held,
    HookUse,
    Program,
    Ref,
    Segment,
    refs_in,
)
from nanlab.trace.recording import PHASES, NodeRuns, Nodes, Recording

FORMAT = 4
BUDGET = 64 << 20  # bytes of tensors that no call overwrote
_MOST_TEXT = 8 << 20  # characters of source
_ROOM = 256 << 20  # bytes that a small file may hold
_DENSEST = 100  # bytes for each byte of the file, beyond that
_MOST_BYTES = 1 << 40  # of one storage
_MOST_THREADS = 1 << 12  # of torch
_MEMBERS = ("trace.json", "numbers.safetensors", "tensors.safetensors", "exponents.safetensors")
_STORED = "tensors.safetensors"  # bits of tensors that cannot be packed any closer
_WORTH_SPLITTING = 1 << 12  # bytes of one tensor
_DIGEST = "digest"
_DEVICE = re.compile(r"[a-z]+(:\d{1,3})?")
_OPERATOR = re.compile(r"aten::(\w+)(?:\.(\w+))?")
# of a node of autograd, as torch::jit::(anonymous namespace)::DifferentiableGraphBackward
_NODE = re.compile(r"[\w:() ]*")
_BARRED = frozenset({"from_file", "save", "warn", "_print"})  # reach beyond their arguments
_NOT_PLAIN = (
    "a tensor that is no plain one (sparse, nested, quantised or a subclass) has no form in a file;"
    " replay the step in the process that recorded it"
)
_ABSENT = "is not in the file: it did not fit into the budget (trace.save(path, budget=...))"


@cache
def hints_of(kind: Any) -> dict[str, Any]:
    """The type of each field of a record."""
    return {name: hint for name, hint in get_type_hints(kind).items() if hint is not KW_ONLY}


def _records(kind: Any, found: dict[str, Any]) -> dict[str, Any]:
    """The records that may stand in one of a type, by name."""
    record = kind
    if is_dataclass(kind) and record not in found.values():
        found[record.__name__] = record
        for hint in hints_of(record).values():
            _records(hint, found)
    for part in get_args(kind):
        _records(part, found)
    return found


# those that a file names: neither the whole, nor what lives in memory alone
_WHOLE = {Recording, Program, Segment, recording.Shadow}
_RECORDS = {
    name: kind
    for name, kind in _records(Recording, _records(Guarded, {})).items()
    if kind not in _WHOLE
}
_DTYPES = {
    str(d).removeprefix("torch."): d for d in vars(torch).values() if isinstance(d, torch.dtype)
}
_OTHERS = {
    str(each): each
    for each in vars(torch).values()
    if isinstance(each, torch.layout | torch.memory_format | torch.qscheme)
}
_KEPT_APART = frozenset(
    {
        *("catch_up", "chunks", "program", "guilty", "evidence"),
        *("node_runs", "nodes", "texts", "trusted"),
        *("twins_made", "make_operands", "make_twins", "check", "look_through"),
    }
)
_loads = itertools.count(1)


class _NoPlace(Exception):
    """A value that has no form in a capsule."""


# -- writing


def save(trace: Trace, path: str | os.PathLike[str], budget: int = BUDGET) -> Path:
    """Write a trace to a file, and return its path."""
    if isinstance(budget, bool) or not isinstance(budget, int):
        raise TypeMismatchError(f"expected a budget in bytes, got {budget!r}")
    if budget < 0:
        raise UsageError(f"expected a budget of 0 bytes or more, got {budget}")
    there, writer = path_of(path, 'trace.save("run.nanlab")'), _Writer(budget)
    members = {
        "trace.json": (
            json.dumps(writer.trace(trace), allow_nan=False, separators=(",", ":")).encode()
        ),
        "numbers.safetensors": safetensors.torch.save(writer.numbers),
    }
    exponents = writer.split()
    members[_STORED] = safetensors.torch.save(writer.tensors)
    members["exponents.safetensors"] = safetensors.torch.save(exponents)
    try:
        with zipfile.ZipFile(there, "w", zipfile.ZIP_DEFLATED, compresslevel=3) as file:
            for name, content in members.items():
                kind = zipfile.ZIP_STORED if name == _STORED else zipfile.ZIP_DEFLATED
                file.writestr(name, content, kind)
            file.writestr(_DIGEST, _digest(members))
    except OSError as error:
        raise CapsuleError(f"the trace could not be written to {there}: {error}") from error
    for told in writer.told():
        warnings.warn(f"{there}: {told}", RuntimeWarning, stacklevel=3)
    return there


def _digest(members: dict[str, bytes]) -> str:
    whole = hashlib.sha256()
    for name in _MEMBERS:
        whole.update(hashlib.sha256(members[name]).digest())
    return whole.hexdigest()


class _Part:
    """What of a segment has a place in the file, and the first call that cannot be run again."""

    def __init__(
        self, writer: _Writer, names: dict[int, str], lost: tuple[int, str] | None
    ) -> None:
        self.writer, self.names, self.lost = writer, names, lost
        self.absent: set[int] = set()  # storages that are not in the file

    def lose(self, index: int | None, reason: str) -> None:
        """Note that a call cannot be run again, and the reason."""
        if index is not None and reason and (self.lost is None or index < self.lost[0]):
            self.lost = index, reason

    def missing(self, value: Any) -> str:
        """Why a value cannot be read: the file lacks one of its storages; "": it lacks none."""
        gone = next((r.storage for r in refs_in(value) if r.storage in self.absent), None)
        return (
            "" if gone is None else f"{self.names.get(gone) or 'a tensor that it reads'} {_ABSENT}"
        )

    def packed(
        self, index: int | None, what: str, value: Any, pack: Callable[[Any], Any] | None = None
    ) -> list[Any]:
        """A list with the packed value; empty where it cannot be packed, and the call is lost."""
        try:
            return [(pack or self.writer.pack)(value)]
        except _NoPlace as error:
            self.lose(index, f"{what} is not in the file: {error}")
            return []

    def call(self, index: int, call: Call) -> list[Any]:
        reason, pack = self.missing(call.read), self.writer.pack
        try:
            given = (
                [None] * 3 if call.given else [pack(call.func), pack(call.args), pack(call.kwargs)]
            )
            packed = [*given, pack(call.out), call.position, call.grad, call.given]
        except _NoPlace as error:
            reason = reason or f"a call is not in the file: {error}"
            packed = [None, None, None, None, call.position, call.grad, str(error)]
        self.lose(index, reason)
        return packed

    def engine_run(self, run: EngineRun) -> list[Any]:
        found = self.packed(run.first, "a backward pass", run)
        read = (run.roots, run.gradients, run.inputs, tuple(run.before), tuple(run.before.values()))
        self.lose(run.first, self.missing(read))
        return found


class _Writer:
    def __init__(self, budget: int) -> None:
        self.left = budget
        self.numbers: dict[str, torch.Tensor] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        self.lost: dict[str, list[int]] = {}  # reason -> steps that can be run again here alone
        self.incomplete = False  # whether the steps cannot all be run again from the file
        self._storages: dict[int, str] = {}  # id of a storage -> its key
        self._generators: dict[int, int] = {}
        self._zeros: dict[int, int] = {}  # id of a tensor of zeros without memory -> its number
        self._refs: dict[Ref, int] = {}  # each that occurs, and its place in the file
        self._alive: list[Any] = []  # ids stay those of one object

    def trace(self, trace: Trace) -> dict[str, Any]:
        """All of a trace."""
        source = trace.recording
        for chunk in source.chunks:
            chunk.stats.flush()
        _ = source.training  # looks through steps that wait for it
        plain = {
            f.name: self.pack(getattr(source, f.name))
            for f in fields(source)
            if f.name not in _KEPT_APART
        }
        program = self.program(source)
        plain["notes"] = self.pack([*source.notes, *self.told()])
        return {
            "format": FORMAT,
            "nanlab": getattr(sys.modules["nanlab"], "__version__", ""),
            "torch": torch.__version__,
            "recording": plain,
            "chunks": [self.chunk(chunk) for chunk in source.chunks],
            "node_runs": self.pack(source.node_runs.rows),
            "nodes": self.pack(source.nodes.rows),
            "guilty": self.guilty(source.guilty),
            "evidence": self.evidence(self.made_already(source)),
            "program": program,
            "texts": _texts(source),
            "guarded": self.pack(trace.guarded),
            "refs": [
                [number, offset, [*size], [*stride], str(dtype)[6:], tracked, bits]
                for number, offset, size, stride, dtype, tracked, bits in self._refs
            ],
        }

    def chunk(self, chunk: Chunk) -> dict[str, Any]:
        table = chunk.stats
        used = int(table._state[L.ARENA_NEXT])
        arrays = {
            "meta": chunk.table(),
            "edges": chunk.edge_table(),
            "rows": table._rows[: table.n],
            "arena": table._arena[:used],
            "positions": chunk.positions,
            "stat_rows": chunk.stat_rows,
        }
        packed = {name: self.pack(array) for name, array in arrays.items()}
        return packed | {"number": chunk.number, "start": chunk.start, "recorded": chunk._rows}

    def guilty(self, calls: dict[int, recording.GuiltyCall]) -> list[Any]:
        """The guilty calls, whose operands a replay makes again."""
        found = []
        for call in calls.values():
            try:
                found.append(self.pack(call))
            except _NoPlace:
                found.append(self.pack(replace(call, saved={}, args=())))
        return found

    def made_already(self, source: Recording) -> dict[int, recording.Kept]:
        """The operands made so far; where the file's program is incomplete, all of them."""
        if self.incomplete:
            return dict(source.kept)
        return {at: kept for at, kept in source.evidence.items() if kept is not None}

    def evidence(self, kept: dict[int, recording.Kept]) -> list[Any]:
        """The operands that fit, and that are plain tensors."""
        found = []
        for key, each in kept.items():
            tensors = (part for part in _parts(each) if isinstance(part, torch.Tensor))
            size = sum(t.numel() * t.itemsize for t in tensors)
            if size > self.left:
                continue
            try:
                _check_evidence(each)
                found.append([key, self.pack(each)])
                self.left -= size
            except (_NoPlace, CapsuleError):
                continue
        return found

    def split(self) -> dict[str, torch.Tensor]:
        """Split off the last of four bytes of large tensors: sign and exponent deflate well."""
        found = {}
        for key, flat in self.tensors.items():
            if len(flat) >= _WORTH_SPLITTING and not len(flat) % 4:
                words = flat.view(-1, 4)
                found[key] = words[:, 3].contiguous()
                self.tensors[key] = words[:, :3].reshape(-1)
        return found

    def program(self, source: Recording) -> dict[str, Any]:
        program = source.program
        complete(program, program.segments)
        segments = []
        for run in program.runs():
            for segment, unmade in zip(run, handed_over(run), strict=True):
                segments.append(self.segment(segment, program.names, unmade))
                lost = segments[-1]["lost"]
                if lost is not None and segment.lost is None:
                    steps = self.lost.setdefault(lost[1], [])
                    steps.append(source.first_step + source.step_of(segment.start))
        return {
            "segments": segments,
            "names": self.pack(program.names),
            "forgotten": self.pack(program.forgotten),
            "reason": program.reason,
        }

    def told(self) -> list[str]:
        """Which steps cannot be run again from the file, and why."""
        found = []
        for reason, steps in self.lost.items():
            first, *others = dict.fromkeys(steps)
            more = f" and {len(others)} more" if others else ""
            found.append(f"step {first}{more} cannot be run again from it: {reason}")
        return found

    def segment(self, segment: Segment, names: dict[int, str], unmade: set[int]) -> dict[str, Any]:
        try:
            _check(segment)
        except CapsuleError:  # it would not be read
            segment = _given_up(segment)
        leaves, later = [], []
        part = _Part(self, names, segment.lost)
        for number, storage in segment.leaves.items():
            held = segment.saved.get(number)
            if number in unmade:
                size = (storage if held is None else held).nbytes()
                later.append([number, size, str(storage.device)])
                continue
            changes = held is not None and number not in segment.intact
            key = self.storage(storage if held is None else held, changes)
            if key is None:
                part.absent.add(number)
            else:
                leaves.append([number, key])
        packed: dict[str, Any] = {
            "start": segment.start,
            "end": segment.end,
            "threads": segment.threads,
            "calls": [part.call(index, call) for index, call in enumerate(segment.calls)],
            "leaves": leaves,
            "unmade": later,
            "blank": self.pack(segment.blank),
            "known": sorted(segment.known),
            "engine": [each for run in segment.engine for each in part.engine_run(run)],
            "optimizers": self.optimizers(segment),
        }
        for name in ("functions", "hooks", "function_runs"):
            packed[name] = [
                each
                for use in getattr(segment, name)
                for each in part.packed(
                    use.index if isinstance(use, HookUse) else use.first,
                    "a custom Function or hook",
                    use,
                )
            ]
        for name in ("loads", "results", "states", "generators"):
            packed[name] = [
                [index, each]
                for index, value in getattr(segment, name).items()
                for each in part.packed(
                    index,
                    "what a call begins with",
                    value,
                    self._load if name == "loads" else self.pack,
                )
            ]
        packed["lost"] = None if part.lost is None else list(part.lost)
        packed["looks"] = [each for look in segment.looks for each in part.packed(None, "", look)]
        far = any(storage.device.type != "cpu" for storage in segment.leaves.values())
        self.incomplete |= far or bool(part.absent) or part.lost is not None
        return packed

    def _load(self, value: tuple[int, Any]) -> list[Any]:
        return [value[0], self.storage(value[1], True)]

    def optimizers(self, segment: Segment) -> list[Any]:
        """The steps of optimizers; of one that has no form here, why it cannot be taken anew."""
        found = []
        for run in segment.optimizers:
            try:
                if "." in run.kind:
                    raise _NoPlace(f"{run.kind} is no class of torch")
                found.append(self.pack(run))
            except _NoPlace as error:
                reason = f"a step of its optimizer is not in the file: {error}"
                found.append(self.pack(replace(run, groups=(), own={}, reason=reason)))
        return found

    def storage(self, storage: Any, always: bool) -> str | None:
        """The key of a storage; None where it does not fit."""
        key = self._storages.get(id(storage))
        if key is not None:
            return key
        size = storage.nbytes()
        if not always and size > self.left:
            return None
        if storage.device.type == "meta":
            raise _NoPlace("it has no memory")
        if not always:
            self.left -= size
        key = self._storages[id(storage)] = f"s{len(self.tensors)}:{storage.device}"
        self._alive.append(storage)
        self.tensors[key] = memory_of(storage).to("cpu", copy=True)
        return key

    def pack(self, x: Any) -> Any:
        """A value as JSON: plain ones as they are, others as [kind, ...]."""
        kind = x.__class__
        if x is None or kind is bool or kind is int or kind is str:
            return x
        if kind is float:
            return x if abs(x) < float("inf") else ["float", repr(x)]
        if kind is Ref:
            return ["ref", self._refs.setdefault(x, len(self._refs))]
        if kind is tuple or kind is torch.Size:
            return ["tuple", *[self.pack(each) for each in x]]
        if kind is list or kind is set or kind is frozenset:
            return [kind.__name__, *[self.pack(each) for each in x]]
        if isinstance(x, dict):
            return ["dict", *[[self.pack(k), self.pack(v)] for k, v in x.items()]]
        if isinstance(x, OpOverload):
            if x.namespace != "aten" or x._opname in _BARRED:
                raise _NoPlace(f"{x.namespace}.{x._opname} is no operator that a file may name")
            return ["op", x.name()]
        if isinstance(x, torch.Tensor):
            return self._tensor(x)
        if isinstance(x, np.ndarray):
            return self._array(x)
        return self._other(x)

    def _other(self, x: Any) -> Any:
        if isinstance(x, np.generic):
            return self.pack(x.item())
        if isinstance(x, torch.dtype):
            return ["dtype", str(x).removeprefix("torch.")]
        if isinstance(x, torch.device):
            return ["device", str(x)]
        if isinstance(x, torch.layout | torch.memory_format | torch.qscheme):
            return ["torch", str(x)]
        if isinstance(x, complex):
            return ["complex", repr(x.real), repr(x.imag)]
        if isinstance(x, torch.Generator):
            if x.device.type != "cpu":
                raise _NoPlace(f"a generator of {x.device}")
            self._alive.append(x)
            return ["generator", self._generators.setdefault(id(x), len(self._generators))]
        if isinstance(x, Names):
            return ["Names", *[self.pack(each) for each in x.items]]
        if isinstance(x, history.Series):
            parts = (x.steps, x.places, x.parents, x.owners, np.ascontiguousarray(x.table))
            return ["Series", *[self.pack(each) for each in parts]]
        if isinstance(x, bool | int | float | str):  # subclasses
            return self.pack(next(t(x) for t in (int, float, str) if isinstance(x, t)))
        if isinstance(x, Held):
            return self._held(x.tensor)
        if is_dataclass(x) and type(x).__name__ in _RECORDS:
            return [type(x).__name__, *[self.pack(getattr(x, f.name)) for f in fields(x)]]
        raise _NoPlace(f"a {type(x).__name__} has no form in it")

    def _held(self, t: torch.Tensor) -> Any:
        """A tensor that is no view of a storage: zeros that autograd makes without memory."""
        if type(t) is not torch.Tensor or t.layout is not torch.strided or not t._is_zerotensor():
            raise _NoPlace(_NOT_PLAIN)
        self._alive.append(t)
        number = self._zeros.setdefault(id(t), len(self._zeros))
        dtype = str(t.dtype).removeprefix("torch.")
        return ["zeros", number, dtype, [*t.shape], [*t.stride()], str(t.device)]

    def _tensor(self, t: torch.Tensor) -> Any:
        if (
            type(t) not in (torch.Tensor, torch.nn.Parameter)
            or t.layout is not torch.strided
            or t.is_quantized
        ):
            raise _NoPlace(_NOT_PLAIN)
        if t.device.type == "meta":
            raise _NoPlace("a tensor without memory")
        key = f"t{len(self.tensors)}"
        self.tensors[key] = bytes_of(t.detach().to("cpu"))
        dtype = str(t.dtype).removeprefix("torch.")
        return ["tensor", key, dtype, [*t.shape], str(t.device), t.requires_grad]

    def _array(self, array: Any) -> Any:
        if array.dtype.kind not in "iufb":
            return ["objects", *[self.pack(each) for each in array.reshape(-1).tolist()]]
        key = f"n{len(self.numbers)}"
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self.numbers[key] = torch.from_numpy(flat.copy())
        return ["array", key, array.dtype.str, [*array.shape]]


def _given_up(segment: Segment) -> Segment:
    """A segment of bare positions, for one that cannot be run again."""
    reason = "the memory that it began with has another size now"
    reason = reason if segment.lost is None else segment.lost[1]
    calls = (Call(None, (), {}, None, each.position, each.grad, reason) for each in segment.calls)
    ends = segment.start, segment.end, segment.threads
    return Segment(*ends, Calls(calls), lost=(0, reason))


def _parts(value: Any) -> Iterator[Any]:
    """What a value holds, through lists, tuples, tables and records."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    elif is_dataclass(value):
        value = [getattr(value, f.name) for f in fields(value)]
    if value.__class__ in (list, tuple):
        for each in value:
            yield from _parts(each)
    else:
        yield value


def _texts(source: Recording) -> dict[str, str]:
    """The text of each file that a row names, by the name that the tables show."""
    found, left = {}, _MOST_TEXT
    for shown, _, real in source.places:
        if shown and shown not in found:
            text = source.texts.get(shown)
            text = "".join(linecache.getlines(real)) if text is None else text
            if text and len(text) <= left:
                found[shown] = text
                left -= len(text)
    return found


# -- reading


@aside()
def load(path: str | os.PathLike[str], trusted: bool = False) -> Trace:
    """Read the trace that ``trace.save`` wrote. Raises CapsuleError where the file is no such one,
    is cut or damaged.

    Findings, verdicts and cure are those of the run that was saved. trusted: find them anew, and
    try fixes on the whole step, which runs expressions of the source text that the file holds; say
    it of files from people whom you would let run code.
    """
    if not isinstance(trusted, bool):
        raise TypeMismatchError(f"expected trusted=True or False, got {trusted!r}")
    there = path_of(path, 'nanlab.load("run.nanlab")')
    try:
        members = _members(there)
        trace = _Reader(members).trace()
        trace.recording.trusted = trusted
        if not trusted:
            trace.recall()
    except CapsuleError:
        raise
    except OSError as error:
        raise CapsuleError(f"{there} cannot be read: {error.strerror or error}") from error
    except (zipfile.BadZipFile, EOFError) as error:
        raise CapsuleError(f"{there} is cut, damaged or no capsule: {error}") from error
    except Exception as error:
        raise CapsuleError(f"{there} is damaged ({type(error).__name__}: {error})") from error
    return trace


def _members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as file:
        infos = {info.filename: info for info in file.infolist()}
        if missing := [name for name in (*_MEMBERS, _DIGEST) if name not in infos]:
            raise CapsuleError(f"{path} is no capsule of nanlab: it has no {missing[0]}")
        size = sum(infos[name].file_size for name in (*_MEMBERS, _DIGEST))
        packed = path.stat().st_size
        stored = infos[_STORED].file_size
        if (
            stored > packed
            or size - stored > _ROOM + _DENSEST * packed
            or infos[_DIGEST].file_size > 64
        ):
            raise CapsuleError(
                f"{path} claims to hold {size:,} bytes in {packed:,}; it was not opened"
            )
        found = {name: file.read(infos[name]) for name in _MEMBERS}
        told = file.read(infos[_DIGEST])
    if told != _digest(found).encode():
        raise CapsuleError(f"{path} is damaged: its content is not what was written")
    return found


T = TypeVar("T")
# the lists of what ran in a segment, beside its calls
_RUNS = ("engine", "functions", "hooks", "function_runs", "optimizers", "looks")


def _expect(condition: object, what: str) -> None:
    if not condition:
        raise CapsuleError(f"the capsule is damaged: {what}")


def _check_evidence(kept: recording.Kept) -> None:
    """Refuse operands whose names are none: a program is written from them, and run."""
    # a node of autograd may compute without calls that are seen
    known = isinstance(kept.op, OpOverload) or (kept.op is None and kept.node_name)
    _expect(known, "evidence has no operator")
    words = all(
        isinstance(word, str) and word.isidentifier() for word in (*kept.kwargs, *kept.saved)
    )
    _expect(words and _NODE.fullmatch(kept.node_name), "evidence has no names")


def _whole(value: Any, low: int = 0, high: int = 1 << 62) -> int:
    _expect(
        value.__class__ is int and low <= value <= high,
        f"{value!r} is no number from {low} to {high}",
    )
    return int(value)


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is what a type hint says; so is all that it holds."""
    kind, inside = get_origin(hint) or hint, get_args(hint)
    if kind is Any:
        return True
    if kind is Literal:
        return value in inside
    if kind in (Union, UnionType):
        return any(fits(value, each) for each in inside)
    if kind is float:
        return value.__class__ in (int, float)
    if not isinstance(value, kind) or (kind is int and value.__class__ is bool):
        return False
    if kind is dict:
        return not inside or all(
            fits(k, inside[0]) and fits(v, inside[1]) for k, v in value.items()
        )
    if kind is tuple and inside[1:] != (...,):
        return len(value) == len(inside) and all(map(fits, value, inside))
    return not inside or not isinstance(value, Iterable) or all(fits(v, inside[0]) for v in value)


def _conforming(record: T) -> T:
    """A record whose fields are what its class says."""
    kind: Any = record.__class__
    for name, hint in hints_of(kind).items():
        _expect(fits(getattr(record, name), hint), f"{name} of a {kind.__name__}")
    return record


def _check(segment: Segment) -> None:
    """Every view of a storage lies inside of it, and every optimizer is one of torch. Raises
    CapsuleError."""
    runs: list[Any] = [*segment.functions, *segment.function_runs]
    for run in runs:
        _whole(run.last, _whole(run.first))
    for step in segment.optimizers:
        kind = getattr(torch.optim, step.kind, None) if step.kind else None
        ours = isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
        _expect(step.reason or ours, "an optimizer is not of torch")
        _expect(step.own.keys() <= {"grad_scale", "found_inf"}, "it has other tensors")
        for group in step.groups:
            counts = {len(group.parameters), len(group.gradients), len(group.state)}
            _expect(len(counts) == 1, "a group of parameters has no state")
    sizes = {number: storage.nbytes() for number, storage in segment.leaves.items()}
    sizes |= {number: storage.nbytes() for number, storage in segment.saved.items()}
    sizes |= {number: nbytes for number, (nbytes, _) in segment.blank.items()}
    read = [[call.args, call.kwargs] for call in segment.calls]
    parts = _parts([read, *(getattr(segment, name) for name in _RUNS)])
    for ref in (part for part in parts if isinstance(part, Ref)):
        size = sizes.get(ref.storage, _MOST_BYTES)
        if 0 in ref.size:
            end = 0
        else:
            end = ref[1] + 1 + sum((n - 1) * s for n, s in zip(ref.size, ref[3], strict=True))
        _expect(end * ref.dtype.itemsize <= size, "a view reaches beyond its storage")


class _Reader:
    def __init__(self, members: dict[str, bytes]) -> None:
        self.head: dict[str, Any] = json.loads(members["trace.json"])
        _expect(isinstance(self.head, dict), "its head is no table")
        if self.head.get("format") != FORMAT:
            raise CapsuleError(
                f"the capsule has format {self.head.get('format')!r}, and this version of nanlab"
                f" reads {FORMAT}; it was written by nanlab {self.head.get('nanlab')!r}"
            )
        self.numbers = safetensors.torch.load(members["numbers.safetensors"])
        self.tensors = safetensors.torch.load(members[_STORED])
        exponents = safetensors.torch.load(members["exponents.safetensors"])
        for t in (*self.numbers.values(), *self.tensors.values(), *exponents.values()):
            _expect(t.dtype is torch.uint8 and t.dim() == 1, "a tensor is no row of bytes")
        for key, high in exponents.items():
            low = self.tensors[key]
            _expect(len(low) == 3 * len(high), "a tensor lacks its exponents")
            self.tensors[key] = torch.cat([low.view(-1, 3), high.view(-1, 1)], 1).reshape(-1)
        self._generators: dict[int, torch.Generator] = {}
        self._storages: dict[str, Any] = {}
        self._zeros: dict[int, Held] = {}
        self._refs = [self._ref(*each) for each in self.head["refs"]]
        self.foreign = ""  # a device that this machine does not have
        self._kinds: dict[str, Callable[..., Any]] = {
            "float": lambda text: float(text),
            "complex": lambda real, imag: complex(float(real), float(imag)),
            "ref": lambda at: self._refs[_whole(at)],
            "tuple": lambda *items: tuple([self.unpack(each) for each in items]),
            "list": lambda *items: [self.unpack(each) for each in items],
            "set": lambda *items: {self.unpack(each) for each in items},
            "frozenset": lambda *items: frozenset([self.unpack(each) for each in items]),
            "dict": lambda *items: {self.unpack(k): self.unpack(v) for k, v in items},
            "op": _operator,
            "tensor": self._tensor,
            "zeros": self._held,
            "array": self._array,
            "objects": self._objects,
            "dtype": lambda name: _DTYPES[name],
            "device": lambda name: torch.device(self._device(name)),
            "torch": lambda name: _OTHERS[name],
            "generator": lambda n: self._generators.setdefault(_whole(n), torch.Generator()),
            "Names": lambda *items: Names(*[self.unpack(each) for each in items]),
            "Series": self._series,
        }

    def trace(self) -> Trace:
        """The whole."""
        made = Recording()
        plain = self.head["recording"]
        names = {f.name for f in fields(made)} - _KEPT_APART
        _expect(
            plain.keys() == names,
            f"it has other columns: {', '.join(sorted(plain.keys() ^ names))}",
        )
        for name in names:
            setattr(made, name, self.unpack(plain[name]))
        made.chunks = [
            self.chunk(each, made, len(self.head["chunks"])) for each in self.head["chunks"]
        ]
        _expect(made.chunks and made.starts, "it has no steps")
        made.node_runs, made.nodes = NodeRuns(), Nodes()
        made.node_runs.rows = self.unpack(self.head["node_runs"])
        made.nodes.rows = self.unpack(self.head["nodes"])
        calls = [self.unpack(each) for each in self.head["guilty"]]
        made.guilty = {getattr(call, "position", -1): call for call in calls}
        made.evidence = {key: self.unpack(each) for key, each in self.head["evidence"]}
        made.program = self.program(self.head["program"])
        self.sources(_conforming(made))
        trace = Trace(made)
        trace.guarded = self.unpack(self.head["guarded"])
        return trace

    def sources(self, made: Recording) -> None:
        """Texts of lines under their own names: no file of this machine is looked at."""
        number, texts = next(_loads), self.head["texts"]
        real: dict[str, str] = {}
        for shown, text in texts.items():
            _expect(isinstance(text, str), "a source is no text")
            name = real[shown] = f"<capsule {number}: {shown}>"
            linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
        made.texts = texts
        places: list[tuple[str, int, str]] = []
        for shown, line, _ in made.places:
            name = real.get(shown, f"<capsule {number}>" if shown else "")
            places.append((shown, _whole(line), name))
        made.places = places
        _expect(len(made.spans) == len(places), "a place has no span")

    def chunk(self, head: dict[str, Any], made: Recording, chunks: int) -> Chunk:
        chunk = Chunk(_whole(head["number"], 0, chunks - 1), _whole(head["start"]))
        meta, edges = self._table(head["meta"], WIDTH), self._table(head["edges"], 3)
        limits = {
            OP: len(made.ops.items),
            PHASE: len(PHASES),
            MODULE: len(made.modules.items),
            SHAPE: len(made.shapes.items),
            DTYPE: len(made.dtypes.items),
            DEVICE: len(made.devices.items),
            LINE: len(made.places),
            SITE: len(made.places),
            STAT: chunks << 32,
        }
        for column, end in limits.items():
            least = -1 if column == STAT else 0
            fits = (meta[:, column] >= least) & (meta[:, column] < end)
            _expect(fits.all(), f"column {column} of its rows points outside")
        chunk.meta.frombytes(meta.tobytes())
        chunk.edges.frombytes(edges.tobytes())
        chunk._rows = _whole(head["recorded"])
        for name in ("positions", "stat_rows"):
            array = self.unpack(head[name])
            _expect(
                array is None or (array.ndim == 1 and array.dtype == np.int64),
                f"{name} is no column",
            )
            setattr(chunk, name, array)
        _expect(
            chunk.positions is None or len(chunk.positions) == len(meta), "a row has no position"
        )
        rows, arena = self._table(head["rows"], L.WIDTH), self._table(head["arena"], 1).reshape(-1)
        known = rows[:, L.BINS] > 0
        begins, counts = rows[known, L.FIRST_BIN], rows[known, L.BINS]
        inside = (begins >= 0) & (begins <= len(arena)) & (counts <= len(arena) - begins)
        _expect(inside.all() and (rows[:, L.BINS] >= L.PUT_OFF).all(), "a histogram lies outside")
        chunk.stats._replace(rows, arena)
        chunk.stats._state[L.ARENA_NEXT] = len(arena)
        return chunk

    def _table(self, packed: Any, width: int) -> Any:
        array = self.unpack(packed)
        _expect(isinstance(array, np.ndarray) and array.dtype == np.int64, "a table is no table")
        return array.reshape(-1, width)

    def program(self, head: dict[str, Any]) -> Program:
        segments = [self.segment(each) for each in head["segments"]]
        if self.foreign:
            for segment in segments:
                segment.lost = 0, f"it ran on {self.foreign}, which this machine does not have"
        names, forgotten = self.unpack(head["names"]), self.unpack(head["forgotten"])
        return _conforming(Program(segments, names, forgotten, head["reason"]))

    def segment(self, head: dict[str, Any]) -> Segment:
        made = Segment(
            _whole(head["start"]), _whole(head["end"]), _whole(head["threads"], 1, _MOST_THREADS)
        )
        made.leaves = {_whole(number): self.storage(key) for number, key in head["leaves"]}
        # the program of this process writes none of them: a replay has its own copies
        made.saved = dict(made.leaves)
        for number, nbytes, device in head["unmade"]:
            size = _whole(nbytes, 0, _MOST_BYTES)
            room = torch.empty(size, dtype=torch.uint8, device=self._device(device))
            made.leaves[_whole(number)] = room.untyped_storage()
            made.unmade.add(number)
        made.blank = self.unpack(head["blank"])
        for nbytes, device in made.blank.values():
            _whole(nbytes, 0, _MOST_BYTES)
            self._device(device)
        made.known = {_whole(each) for each in head["known"]}
        made.calls = Calls(self.call(*each) for each in head["calls"])
        for name in _RUNS:
            setattr(made, name, [self.unpack(each) for each in head[name]])
        for name in ("results", "states", "generators"):
            setattr(made, name, {_whole(i): self.unpack(each) for i, each in head[name]})
        made.loads = {
            _whole(i): (_whole(number), self.storage(key)) for i, (number, key) in head["loads"]
        }
        made.lost = None if head["lost"] is None else (_whole(head["lost"][0]), head["lost"][1])
        _check(_conforming(made))
        return made

    def call(
        self, func: Any, args: Any, kwargs: Any, out: Any, position: Any, grad: Any, given: Any
    ) -> Call:
        operator = self.unpack(func)
        known = isinstance(operator, OpOverload)
        _expect(known or (operator is None and given), "a call has no operator")
        args, kwargs = ((), {}) if given else (self.unpack(args), self.unpack(kwargs))
        made = Call(operator, args, kwargs, self.unpack(out), _whole(position), grad, given)
        return _conforming(made)

    def storage(self, key: Any) -> Any:
        """A storage, the same one for the same key."""
        if key not in self._storages:
            held, device = self.tensors[key], self._device(key.partition(":")[2])
            self._storages[key] = held.to(device, copy=True).untyped_storage()
        return self._storages[key]

    def unpack(self, x: Any) -> Any:
        """The value that ``pack`` was given."""
        if x.__class__ is not list:
            _expect(x.__class__ is not dict, "a table stands where a value should")
            return x
        _expect(x and isinstance(x[0], str), "a value has no kind")
        make = self._kinds.get(x[0])
        if make is not None:
            return make(*x[1:])
        kind = _RECORDS.get(x[0])
        _expect(kind is not None, f"{x[0]!r} is no kind of value")
        names = [f.name for f in fields(kind)]  # type: ignore[arg-type]
        _expect(len(names) == len(x) - 1, f"a {x[0]} has {len(names)} fields")
        values = [self.unpack(each) for each in x[1:]]
        made = _conforming(kind(**dict(zip(names, values, strict=True))))  # type: ignore[misc]
        if isinstance(made, recording.Kept):
            _check_evidence(made)
        return made

    def _ref(
        self, number: Any, offset: Any, size: Any, stride: Any, dtype: Any, tracked: Any, bits: Any
    ) -> Ref:
        _expect(len(size) == len(stride), "a view has more sizes than strides")
        sizes = tuple([_whole(n, 0, _MOST_BYTES) for n in size])
        strides = tuple([_whole(n) for n in stride])
        _expect(tracked is None or _whole(tracked) >= 0, "a view is tracked otherwise")
        at = _whole(number), _whole(offset, 0, _MOST_BYTES)
        return Ref((*at, sizes, strides, _DTYPES[dtype], tracked, _whole(bits, 0, 3)))

    def _device(self, name: Any) -> str:
        _expect(isinstance(name, str) and _DEVICE.fullmatch(name), f"{name!r} is no device")
        kind, _, number = str(name).partition(":")
        count = getattr(getattr(torch, kind, None), "device_count", int)
        if kind not in ("cpu", "meta") and int(number or 0) >= count():
            self.foreign = str(name)
            return "cpu"
        return str(name)

    def _tensor(
        self, key: str, dtype: str, shape: list[int], device: str, tracked: bool
    ) -> torch.Tensor:
        made = self.tensors[key].clone().view(_DTYPES[dtype]).reshape([_whole(n) for n in shape])
        made = made.to(self._device(device))
        return made.requires_grad_() if tracked is True else made

    def _held(
        self, number: Any, dtype: str, size: list[int], stride: list[int], device: str
    ) -> Held:
        at = _whole(number)
        if at not in self._zeros:
            sizes = [_whole(n, 0, _MOST_BYTES) for n in size]
            made = torch._efficientzerotensor(
                sizes, dtype=_DTYPES[dtype], device=self._device(device)
            )
            self._zeros[at] = Held(made.as_strided(sizes, [_whole(n) for n in stride]))
        return self._zeros[at]

    def _array(self, key: str, dtype: str, shape: list[int]) -> Any:
        kind = np.dtype(dtype)
        _expect(kind.kind in "iufb", f"{dtype!r} is no dtype of numbers")
        return self.numbers[key].numpy().view(kind).reshape([_whole(n) for n in shape]).copy()

    def _objects(self, *items: Any) -> Any:
        made = np.empty(len(items), object)
        made[:] = [self.unpack(each) for each in items]
        return made

    def _series(self, *parts: Any) -> history.Series:
        made = history.Series()
        made.steps, made.places, made.parents, made.owners, table = [
            self.unpack(each) for each in parts
        ]
        _expect(table.shape == (len(made.steps), len(made.places)), "its series have another shape")
        made.values = table
        return made


def _operator(name: Any) -> Any:
    """An operator of torch itself; no other is looked up."""
    found = _OPERATOR.fullmatch(name) if isinstance(name, str) else None
    _expect(found is not None and found[1] not in _BARRED, f"{name!r} is no operator of torch")
    packet = getattr(torch.ops.aten, found[1], None)  # type: ignore[index]
    overload = (
        getattr(packet, found[2] or "default", None)  # type: ignore[index]
        if isinstance(packet, OpOverloadPacket)
        else None
    )
    if not isinstance(overload, OpOverload):
        raise CapsuleError(f"this torch has no operator {name}; the capsule is of another version")
    return overload
