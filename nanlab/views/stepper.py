"""The stepper: a walk through the backward pass, with a sentence about each node."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pandas as pd
import torch
import traitlets

from nanlab.analysis.graph import ForwardTensor, forward_tensors
from nanlab.analysis.precision import format_bins
from nanlab.trace import Place, Trace, culprit_place
from nanlab.trace.op import location
from nanlab.trace.recording import ACCUMULATES
from nanlab.views.charts import browser_histogram, trace_row
from nanlab.views.columns import (
    BAD,
    STATUSES,
    as_typed,
    bad_counts,
    blocks,
    edge_bytes,
    excerpt,
    exponents,
    graph_columns,
    known,
    passes,
    rows_of,
)
from nanlab.views.html import badge, code, escape, near_end, number, plural
from nanlab.views.widget import View, below, script, style


def story(row: pd.Series[Any], numel: int = 0, forward_bad: int = 0) -> str:
    """A sentence about a row of ``trace.backward``.

    numel: elements of its outgoing gradient, 0 if unknown. forward_bad: non-finite values in the
    forward result.
    """
    if row.get("name") == ACCUMULATES:
        return _received(row)
    nan_in, inf_in, nan_out, inf_out = (
        _count(row, f"grad_{part}") for part in ("in_nan", "in_inf", "out_nan", "out_inf")
    )
    came, went = _bad(nan_in, inf_in), _bad(nan_out, inf_out)
    if not came:
        return _born(row, nan_out, inf_out, forward_bad) if went else _finite(row, numel)
    if not went:
        return f"Healed: {came} came in, and every outgoing value is finite."
    if nan_out and not nan_in:
        return f"Turned: {came} came in and became {went}; 0 × inf and inf − inf are NaN."
    return f"Carried: {came} came in, {went} went on. Its origin is further up."


def _received(row: pd.Series[Any]) -> str:
    """A sentence about the gradient that reaches a parameter."""
    name = str(row.get("parameter") or "a leaf tensor")
    nan, inf = _count(row, "grad_in_nan"), _count(row, "grad_in_inf")
    if nan + inf:
        return f"{name} receives {_bad(nan, inf)}: the optimizer would write them."
    rms = row.get("grad_in_rms")
    size = "" if rms is None or pd.isna(rms) else f", rms {number(float(rms))}"
    return f"{name} receives its gradient: every value is finite{size}."


def _born(row: pd.Series[Any], nan: int, inf: int, forward_bad: int) -> str:
    if forward_bad or row.get("status") == "carried":
        bad = plural(forward_bad, "non-finite value")
        held = f"; the forward result already holds {bad}" if forward_bad else ""
        began = "Born here" if row.get("status") == "born" else "Carried from forward"
        return f"{began}: finite gradients came in, {_bad(nan, inf)} went out{held}."
    zeros = _count(row, "grad_in_zero")
    if nan and not inf and zeros:
        told = f"{_bad(nan, 0)}; {plural(zeros, 'zero')} came in"
        return f"Born here: incoming 0, local derivative inf, product NaN ({told})."
    if nan and inf and zeros:
        return (
            "Born here: the local derivative is inf. Times an incoming 0 it is NaN, else inf"
            f" ({_bad(nan, inf)})."
        )
    return f"Born here: a finite gradient came in, {_bad(nan, inf)} went out."


def _finite(row: pd.Series[Any], numel: int) -> str:
    flushed, zeros = _count(row, "fp16_zero"), _count(row, "grad_out_zero")
    told = "Finite in, finite out"
    if numel and zeros == numel:
        return f"{told}; every outgoing value is 0, so no signal passes."
    if not pd.isna(row["gain"]):
        told += f"; rms × {float(row['gain']):.3g}"
    if flushed:
        share = f" ({100 * flushed / numel:.3g} %)" if numel else ""
        told += f"; float16 would flush {plural(flushed, 'value')}{share} to zero"
    return told + "."


def _bad(nan: int, inf: int) -> str:
    return " and ".join(f"{n:,} {kind}" for n, kind in ((nan, "NaN"), (inf, "inf")) if n)


def _count(row: pd.Series[Any], name: str) -> int:
    value = row.get(name)
    return 0 if value is None or pd.isna(value) else int(value)


# What is told of one backward node: its story, its source, the tensors of its forward
# operation.

STATISTICS = ("zero", "nan", "inf", "min", "max", "rms")
# columns of the static picture's table that a page has no room for; the chart shows the sizes
LEFT_OUT = ["step", *(f"grad_{name}" for name in ("in_rms", "out_rms", "out_max", "out_zero"))]
LEFT_OUT += ["fp16_zero", "node"]
NOT_KEPT = {"no": "not kept", "unknown": "not known"}


def node_detail(trace: Trace, row: pd.Series[Any]) -> dict[str, Any]:
    """Details of a ``trace.backward`` row for the browser, as JSON."""
    into, out = (trace_row(trace, row.get(f"position_{side}")) for side in ("in", "out"))
    tensors = sorted(tensors_of(trace, row), key=lambda tensor: tensor.kept != "yes")
    return {
        "story": told(trace, row),
        "source": [list(each) for each in source_of(trace, row)],
        "tensors": [tensor_texts(trace, tensor) for tensor in tensors],
        "grad_in": browser_histogram(trace, into),
        "grad_out": browser_histogram(trace, out),
    }


def told(trace: Trace, row: pd.Series[Any]) -> str:
    """A sentence about a row of ``trace.backward``, the same in every view."""
    out = trace_row(trace, row.get("position_out"))
    numel = int(known(out["numel"]) or 0) if out is not None else 0
    return story(row, numel, _bad_from_forward(trace, row))


def _bad_from_forward(trace: Trace, row: pd.Series[Any]) -> int:
    """Non-finite values in the forward results of the node."""
    ops = trace.ops
    same = (ops["node"] == row["node"]) & (ops["phase"] == "forward") & (ops["step"] == row["step"])
    made = ops[same.fillna(False).to_numpy(dtype=bool)].head(3)
    return int(bad_counts(made).sum())


def source_of(trace: Trace, row: pd.Series[Any]) -> list[tuple[int, str]]:
    """The forward line with two neighbours on either side, if known."""
    if pd.isna(row["line"]) or not row["file"]:
        return []
    line = int(row["line"])
    return excerpt(trace, row["file"], line) or [(line, as_typed(str(row["source"] or "")))]


def tensors_of(trace: Trace, row: pd.Series[Any]) -> list[ForwardTensor]:
    """Operands and results of the forward operation, with those that the node saves."""
    return (
        [] if pd.isna(row["node"]) else forward_tensors(trace, int(row["node"]), str(row["name"]))
    )


def tensor_texts(trace: Trace, tensor: ForwardTensor) -> dict[str, Any]:
    """A tensor: saved attribute, name, numbers as text, exponents as blocks."""
    stats, kept = tensor.stats, tensor.kept == "yes"
    if stats is not None:
        values = asdict(stats) | {"inf": stats.posinf + stats.neginf}
    else:
        values = dict.fromkeys(STATISTICS)
    told = tensor.number if stats is not None else None
    bins = exponents(trace, told) if told is not None else None
    return {
        "kept": kept,
        "as": tensor.attribute or "kept" if kept else NOT_KEPT[tensor.kept],
        "name": described(tensor),
        "shape": "×".join(map(str, tensor.shape)) or "scalar",
        "numbers": [number(values[name]) for name in STATISTICS],
        "blocks": blocks(bins) if bins is not None else "",
        "dtype": tensor.dtype,
    }


def described(tensor: ForwardTensor) -> str:
    """A tensor's name and origin: ``self, exp #12``; ``mat2, parameter 0.weight``."""
    if tensor.kind != "operand":
        return tensor.name or tensor.kind
    place = f" #{tensor.number}" if tensor.number is not None and tensor.number >= 0 else ""
    return ", ".join(part for part in (tensor.name, f"{tensor.origin}{place}") if part)


# A widget that walks the backward pass as the autograd engine executed it.


class Stepper(View):
    """Steps through a backward pass; the selection can be read in the next cell.

    ``stepper.position`` is the place in the pass (0 is the first node executed) and may be set;
    ``stepper.node`` is the autograd sequence number, ``stepper.row`` the row of ``trace.backward``.
    """

    _esm = script("stepper")
    _css = style("stepper")

    statuses = traitlets.List(STATUSES).tag(sync=True)
    half = traitlets.Dict().tag(sync=True)  # the limits of float16, as histogram bins
    # step, backward_pass, nodes, worst status of each pass
    passes: traitlets.List[Any] = traitlets.List().tag(sync=True)
    chosen = traitlets.Int(0).tag(sync=True)  # which of them is shown
    graph = traitlets.Dict().tag(sync=True)  # its nodes, as columns
    edges = traitlets.Bytes(b"").tag(sync=True)  # int32 pairs of positions
    position = traitlets.Int(0).tag(sync=True)
    detail = traitlets.Dict().tag(sync=True)  # what the selected node is shown with
    # text: where it began; chosen, position: its node, if it has one
    culprit = traitlets.Dict().tag(sync=True)
    # counts how often the page asked for the culprit's pass
    wanted = traitlets.Int(0).tag(sync=True)

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._rows = trace.backward.iloc[:0]
        found = passes(trace.backward)
        worst = [number for number, each in enumerate(found) if each["worst"] in BAD]
        origin = self._origin(found)
        first = origin.get("chosen", worst[0] if worst else max(0, len(found) - 1))
        half = asdict(format_bins(torch.float16))
        shown = self._pass(found[first], origin.get("position")) if found else {}
        super().__init__(passes=found, half=half, chosen=first, culprit=origin, **shown)
        self.observe(self._show_pass, "chosen")
        self.observe(self._show_position, "position")
        self.observe(lambda change: self._show_culprit(), "wanted")
        trace.selection.follow(self._follow)

    @property
    def row(self) -> pd.Series[Any] | None:
        """The selected row of ``trace.backward``; None where no backward pass was recorded."""
        return self._rows.iloc[self.position] if len(self._rows) else None

    @property
    def node(self) -> int | None:
        """The autograd sequence number of the selected node; None where there is none."""
        row = self.row
        return None if row is None or pd.isna(row["node"]) else int(row["node"])

    @traitlets.validate("position")
    def _in_range(self, proposal: Any) -> int:
        return below(proposal, len(self._rows), "a position", "try stepper.position = 0")

    @traitlets.validate("chosen")
    def _is_a_pass(self, proposal: Any) -> int:
        return below(proposal, len(self.passes), "a pass", "see stepper.passes")

    def _show_pass(self, change: Any) -> None:
        with self.hold_sync():
            for name, value in self._pass(self.passes[self.chosen]).items():
                setattr(self, name, value)

    def _show_position(self, change: Any) -> None:
        self.detail = self._detail(self.position)
        if not self._following and (position := self._own_row()) is not None:
            with self._led():
                self._trace.at = position

    def _own_row(self) -> int | None:
        """The row of ``trace.ops`` for the node: its own work, else its forward operation."""
        row, ops = self.row, self._trace.ops
        if row is None:
            return None
        known = [
            int(row[side]) for side in ("position_out", "position_in") if not pd.isna(row.get(side))
        ]
        known = [position for position in known if position in ops.index]
        if self.node is None:
            return next(iter(known), None)
        same = (ops["node"] == self.node) & (ops["step"] == row["step"])
        own = ops.index[same.fillna(False).to_numpy(dtype=bool)].tolist()
        return next(
            (position for position in [*known, *own] if position in own), next(iter(known), None)
        )

    def _show_culprit(self) -> None:
        if "position" in self.culprit:
            self._go(self.culprit["chosen"], self.culprit["position"])

    def _go(self, chosen: int, position: int) -> None:
        with self.hold_sync():
            self.chosen = chosen
            self.position = position

    def _follow(self, place: Place) -> None:
        """Follow a selection made elsewhere, if it is a node of a backward pass."""
        found = None if self._following else self._node_of(place, self.passes)
        if found is None:
            return
        with self._led():
            self._go(*found)

    def _node_of(self, place: Place, passes: list[dict[str, Any]]) -> tuple[int, int] | None:
        """The pass and node of a row of ``trace.ops``; None if unknown."""
        frame = self._trace.backward
        same = (frame["position_out"] == place) | (frame["position_in"] == place)
        if place.node is not None:
            same = (frame["node"] == place.node) & (frame["step"] == place.step)
        found = frame[same.fillna(False).to_numpy(dtype=bool)]
        for at, each in enumerate(passes):
            rows = rows_of(found, each["step"], each["backward_pass"])
            if len(rows):
                all_ = rows_of(frame, each["step"], each["backward_pass"])
                return at, int(all_.index.get_indexer(rows.index)[0])
        return None

    def _origin(self, passes: list[dict[str, Any]]) -> dict[str, Any]:
        """The culprit as a sentence, with its node in these passes."""
        found = self._trace.culprit
        if found is None:
            return {}
        place, told = culprit_place(self._trace), near_end(location(found.file, found.line))
        where = f"{found.phase} in {told}" if told else found.phase
        at = None if place is None else self._node_of(place, passes)
        if at is None:
            kept = any(each["step"] == found.step for each in passes)
            outside = ", outside of the backward pass"
            if found.phase == "backward":
                outside = "" if kept else ", whose backward pass is no longer kept"
            return {"text": f"The fault began {where}, {found.when}{outside}."}
        met = "; backward meets it here" if place is not None and place.phase == "forward" else ""
        return {
            "text": f"Culprit: born {where}, {found.when}{met}.",
            "chosen": at[0],
            "position": at[1],
        }

    def _pass(self, chosen: dict[str, Any], position: int | None = None) -> dict[str, Any]:
        """The state that shows a pass at a node, by default its first bad one."""
        step, number = chosen["step"], chosen["backward_pass"]
        self._rows = rows_of(self._trace.backward, step, number)
        position = self._first_bad() if position is None else position
        return {
            "graph": graph_columns(self._rows, self._numel()),
            "edges": edge_bytes(self._trace.edges, self._rows, step, number),
            "position": position,
            "detail": self._detail(position),
        }

    def _first_bad(self) -> int:
        return next((i for i, status in enumerate(self._rows["status"]) if status in BAD), 0)

    def _numel(self) -> pd.Series[int]:
        """Elements of each outgoing gradient; 0 where its row is not in ``trace.ops``."""
        if "position_out" not in self._rows:
            return pd.Series(0, index=self._rows.index)
        known = self._trace.ops.set_index("position")["numel"]
        known = known[~known.index.duplicated()]
        return known.reindex(self._rows["position_out"]).fillna(0)

    def _detail(self, position: int) -> dict[str, Any]:
        return {"position": position} | node_detail(self._trace, self._rows.iloc[position])

    def static_text(self) -> str:
        """The pass and its first bad node in one line."""
        if not self.passes:
            return "Backward stepper: no backward pass was recorded"
        row = self._rows.iloc[self._first_bad()]
        nodes = plural(len(self._rows), "node")
        if row["status"] not in BAD:
            return f"Backward stepper: {nodes}, all finite"
        return (
            f"Backward stepper: {nodes}, first bad one {row['name']} at"
            f" {location(row['file'], row['line'])}"
        )

    def static_html(self) -> str:
        """The first bad node with its source, the gain along the pass, and the rows around it."""
        if not self.passes:
            return f"<div>{escape(self.static_text())}</div>"
        from nanlab.views.details import gain_chart
        from nanlab.views.tables import static_table

        at = self._first_bad()
        row = self._rows.iloc[at]
        around = self._rows.iloc[max(0, at - 4) : at + 6].drop(columns=LEFT_OUT, errors="ignore")
        words = escape(told(self._trace, row))
        head = (
            f"<div>{escape(self.static_text())} {badge(str(row['status']))}</div><div>{words}</div>"
        )
        lines = source_of(self._trace, row)
        source = code(lines, int(row["line"])) if lines else ""
        first, last = max(0, at - 4) + 1, max(0, at - 4) + len(around)
        part = f"nodes {first} to {last} of {len(self._rows):,}, in the order in which they ran"
        caption = part if len(around) < len(self._rows) else ""
        table = static_table(around, "backward", self._trace, in_order=True, caption=caption)
        return head + source + gain_chart(self._rows) + table


def stepper(trace: Trace) -> Stepper:
    """Walk the backward graph of a trace, node by node in the order of execution."""
    return Stepper(trace)
