"""The run-up to a fault, step after step, and the fault as a program of a dozen lines."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from nanlab.formats import format_of
from nanlab.operators import card, having
from nanlab.program.rerun import unheard
from nanlab.trace import Trace
from nanlab.trace.history import Place, place_at
from nanlab.trace.op import FORWARD
from nanlab.trace.recording import Kept, Recording

BEFORE = 4  # operations that a run-up is looked for in, one before the other
WIDE = 8  # operands of these that are looked at
GROWN = 2.0  # bits above the typical step from which on a run-up is worth telling
THROWN = 2.0  # update over value, root mean squares, from which on it threw the parameter
_EXPONENTIALS = having("exponential")
_SHIFTED = having("softmax")  # which torch computes less the largest element
_ONE_SIDED = having("one_sided")
_SQUARES = having("norm") | {"square"}


@dataclass(frozen=True)
class RunUp:
    """Largest magnitude of an operand by step, and the magnitude its operation can take."""

    position: int  # of the operand, in the faulty step
    at: int  # position of the operation that fails
    op: str
    dtype: str
    steps: list[int]
    values: list[float]
    limit: float
    parameter: str = ""  # that one update threw
    update_step: int = -1
    update_ratio: float = 0.0  # root mean square of that update over that of the value before it


def run_up(trace: Trace, position: int) -> RunUp | None:
    """How the operand of a faulty operation grew, or an operand of that one's maker: a sigmoid is 1
    because its own operand grew. None where nothing grew, or nothing is known.

    position: a row of ``trace.ops``; of a backward row its forward operation counts.
    """
    recording = trace.recording
    level = [_forward_row(trace, position)]
    for _ in range(BEFORE):
        found = [made for at in level for made in _grown(recording, at)]
        if found:
            return _thrown(trace, max(found, key=lambda made: made.values[-1]))
        level = [operand for at in level for operand in _operands(recording, at)][:WIDE]
    return None


def _grown(recording: Recording, at: int) -> Iterator[RunUp]:
    """The operands of an operation that grew."""
    row = recording.at(at)
    if not row:
        return
    op, dtype = row.name, row.dtype
    limit = limit_of(op, dtype)
    for operand in _operands(recording, at):
        made = _history(recording, operand, at, op, str(dtype).removeprefix("torch."), limit)
        if made is not None:
            yield made


def limit_of(op: str, dtype: Any) -> float:
    """The largest magnitude that an operator takes without overflowing its dtype; infinity where
    there is none."""
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point or op in _SHIFTED:
        return math.inf
    largest = format_of(dtype).max
    if op in _EXPONENTIALS:
        return math.log2(largest) if op == "exp2" else math.log(largest)
    return math.sqrt(largest) if op in _SQUARES else largest


def _forward_row(trace: Trace, position: int) -> int:
    ops: Any = trace.ops
    phase, node, step = (ops[name].get(position) for name in ("phase", "node", "step"))
    if phase != "backward" or pd.isna(node):
        return position
    same = (ops["node"] == node) & (ops["step"] == step)
    rows = ops[(same.fillna(False) & (ops["phase"] == "forward")).to_numpy(dtype=bool)]
    return int(rows["position"].iloc[0]) if len(rows) else position


def _operands(recording: Recording, position: int) -> list[int]:
    """Rows that the operation read, views looked through."""
    sources = [recording.unviewed(source) for source, _ in recording.operands(position)]
    return list(dict.fromkeys(source for source in sources if source >= 0))


def _history(
    recording: Recording, position: int, at: int, op: str, dtype: str, limit: float
) -> RunUp | None:
    series = recording.training.series
    column = _column(recording, position)
    stats = recording.stats(position)
    if column is None or stats is None or stats.max is None:
        return None
    step = recording.step_of(position)
    table = series.table[:, column].astype(float)
    steps = [recording.step_of(end - 1) for end in series.steps]
    known = [
        (n, 2.0**value)
        for n, value in zip(steps, table.tolist(), strict=True)
        if n < step and np.isfinite(value) and value < 1024
    ]
    known.append((step, stats.max if op in _ONE_SIDED else stats.largest))
    values = [value for _, value in known]
    if len(known) < 3 or values[-1] <= 2**GROWN * float(np.median(values[:-1])):
        return None
    return RunUp(position, at, op, dtype, [n for n, _ in known], values, limit)


def _column(recording: Recording, position: int) -> int | None:
    """The series' column of a row's result: the same line, operator, module and turn."""
    row, step = recording.at(position), recording.step_of(position)
    if row.phase != FORWARD:
        return None
    turn, key = 0, _identity(place_at(recording, position))
    for p in range(recording.starts[step], position):
        other = recording.at(p)
        same_output = bool(other) and other.output == row.output
        turn += same_output and _identity(place_at(recording, p)) == key
    places = recording.training.series.places
    same = [i for i, place in enumerate(places) if _identity(place) == key]
    return same[turn] if turn < len(same) else None


def _identity(place: Place | None) -> tuple[Any, ...]:
    """What identifies a result within a step; results of one line in a loop share it."""
    return () if place is None else (place.op, place.phase, place.module, place.line, place.dtype)


def _thrown(trace: Trace, made: RunUp) -> RunUp:
    """The run-up, naming a parameter that an update moved by more than its own size, if any."""
    frame = trace.parameters
    if not len(frame) or "update_rms" not in frame:
        return made
    near = frame["step"].between(made.steps[-1] - 3, made.steps[-1] - 1).fillna(False)
    rows = frame[near.to_numpy(dtype=bool)].sort_values("step", kind="stable")
    before = rows.groupby("parameter")["value_rms"].shift(1).astype("Float64")
    ratio = (rows["update_rms"].astype("Float64") / before).fillna(0.0).to_numpy(dtype="float64")
    ratio[~np.isfinite(ratio)] = 0.0
    if not len(ratio) or ratio.max() <= THROWN:
        return made
    row = rows.iloc[int(ratio.argmax())]
    return replace(
        made,
        parameter=str(row["parameter"]),
        update_step=int(row["step"]),
        update_ratio=float(ratio.max()),
    )


# A fault as a program of a dozen lines: the offending operands as literals, the operation, an
# assertion that fails.

ELEMENTS = 4  # offending elements that are kept
SMALL = 64  # elements up to which a whole operand is written down


def reproduction(trace: Trace, position: int, title: str, names: Sequence[str] = ()) -> str:
    """A program that shows the fault of a row of ``trace.ops`` without the model; "" where none
    could be made and run.

    names: of the operands in the user's source, taken where they are names. The program was run:
    its assertion fails.
    """
    kept = trace.kept(position)
    if kept is None:
        return ""
    for program in _programs(trace, kept, title, names):
        if _fails(program):
            return program
    return ""


def _programs(trace: Trace, kept: Kept, title: str, names: Sequence[str]) -> Iterator[str]:
    if kept.node_name:
        yield from _backward(trace, kept, title, names)
    for args in _reduced(kept):
        yield _forward_program(kept, args, title, names)


def _reduced(kept: Kept) -> Iterator[tuple[Any, ...]]:
    """The arguments with offending elements, with one offending row, and whole if small."""
    outputs = [
        o
        for o in kept.outputs
        if isinstance(o, Tensor) and (o.is_floating_point() or o.is_complex())
    ]
    bad = next((~o.isfinite() for o in outputs if not o.isfinite().all()), None)
    if bad is not None and bad.dim() == 2 and str(kept.op).startswith("aten.mm."):
        row, column = bad.nonzero()[0].tolist()
        left, right = kept.args
        yield left[row : row + 1], right[:, column : column + 1]
    elif bad is not None and bad.dim():
        where = bad.reshape(-1).nonzero().reshape(-1)[:ELEMENTS]
        if torch.Tag.pointwise in getattr(kept.op, "tags", ()):
            yield tuple(_picked(arg, bad.shape, where) for arg in kept.args)
        row = int(bad.nonzero()[0, 0])
        cut = [isinstance(arg, Tensor) and arg.shape[:1] == bad.shape[:1] for arg in kept.args]
        pairs = zip(kept.args, cut, strict=True)
        yield tuple(arg[row : row + 1] if is_cut else arg for arg, is_cut in pairs)
    yield kept.args


def _picked(arg: Any, shape: torch.Size, where: Tensor) -> Any:
    if not isinstance(arg, Tensor) or not arg.dim():
        return arg
    try:
        return arg.expand(shape).reshape(-1)[where.to(arg.device)]
    except RuntimeError:
        return arg


def _forward_program(kept: Kept, args: tuple[Any, ...], title: str, names: Sequence[str]) -> str:
    written: list[str] = []
    texts = [_argument(arg, i, written, names, False) for i, arg in enumerate(args)]
    texts += [
        f"{name}={_argument(value, 9, written, (), False)}" for name, value in kept.kwargs.items()
    ]
    if any(text == "" for text in texts):
        return ""
    return _program(
        title, [*written, f"result = {_function(kept.op)}({', '.join(texts)})"], "result"
    )


def _backward(trace: Trace, kept: Kept, title: str, names: Sequence[str]) -> Iterator[str]:
    """Programs that run the forward operation on its saved operand, and its backward."""
    saved = {name: value for name, value in kept.saved.items() if isinstance(value, Tensor)}
    op = re.sub(r"(Backward\d*)$", "", kept.node_name).lower()
    operand = saved.get("self")
    if operand is None and "result" in saved and card(op).from_result:
        operand = eval(card(op).from_result, {"result": saved["result"]})
    incoming = next((a for a in kept.args if isinstance(a, Tensor) and a.is_floating_point()), None)
    if operand is None or incoming is None or not hasattr(torch, op):
        return
    others = [saved["other"]] if "other" in saved else []
    others += [kept.saved["exponent"]] if "exponent" in kept.saved else []
    for operand_, incoming_, others_ in _smaller(kept, operand, incoming, others):
        written: list[str] = []
        x = _argument(operand_, 0, written, names, True)
        rest = [_argument(other, i + 1, written, names, False) for i, other in enumerate(others_)]
        grad = _literal(incoming_)
        if not x or not grad or "" in rest:
            continue
        lines = [
            *written,
            f"result = torch.{op}({', '.join([x, *rest])})",
            f"result.backward({grad})",
        ]
        yield _program(title, lines, f"{x}.grad")


def _smaller(
    kept: Kept, operand: Tensor, incoming: Tensor, others: list[Any]
) -> Iterator[tuple[Tensor, Tensor, list[Any]]]:
    if incoming.shape == operand.shape and operand.dim():
        alike = (o for o in kept.outputs if isinstance(o, Tensor) and o.shape == operand.shape)
        bad = next((~o.isfinite() for o in alike), None)
        if bad is not None and bad.any():
            where = bad.reshape(-1).nonzero().reshape(-1)[:ELEMENTS]
            picked = [_picked(other, operand.shape, where) for other in others]
            yield operand.reshape(-1)[where], incoming.reshape(-1)[where], picked
    yield operand, incoming, others


def _argument(value: Any, number: int, written: list[str], names: Sequence[str], leaf: bool) -> str:
    """An argument as text; a tensor's line goes to ``written``. "" if it cannot be written."""
    if isinstance(value, Tensor):
        literal = _literal(value, leaf)
        if not literal:
            return ""
        given = names[number] if number < len(names) else ""
        taken = {line.split(" = ")[0] for line in written}
        plain = f"x{number}" if number else "x"
        name = given if given.isidentifier() and given not in taken else plain
        written.append(f"{name} = {literal}")
        return name
    if isinstance(value, (list, tuple)):
        parts = [_argument(each, 10 + i, written, (), False) for i, each in enumerate(value)]
        return f"[{', '.join(parts)}]" if all(parts) or not parts else ""
    if isinstance(value, float):
        return _number(value)
    return repr(value) if value is None or isinstance(value, (bool, int, str, torch.dtype)) else ""


def _literal(value: Tensor, leaf: bool = False) -> str:
    value = value.detach().cpu()
    if value.is_complex() or not value.numel():
        return ""
    more = f"dtype={value.dtype}{', requires_grad=True' if leaf else ''}"
    if value.numel() > 3 and bool((value == value.reshape(-1)[0]).all()):
        return f"torch.full({tuple(value.shape)}, {_element(value.reshape(-1)[0])}, {more})"
    return f"torch.tensor({_nested(value)}, {more})" if value.numel() <= SMALL else ""


def _nested(value: Tensor) -> str:
    return f"[{', '.join(_nested(each) for each in value)}]" if value.dim() else _element(value)


def _element(value: Tensor) -> str:
    """The shortest text that is this very number in its dtype."""
    if not value.dtype.is_floating_point:
        return repr(value.item())
    wide = value if value.dtype in (torch.float16, torch.float64) else value.float()
    return _number(float(str(wide.numpy()[()])))


def _number(value: float) -> str:
    text = repr(value)
    return f'float("{text}")' if text in ("inf", "-inf", "nan") else text


def _function(op: Any) -> str:
    """``torch.exp`` where the library has it under that name, else the operator itself."""
    name = str(getattr(op, "__name__", op)).split(".")[0]
    packet, _, overload = str(op).removeprefix("aten.").partition(".")
    plain = packet.startswith("_") or not packet.endswith("_")
    ordinary = overload in ("default", "Tensor", "Scalar", "Tensor_Tensor")
    if plain and ordinary and hasattr(torch, packet):
        return f"torch.{packet}"
    return f"torch.ops.aten.{packet}.{overload}" if overload else f"torch.{name}"


def _program(title: str, lines: Sequence[str], checked: str) -> str:
    head = [f"# {' '.join(title.split())}", "import torch", ""]
    return (
        "\n".join([*head, *lines, f"print({checked})", f"assert {checked}.isfinite().all()"]) + "\n"
    )


def _fails(program: str) -> bool:
    """Whether a program of ours ends at its assertion."""
    try:
        code = compile(program.replace("print(", "str("), "<reproduction>", "exec")
        with torch.enable_grad():
            unheard(lambda: exec(code, {}))
    except Exception as error:
        return isinstance(error, AssertionError)
    return False
