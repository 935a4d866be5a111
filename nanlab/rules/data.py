"""Values that were bad before the first operation: data, parameters, unwritten memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise, takewhile

import pandas as pd
import torch

from nanlab.analysis.provenance import MOVES, is_made_of_data, is_mask, skipped_by_hand
from nanlab.analysis.training import line_fields, optimizer_step_of
from nanlab.findings.fault import (
    SHOWN,
    Fault,
    bad_values,
    listed,
    match,
    nonfinite,
    owner_called,
    plural,
    verb,
)
from nanlab.findings.rule import Finding, Fix, Match, rule
from nanlab.operators import card, having
from nanlab.program.values import operand_of
from nanlab.topics.training import SCALE_FREE
from nanlab.trace import Trace
from nanlab.trace.op import OPTIMIZER, TURNED, Op, location, walk
from nanlab.trace.recording import Recording

GIVEN = ("data", "parameter", "buffer", "intended")  # origins outside of the program
_LOSSES = ("loss", "binary_cross_entropy", "kl_div", "huber")
_ADDS = having("adds")
_TERMS = _ADDS | having("element_loss") | {"sub"}
# Operators that stand for a layer of a model: what they read is an input, not a target.
_LAYERS = having("layer")
_SCORED = having("softmax", "attention", "exponential")


def _first_use(fault: Fault) -> tuple[int, int]:
    """(row, slot) of the operation that first used the value."""
    path = fault.origin.path
    use = fault.finding.position
    before = path[path.index(use) - 1] if use in path and path.index(use) else fault.position
    slots = (slot for source, slot in fault.recording.operands(use) if source == before)
    return use, next(slots, -1) if use >= 0 else -1


def _role(fault: Fault) -> str:
    """The role of the bad tensor: "parameter", "buffer", "target" or "input"."""
    if fault.kind in ("parameter", "buffer"):
        return _owned(fault)
    use, _ = _first_use(fault)
    if _is_written(fault):
        return "parameter"
    if _of_optimizer(fault) or _is_running(fault):
        return "buffer"
    if (
        _is_weight(fault)
        or not fault.recording.owned.keys().isdisjoint(fault.origin.path)
        or _is_parameter(fault)
    ):
        return "parameter"
    return "input" if _meets_parameter(fault, use) or _meets_no_loss(fault) else "target"


def _meets_no_loss(fault: Fault) -> bool:
    """Whether a program ended by a value that is compared with no prediction: it is no target."""
    recording, use = fault.recording, _first_use(fault)[0]
    if fault.origin.sink.kind != "output":
        return False
    rows = [p for p in fault.origin.path if p >= 0]
    losses = any(name in fault.op_at(p) for p in rows for name in _LOSSES)
    beside = (recording.at(p) for p, _ in recording.operands(use) if p not in fault.origin.path)
    return not losses and not any(row.node >= 0 or row.module for row in beside if row)


def _of_optimizer(fault: Fault) -> bool:
    """Whether an optimizer first used it, in place: a moment from a checkpoint."""
    use, slot = _first_use(fault)
    # the first operands of a call in place
    result = fault.recording.at(use + slot if slot >= 0 else -1)
    in_place = result.call == use and result.phase == OPTIMIZER and result.inplace
    return in_place and not _is_written(fault)


def _is_written(fault: Fault) -> bool:
    """Whether the program wrote the value into a parameter as it was."""
    rows = [p for p in fault.origin.path if p >= 0]
    moved = all(fault.op_at(p) in MOVES for p in rows)
    return fault.origin.sink.kind == "parameter" and bool(rows) and moved


def _shown(fault: Fault, role: str) -> str:
    """The name of the bad tensor in messages."""
    source = fault.recording.sources.get(fault.position)
    named = [source.name] if source is not None and source.name else []
    if not named and role in ("parameter", "buffer"):
        named = _name_of_owner(fault)
    if role == "buffer" and _of_optimizer(fault):
        role = "optimizer's state"
        states = (s for s in fault.recording.sinks if s.kind == "state")
        named = [s.name for s in states if s.position in fault.origin.path]
    if role in ("parameter", "buffer"):
        return owner_called(role, next(iter(named), ""))
    return " ".join(["the", role, *named[:1]])


def _name_of_owner(fault: Fault) -> list[str]:
    """The parameter or buffer that held the value where it was first used."""
    recording, (use, slot) = fault.recording, _first_use(fault)
    read = [source for source, at in recording.operands(use) if at == slot]
    for at in walk(read, recording.parents):
        row = recording.at(at)
        if at in recording.owned:
            return [recording.parameter_names[recording.owned[at]]]
        if row and not row.inplace and row.base_name not in MOVES:
            break
    return []


def _written(fault: Fault) -> Op | None:
    """The row in which the program wrote the value during the watch; None where it did not, or an
    optimizer did."""
    recording, use = fault.recording, _first_use(fault)[0]
    before = takewhile(lambda at: at != use, fault.origin.path)
    rows = [row for at in before if at >= 0 and (row := recording.at(at))]
    if not rows:
        return None
    last = next((each for each in reversed(rows) if each.inplace), rows[-1])
    return None if last.phase == OPTIMIZER else last


def _history(fault: Fault) -> tuple[str, int | None]:
    """How a parameter or buffer came by a value before its first use, in a sentence; and the row of
    the write in place that gave it, where the watch saw that."""
    recording, row, use = fault.recording, _written(fault), _first_use(fault)[0]
    file, line, _ = ("", 0, "") if row is None else recording.line_at(row.place)
    if row is None or not line:
        return "It was already there when the watch began.", None
    if not row.inplace or not 0 <= row.position < use:
        return f"It was written at {location(file, line)}.", None
    used, at, _ = recording.line_at(recording.at(use).place)
    return f"It was written here, and first used at {location(used, at)}.", row.position


def _is_weight(fault: Fault) -> bool:
    """Whether a layer on the path read the value as its weight."""
    path = fault.origin.path
    for before, after in pairwise(path):
        slots = card(fault.op_at(after)).weights
        if slots and any(
            s == before and slot in slots for s, slot in fault.recording.operands(after)
        ):
            return True
    return False


def _is_running(fault: Fault) -> bool:
    """Whether a batch norm first used it, as running statistics."""
    use, slot = _first_use(fault)
    count = len(fault.recording.operands(use))
    return fault.op_at(use) == "native_batch_norm" and slot >= count - 2 > 0


def _owned(fault: Fault) -> str:
    if _is_running(fault) or fault.kind == "buffer":
        return "buffer"
    known = "buffer" in fault.recording.parameter_kinds and fault.recording.training.parameters
    made_here = fault.position >= 0 and known
    return "buffer" if made_here and not _is_parameter(fault) else "parameter"


def _is_parameter(fault: Fault) -> bool:
    return not {step.value for step in fault.recording.training.parameters}.isdisjoint(
        fault.origin.path
    )


def _meets_parameter(fault: Fault, use: int) -> bool:
    """Whether the value passes through the model on its way to the loss."""
    path = list(fault.origin.path)
    rows = [p for p in (path[path.index(use) :] if use in path else path) if p >= 0]
    if rows and any(name in fault.op_at(rows[0]) for name in _LOSSES):
        return False
    if rows and len(fault.recording.operands(rows[0])) > 1:  # part of scores
        if any(fault.op_at(p) in _SCORED for p in rows[1:]):
            return True
    return any(fault.op_at(p) in _LAYERS or _reads_parameter(fault, p) for p in rows)


def _reads_parameter(fault: Fault, position: int) -> bool:
    for source, _ in fault.recording.operands(position):
        known = fault.recording.sources.get(source)
        outside = known is not None and known.kind in ("parameter", "buffer")
        updated = fault.recording.at(source).phase == OPTIMIZER
        if outside or updated or source in fault.recording.owned:
            return True
    return False


def _counts(fault: Fault) -> tuple[int, int, int]:
    """(NaN, infinities, elements) of the bad tensor."""
    path = fault.origin.path
    use = fault.finding.position
    # what was moved, not computed
    before = path[: path.index(use)] if use in path and path.index(use) else path[:1]
    return _counts_among(fault, before)


def _counts_among(fault: Fault, rows: Sequence[int]) -> tuple[int, int, int]:
    """(NaN, infinities, elements) of the last of these rows that is bad."""
    shown = [fault.recording.stats(p) for p in rows]
    stats = next((s for s in reversed(shown) if s is not None and s.nonfinite), None)
    return (stats.nan, stats.posinf + stats.neginf, stats.numel) if stats is not None else (0, 0, 0)


def _came_with_data(fault: Fault) -> bool:
    """Whether it is data, or an infinite array that goes straight into a layer or loss."""
    if fault.kind != "intended":
        return fault.negative_determinant < 0
    source = fault.recording.sources.get(fault.origin.path[0])
    op = fault.op_at(fault.finding.position)
    if (
        source is None
        or not source.shape
        or (is_mask(fault.recording, source.number) and op not in _LAYERS)
    ):
        return False
    return op in _LAYERS or op in ("sub", "rsub") or any(name in op for name in _LOSSES)


def _data(fault: Fault, role: str, nan: bool | None) -> Match | None:
    if not _came_with_data(fault) or _role(fault) != role:
        return None
    nans, infinities, numel = _counts(fault)
    if nan is not None and nan != bool(nans):
        return None
    if _is_written(fault):
        at = max(fault.origin.path)
        held = bad_values(*_counts_among(fault, [at])[:2])
        name = owner_called("parameter", fault.origin.sink.name)
        title = f"the program wrote {held} into {name}"
        return Match(title, phase="optimizer", position=at)
    used = next((at for at in (fault.position, fault.finding.position) if at >= 0), None)
    born = fault.finding.step if used is None else fault.recording.step_of(used)
    first = fault.recording.step_of(0)
    position: int | None = None
    if role in ("parameter", "buffer") and born <= first:
        text, position = _history(fault)
    else:
        shown, number = fault.finding.step, fault.recording.first_step
        text = f"It arrived in step {born + number}" + (
            f" and showed in step {shown + number}." if shown > born else "."
        )
    phase = (
        "init" if role in ("parameter", "buffer") else "data" if fault.kind == "intended" else None
    )
    evidence, samples = _held(fault)
    return Match(
        f"{_shown(fault, role)} holds {bad_values(nans, infinities)} among"
        f" {plural(numel, 'value')}, first used by {fault.finding.op}",
        evidence,
        explanation=text,
        samples=samples if role in ("input", "target") else [],
        phase=phase,
        position=position,
    )


def _held(fault: Fault) -> tuple[pd.DataFrame, list[int]]:
    """The bad elements of the tensor as it was first used, and the samples that they are in; none
    where the step cannot be run again."""
    use, slot = _first_use(fault)
    if use < 0 or slot < 0:
        return pd.DataFrame(), []
    try:
        held = operand_of(fault.recording, use, slot).detach().cpu()
        where = nonfinite(held).nonzero()
    except Exception:  # the step is no longer kept, or holds tensors of another kind
        return pd.DataFrame(), []
    shown = [tuple(each) if len(each) != 1 else each[0] for each in where[:SHOWN].tolist()]
    values = held[tuple(where[:SHOWN].T)].reshape(-1).tolist()
    cells = [str(value) if isinstance(value, complex) else value for value in values]
    frame = pd.DataFrame({"index": shown, "value": cells})
    frame.attrs["total"] = len(where)
    batched = held.dim() > 0 and held.shape[0] == fault.batch > 1
    return frame, sorted({*where[:, 0].tolist()}) if batched else []


_given = partial(rule, family="context", origins=GIVEN)


@_given(
    example="""
        x = torch.tensor([[1.0, float("nan")]])
        w = torch.ones(2, 1, requires_grad=True)
        loss = (x @ w).sum()  # here
        loss.backward()
    """,
    fix={'float("nan")': "2.0"},
)
def nan_in_input(fault: Fault) -> Match | None:
    """The data held NaN before the model saw it: a missing value, or 0/0 in preprocessing.

    Impute or drop such samples where the data is loaded, and check there with torch.isfinite.
    """
    return _data(fault, "input", True)


@rule(
    example="""
        x = torch.ones(2, requires_grad=True)
        rate = float("nan")
        loss = (x * rate).sum()  # here
        loss.backward()
    """,
    fix={'float("nan")': "0.5"},
    family="context",
    origins=("operation",),
)
def nan_in_input_(fault: Fault) -> Match | None:
    """A Python number of the program is NaN: 0/0 or inf - inf in plain arithmetic, a statistic of
    nothing, or a missing value.

    Look where the number comes from, and check it there with math.isfinite.
    """
    stats = fault.recording.stats(fault.position)
    known = fault.row.literal and stats is not None and stats.nan > 0
    if not known or any(p in fault.recording.bad for p in fault.parents(fault.position)):
        return None
    numbers = [v for v in fault.kept.args if isinstance(v, float)] if fault.kept else []
    if not any(map(math.isnan, numbers)):
        return None
    return match(fault, f"a number that {fault.name} was given is NaN", "", fault.named_operands)


@_given(
    example="""
        x = torch.from_numpy(np.array([[1.0, np.inf]], np.float32))
        w = torch.ones(2, 1, requires_grad=True)
        loss = (x @ w).sum()  # here
        loss.backward()
    """,
    fix={"torch.from_numpy(np.array([[1.0, np.inf]], np.float32))": "torch.tensor([[1.0, 2.0]])"},
)
def inf_in_input(fault: Fault) -> Match | None:
    """The data held an infinity before the model saw it: a log of zero, a division by zero, or an
    overflow in preprocessing.

    Clip or drop such values where the data is loaded. A saturating function (tanh, sigmoid) may
    hide one from the loss; in backward it meets a gradient of 0, and 0 × inf is NaN.
    """
    return _data(fault, "input", False)


@_given(
    example="""
        w = torch.ones(2, requires_grad=True)
        y = torch.tensor([1.0, float("nan")])
        loss = F.mse_loss(w * 2, y)  # here
        loss.backward()
    """,
    fix={'float("nan")': "3.0"},
)
def nan_in_target(fault: Fault) -> Match | None:
    """The target held NaN or an infinity: a missing label, or a label computed as 0/0.

    Select the other samples for the loss; multiplying by a mask does not remove a NaN.
    """
    return _data(fault, "target", None)


@_given(
    example="""
        layer = nn.Linear(2, 1)
        with torch.no_grad():
            layer.weight[0, 0] = float("nan")  # here
        loss = layer(torch.ones(1, 2)).sum()
        loss.backward()
    """,
    fix={'with torch.no_grad():\n    layer.weight[0, 0] = float("nan")\n': ""},
)
def poisoned_parameter(fault: Fault) -> Match | None:
    """A parameter was already NaN or infinite, so every output of its layer is.

    Neither a loss scale nor a smaller learning rate helps: load a good checkpoint or initialise
    the parameter again, and find the step that poisoned it.
    """
    return _data(fault, "parameter", None)


@_given(
    example="""
        norm = nn.BatchNorm1d(2).eval()
        norm.running_var[0] = float("nan")  # here
        loss = norm(torch.ones(1, 2)).sum()
        loss.backward()
    """,
    fix={'norm.running_var[0] = float("nan")\n': ""},
)
def poisoned_buffer(fault: Fault) -> Match | None:
    """A buffer (running statistics, a table) was already NaN or infinite.

    One bad batch stays in the running statistics of batch norm for good, even if its step was
    skipped: reset them. It also stays in the moments of an optimizer: make a new one.
    """
    return _data(fault, "buffer", None)


@rule(
    example="""
        w = torch.ones(2, requires_grad=True)
        w.grad = torch.tensor([1.0, float("nan")])
        (w * 2).sum().backward()  # here
    """,
    fix={'torch.tensor([1.0, float("nan")])': "None"},
    family="context",
    more_specific_than=("context", "optimizer-arithmetic"),
    origins=(*GIVEN, "operation"),
)
def poisoned_gradient(fault: Fault) -> Match | None:
    """`.grad` was already bad when it was used, or when backward added to it: an earlier pass was
    not cleared, or the program itself wrote there.

    Call optimizer.zero_grad() before backward, also after a step skipped for its bad loss.
    """
    used = bool(fault.recording.training.optimizer_steps)
    if used and (written := _written_gradient(fault)) is not None:
        return written
    if fault.kind != "data" or fault.origin.sink.kind != "gradient":
        return None
    kept = _kept_from_a_skipped_step(fault)
    row = fault.recording.at(fault.finding.position if kept is None else kept)
    if not row.backward or row.node >= 0 or row.base_name not in _ADDS:
        return None
    if kept is None and fault.position not in fault.recording.parents(row.position):
        return None
    held_by = fault.origin.path[-2:-1] if kept is not None else ()
    nans, infinities, numel = _counts_among(fault, held_by) if held_by else _counts(fault)
    name = fault.origin.sink.name or "a parameter"
    held = bad_values(nans, infinities) or "values that are not finite"
    title = (
        f"the gradient of {name} held {held} among {plural(numel, 'value')} before backward added"
        " to it"
    )
    if kept is None:
        return Match(title, phase="backward")
    step = fault.recording.step_of(kept)
    number = step + fault.recording.first_step
    title += f": it was left over from step {number - 1}, which was skipped"
    return Match(title, phase="backward", position=kept, step=step)


def _written_gradient(fault: Fault) -> Match | None:
    """What the program, not backward, wrote into a gradient that an optimizer then used."""
    recording = fault.recording
    owners = {s.used: s.owner for s in recording.training.parameters if s.used is not None}

    def onward(at: int) -> list[int]:
        return [p for p in recording.parents(at) if p in recording.bad]

    turned = [fault.position] if fault.row.status == TURNED and fault.in_update else []
    used = next((p for p in (*fault.origin.path, *walk(turned, onward)) if p in owners), None)
    if used is None:
        return None
    before = [*walk([used], onward)][::-1]
    rows = [row for p in before if (row := recording.at(p))]
    moved = all(fault.op_at(row.position) in MOVES or row.literal for row in rows)
    if not rows or not moved or any(row.backward or row.phase == OPTIMIZER for row in rows):
        return None
    nans, infinities, numel = _counts_among(fault, before)
    name = recording.parameter_names[owners[used]]
    return Match(
        f"the program wrote {bad_values(nans, infinities)} into the gradient of {name}, of"
        f" {plural(numel, 'value')}",
        phase="optimizer",
        position=rows[-1].position,
    )


def _kept_from_a_skipped_step(fault: Fault) -> int | None:
    """The row that added to a skipped step's gradient; None where there is none."""
    path, recording = fault.origin.path, fault.recording
    if len(path) < 2 or path[-2] < 0:
        return None
    here, before = path[-1], path[-2]
    skipped = recording.step_of(before) == recording.step_of(here) - 1 and skipped_by_hand(
        recording, before
    )
    return here if skipped else None


@rule(
    example="""
        memory = torch.empty(4)  # here
        memory.numpy()[:] = float("nan")  # stands for what happened to be there
        w = torch.ones(4, requires_grad=True)
        (memory * w).sum().backward()
    """,
    fix="""
        memory = torch.zeros(4)
        w = torch.ones(4, requires_grad=True)
        (memory * w).sum().backward()
    """,
    family="context",
    origins=("uninitialised",),
)
def uninitialised_memory(fault: Fault) -> Match | None:
    """`torch.empty` does not initialise its memory, which may hold NaN or infinities.

    Use torch.zeros or torch.full, or initialise the parameter (torch.nn.init) before its first
    use.
    """
    path = fault.finding.path
    bad = next((r for r in path if r["nonfinite"]), {"nonfinite": 0, "numel": 0})
    return Match(
        f"{plural(bad['nonfinite'], 'element')} of {bad['numel']:,}"
        f" {verb(bad['nonfinite'], 'was', 'were')} read from uninitialised memory of {fault.name}"
    )


# What led to an origin: data alone, or an update that moved a parameter far.

MOST_VISITS = 4000
SMALL = 0.1  # a parameter below this is taken to be of this size: many begin at zero
# change of a parameter in one update, relative to its size before, from which on it was thrown
THROWN = 1.0
ROSE = 10.0  # the same for the steps of the run-up together
SHOWN_STEPS = 6  # of the run-up
MOST_BESIDE = 1e-3  # of the largest term of a sum: what is smaller does not make it large


def with_data(fault: Fault, finding: Finding) -> Finding:
    """The finding; where no parameter feeds the operands, it blames the data."""
    if finding.phase != "forward" or not is_made_of_data(fault.recording, fault.position):
        return finding
    samples = [str(each) for each in finding.samples]
    named = f" ({verb(len(samples), 'sample', 'samples')} {listed(samples, 5)})"
    drawn = _drawn_at(fault)
    blamed = f"the random numbers of line {drawn} are" if drawn else "the data is"
    text = (
        f"No parameter feeds its operands: {blamed} to blame"
        f"{named if finding.samples else ''}, not the model."
    )
    return replace(finding, explanation=f"{finding.explanation} {text}".strip())


def _drawn_at(fault: Fault) -> int:
    """The line of a module that drew the random numbers, where an operation is made of them alone;
    0: none did."""
    recording, lines = fault.recording, set[int]()
    for at in walk([fault.position], recording.parents, MOST_VISITS):
        source, row = recording.sources.get(at), recording.op(at)
        if source is not None and (source.kind == "data" or len(source.shape)):
            return 0
        call = recording.program.call_at(at) if row is not None else None
        if call is not None and torch.Tag.nondeterministic_seeded in call.func.tags:
            lines.add(row.line if row is not None and row.module else 0)
        elif source is None and not recording.parents(at):
            return 0
    return min(lines, default=0)


_CLIPPED = Fix(
    "clip the norm of the gradients before the update",
    "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
)


def thrown(trace: Trace, fault: Fault, finding: Finding) -> Finding | None:
    """The last updates that moved a parameter behind an operation far; None: none did."""
    recording = trace.recording
    if fault.position < 0 or finding.phase not in ("forward", "backward") or finding.step < 1:
        return None
    frame = trace.parameters
    number = finding.step + recording.first_step
    before = frame[frame["step"] == number - 1].dropna(subset=["update_absmax", "value_absmax"])
    names = _parameters_behind(fault, finding.cause)
    before = before[before["parameter"].isin(names)]
    first, last = max(number - SHOWN_STEPS, recording.first_step), number - 1
    far = []
    for name, change in zip(before["parameter"].tolist(), before["update_absmax"], strict=True):
        was, began = (_before(trace, name, step) for step in (last, first))
        risen = max(was, change) / max(SMALL, began) if first < last else 0.0
        jumped = change / max(SMALL, was)
        far.append((max(jumped / THROWN, risen / ROSE), name, change, was, began))
    share, name, change, was, began = max(far, default=(0.0, "", 0.0, 0.0, 0.0))
    if share < 1.0:
        return None
    at_once = change >= THROWN * max(SMALL, was)
    owner = recording.parameter_names.index(name)
    found = optimizer_step_of(recording, owner, _start(trace, finding.step))
    if found is None:
        return None
    step, rate = found
    at = f" at a learning rate of {rate:g}" if rate is not None else ""
    series = frame[frame["parameter"] == name]
    series = series[(series["step"] < number) & (series["step"] >= number - SHOWN_STEPS)]
    return Finding(
        cause="learning-rate",
        severity="warning",
        title=(
            f"the update of step {last} changed {name} by up to {change:.3g}{at}; "
            f"before, it was at most {was:.3g}"
            if at_once
            else f"the updates of steps {first} to {last} changed {name} by up to {change:.3g}"
            f" each{at}; before, it was at most {began:.3g}"
        ),
        explanation=(
            f"{finding.op} on line {finding.line} failed in the next step. Its operands depend on"
            " this parameter: a smaller learning rate, a warm-up or a clipped gradient norm keeps"
            " them in range."
        ),
        phase="optimizer",
        op=step.writer,
        step=finding.step - 1,
        **line_fields(recording, step.line),
        symptom=finding.symptom,
        # the parameter's size, gradient and update in the steps before
        evidence=series[
            ["step", "value_absmax", "gradient_absmax", "update_absmax", "lr"]
        ].reset_index(drop=True),
        fixes=[] if step.optimizer in SCALE_FREE else [_CLIPPED],
        position=step.position,
    )


def _before(trace: Trace, name: str, step: int) -> float:
    """Largest magnitude of a parameter before a step's update: after the one before, else as the
    update read it; the least that it may have been where neither is known."""
    frame, recording = trace.parameters, trace.recording
    rows = frame[(frame["parameter"] == name) & (frame["step"] <= step)]
    known = rows["value_absmax"].dropna()
    if len(known) > 1:
        return float(known.iloc[-2])
    written = (
        entry.value
        for entry in recording.training.parameters
        if recording.parameter_names[entry.owner] == name and entry.value is not None
    )
    at = next(written, None)
    while at is not None and (row := recording.op(at)) is not None and row.phase == OPTIMIZER:
        at = next((source for source, _ in recording.own_operands(at)), None)
    stats = recording.stats(at) if at is not None else None
    if stats is not None and stats.known:
        return float(stats.largest)
    change = rows["update_absmax"].dropna()
    return (
        abs(float(known.iloc[-1]) - float(change.iloc[-1])) if len(known) and len(change) else 0.0
    )


def _start(trace: Trace, step: int) -> int:
    starts = trace.recording.starts
    return starts[step] + 1 if step < len(starts) else trace.recording.end


def _largest_of(recording: Recording, terms: Sequence[int]) -> list[int]:
    """The terms of a sum that count next to the largest of them."""
    known = {at: recording.stats(at) for at in terms}
    sizes = {at: math.inf if s is None or not s.known else s.largest for at, s in known.items()}
    most = max((size for size in sizes.values() if size < math.inf), default=0.0)
    return [at for at in terms if sizes[at] >= MOST_BESIDE * most]


def _parameters_behind(fault: Fault, cause: str) -> set[str]:
    """Names of the parameters behind the operands of an operation that make it fail, in its step:
    of a quotient by 0 the divisor, of what grew too large the operands that did."""
    recording = fault.recording
    owner_of = {
        step.value: step.owner for step in recording.training.parameters if step.value is not None
    }
    frame = fault.trace.parameters
    names = set()

    def onward(at: int) -> Sequence[int]:
        row = recording.at(at)
        if at in owner_of or not row or row.phase == OPTIMIZER:
            return []
        return _largest_of(recording, row.inputs) if row.base_name in _TERMS else row.inputs

    divisor = card(fault.name).divisor if cause == "div-by-zero" and not fault.backward else None
    slots = {slot: source for source, slot in recording.own_operands(fault.position)}
    start = fault.position if divisor is None else slots.get(divisor, fault.position)
    for at in walk([start], onward, MOST_VISITS):
        source = recording.sources.get(at) if at < 0 else None
        if at in owner_of:
            names.add(recording.parameter_names[owner_of[at]])
        elif source is not None and source.kind == "parameter":
            names.add(source.name)
        elif (row := recording.at(at)).phase == OPTIMIZER:  # the step that wrote it was folded
            names.update(frame[frame["numel"] == math.prod(row.shape)]["parameter"].unique())
    return names
