"""Op: one recorded result as an object; walk: the way from result to result."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from nanlab.operators import base_name
from nanlab.trace.chunk import (
    ARRIVED,
    CALL,
    DEVICE,
    DTYPE,
    FACTOR,
    FLAGS,
    INPLACE,
    LINE,
    LITERAL,
    MODULE,
    NODE,
    NOGRAD,
    OP,
    OUTPUT,
    PASS,
    PHASE,
    SHAPE,
    SITE,
    STAT,
    UNINIT,
    VIEW,
    WIDTH,
)

if TYPE_CHECKING:
    from nanlab.trace.recording import Recording


PACKAGES = ("site-packages", "dist-packages")  # the folders of installed packages


@lru_cache(maxsize=4096)
def as_imported(path: str) -> str:
    """``kornia/enhance/adjust.py``: a file below the folder of installed packages; "" elsewhere."""
    parts = path.replace(os.sep, "/").split("/")
    at = max((i for i, part in enumerate(parts) if part in PACKAGES), default=len(parts))
    return "/".join(parts[at + 1 :])


def is_installed(path: str) -> bool:
    """Whether a file belongs to an installed package."""
    return bool(as_imported(path))


def location(file: str, line: int | str) -> str:
    """``train.py:41`` or ``In[7]:3``, relative to the current folder; "" without a file."""
    if not file:
        return ""
    if installed := as_imported(file):
        return f"{installed}:{line}"
    try:
        below = os.path.relpath(file) if os.path.isabs(file) else file
    except (OSError, ValueError):  # the folder is gone, or on another drive
        below = file
    return f"{file if below.startswith(os.pardir) else below}:{line}"


def module_name(module: str) -> str:
    """The path of a module; ``module 2`` for a path that is only a number."""
    return f"module {module}" if module.isdigit() else module


FORWARD, BACKWARD, OPTIMIZER, RECOMPUTE, OTHER = range(5)  # of PHASES
OK, BORN, CARRIED, TURNED, HEALED, INTENDED = range(6)  # of STATUSES
T = TypeVar("T", bound=Hashable)


def _number(column: int) -> Any:
    """A column of a row, as an attribute."""
    return property(lambda op: op._row[column])


def _flag(bit: int) -> Any:
    """A bit of a row's flags, as an attribute."""
    return property(lambda op: bool(op._row[FLAGS] & bit))


class Op:
    """One recorded result of one call: a row of ``trace.ops``, with questions as properties."""

    __slots__ = ("_row", "position", "recording")

    def __init__(self, recording: Recording, position: int, row: tuple[int, ...]) -> None:
        self.recording, self.position, self._row = recording, position, row

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Op) and (self.recording, self.position) == (
            other.recording,
            other.position,
        )

    def __hash__(self) -> int:
        return hash(self.position)

    def __repr__(self) -> str:
        return f"Op({self.position}: {self.name}, line {self.line})"

    # -- what ran

    @property
    def name(self) -> str:
        """ATen's name, without overload: ``add_``."""
        return str(self.recording.ops.items[self._row[OP]])

    @property
    def base_name(self) -> str:
        """The name on the operator's card: ``add``."""
        return base_name(self.name)

    phase: int = _number(PHASE)  # FORWARD, BACKWARD, OPTIMIZER, RECOMPUTE or OTHER

    @property
    def backward(self) -> bool:
        """Whether the autograd engine ran it."""
        return self._row[PHASE] == BACKWARD

    @property
    def step(self) -> int:
        """Training step, from 0."""
        return self.recording.step_of(self.position)

    @property
    def module(self) -> str:
        """Qualified name of the module in which it ran."""
        return str(self.recording.modules.items[self._row[MODULE]])

    call: int = _number(CALL)  # position of the first result of the same call
    output: int = _number(OUTPUT)  # which result of its call it is

    # -- where

    place: int = _number(LINE)  # number of its line in ``recording.places``
    site: int = _number(SITE)  # number of the innermost line outside torch, perhaps in a package

    @property
    def file(self) -> str:
        """File of the user's line."""
        return self.recording.places[self._row[LINE]][0]

    @property
    def line(self) -> int:
        """The user's line, from 1; 0 where there is none."""
        return self.recording.places[self._row[LINE]][1]

    @property
    def source(self) -> str:
        """Text of the user's line; "" where it is not at hand."""
        return self.recording.line_at(self.place)[2]

    # -- what came out

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        return self.recording.shapes.items[self._row[SHAPE]]  # type: ignore[no-any-return]

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the result."""
        return self.recording.dtypes.items[self._row[DTYPE]]  # type: ignore[no-any-return]

    @property
    def device(self) -> str:
        """Device of the result."""
        return str(self.recording.devices.items[self._row[DEVICE]])

    stat: int = _number(STAT)  # number of its statistics, which two results may share

    @property
    def stats(self) -> Any:
        """Its TensorStats; None if they are gone."""
        return self.recording.stats(self.position)

    @property
    def status(self) -> int:
        """OK, BORN, CARRIED, TURNED, HEALED or INTENDED."""
        return self.recording.status.get(self.position, OK)

    @property
    def born(self) -> bool:
        """Whether it is not finite though its operands are."""
        return self.status == BORN

    view: bool = _flag(VIEW)  # whether it shares memory with an operand
    inplace: bool = _flag(INPLACE)  # whether it was written into memory that held another value
    uninitialised: bool = _flag(UNINIT)  # whether nobody wrote its memory
    literal: bool = _flag(LITERAL)  # whether the program wrote its values: a constant, a literal
    arrived: bool = _flag(ARRIVED)  # written by a collective
    without_grad: bool = _flag(NOGRAD)  # whether gradients were disabled
    scaled: bool = _flag(FACTOR)  # multiplied or divided by a Python number other than zero

    # -- its neighbours

    @property
    def operands(self) -> list[tuple[int, int]]:
        """(position or source, slot) of all operands of its call."""
        return self.recording.operands(self.position)

    @property
    def inputs(self) -> list[int]:
        """Positions and sources of its own operands."""
        return self.recording.parents(self.position)

    @property
    def readers(self) -> list[int]:
        """Positions of the calls that read it, in their order."""
        return self.recording.readers(self.position)

    node: int = _number(NODE)  # autograd sequence number that ties it to its node; -1: none
    backward_pass: int = _number(
        PASS
    )  # number of the engine's run that computed it; -1 outside of one


class Gone(Op):
    """Stands for a folded row or a source, where no operation is recorded."""

    __slots__ = ()
    name, shape, dtype, device = "", (), torch.uint8, ""

    def __init__(self, recording: Recording, position: int) -> None:
        super().__init__(recording, position, _NOTHING)

    def __bool__(self) -> bool:
        return False


_NOTHING = tuple(-1 if c in (PHASE, CALL, NODE, PASS, STAT) else 0 for c in range(WIDTH))


def walk(
    start: Iterable[T],
    onward: Callable[[T], Iterable[T]],
    most: int | None = None,
    depth: int | None = None,
) -> Iterator[T]:
    """Visit everything reachable from ``start``, each once, nearest first.

    most: places to visit; depth: steps from the start."""
    level = list(dict.fromkeys(start))
    seen, count = set(level), 0
    while level:
        following = []
        for at in level:
            if most is not None and count >= most:
                return
            count += 1
            yield at
            for after in onward(at) if depth != 0 else ():
                if after not in seen:
                    seen.add(after)
                    following.append(after)
        level, depth = following, None if depth is None else depth - 1
