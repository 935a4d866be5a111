"""The underflow explorer: each tensor's losses in low precision at each loss scale."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd
import torch
import traitlets

from nanlab.analysis.at_scale import AtScale, Counted, at_scale
from nanlab.analysis.precision import (
    LOSS_SCALES,
    CastShares,
    add_histograms,
    best_scale,
    cast_shares,
    format_bins,
)
from nanlab.analysis.signal_loss import first_losses, flushed_at
from nanlab.errors import NotReplayable, UsageError
from nanlab.operators import spoken
from nanlab.trace import Place, Trace
from nanlab.trace.op import module_name
from nanlab.views.charts import (
    before_rounding,
    browser_histogram,
    dense,
    exponents_chart,
    twin_for_browser,
    twin_histogram,
)
from nanlab.views.columns import floats, known
from nanlab.views.html import escape, number, plural, table
from nanlab.views.text import first_loss, loss_place, told
from nanlab.views.widget import View, below, script, style

FORMATS = (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
NARROW = [str(dtype).removeprefix("torch.") for dtype in FORMATS]
GONE = {"flushed": "zero", "overflowed": "infinite"}
MOST = 500  # tensors in the list


class UnderflowExplorer(View):
    """Explores the effect of a cast to low precision on each tensor, at each loss scale.

    It opens on the tensor where signal is lost first, if any. ``explorer.row`` is the row of
    ``trace.ops`` at hand, ``explorer.shares`` the counts for each chosen format,
    ``explorer.log2_scale`` the slider; ``selected``, ``chosen`` and ``log2_scale`` may be set.

    The counts are those of the step run again at the chosen scale; where it cannot be, they follow
    from the histogram of the run. The page shows the latter until the replay has answered, and asks
    for the next replay when it has the last: a slider that moves leaves no queue behind.
    """

    _esm = script("underflow")
    _css = style("underflow")

    # the limits of each format, as histogram bins
    formats: traitlets.List[Any] = traitlets.List().tag(sync=True)
    # label, histogram, twin, best, run_scale, scalable; by what float16 would lose
    tensors: traitlets.List[Any] = traitlets.List().tag(sync=True)
    # all gradients together: tensors, histogram, best, run_scale (None: not one for all steps)
    gradients = traitlets.Dict().tag(sync=True)
    # text: where half of a result is lost first; selected: its number
    first_loss = traitlets.Dict().tag(sync=True)
    left_out = traitlets.Int(0).tag(sync=True)  # tensors that did not fit into the list
    selected = traitlets.Int(0).tag(sync=True)  # which of ``tensors``
    chosen = traitlets.List(["float16"]).tag(sync=True)  # names of the formats that are drawn
    log2_scale = traitlets.Int(0).tag(sync=True)
    # selected and log2_scale that the page wants exact numbers of
    asked: traitlets.List[Any] = traitlets.List().tag(sync=True)
    # of, reason; where that is empty data and twin, as in ``tensors``, and shares by format
    replayed = traitlets.Dict().tag(sync=True)

    def __init__(self, trace: Trace) -> None:
        ordered = by_loss(trace)
        self.rows = ordered.head(MOST)  # rows of trace.ops, in the order of the list
        self._trace = trace
        self._scales = _run_scales(trace)
        self._flushed = _twin_flushed(trace)
        # by position and log2_scale: what a replay gave, or why there is none
        self._known: dict[tuple[int, int], AtScale | str] = {}
        first = self._first_loss()
        super().__init__(
            formats=[asdict(format_bins(dtype)) for dtype in FORMATS],
            tensors=[self._tensor(row) for _, row in self.rows.iterrows()],
            gradients=_gradients(trace, self._scales),
            left_out=max(0, len(ordered) - MOST),
            first_loss=first,
            selected=first.get("selected", 0),
        )
        self.observe(lambda change: self._select(), "selected")
        self.observe(lambda change: self._answer(*change["new"]), "asked")
        trace.selection.follow(self._follow)
        if trace.selection.place is not None:
            self._follow(trace.selection.place)

    def _select(self) -> None:
        row = self.row
        if row is not None and not self._following:
            self._trace.at = row

    def _follow(self, place: Place) -> None:
        """Follow a selection made elsewhere, if its tensor is in the list."""
        found = np.flatnonzero(self.rows["position"] == place)
        with self._led():
            self.selected = int(found[0]) if len(found) else self.selected

    def _first_loss(self) -> dict[str, Any]:
        loss = first_loss(self._trace)
        if loss is None or loss.position not in (at := self.rows["position"].tolist()):
            return {}
        return {"text": f"{loss_place(loss)}: {told(loss)}", "selected": at.index(loss.position)}

    @property
    def row(self) -> pd.Series[Any] | None:
        """The row of ``trace.ops`` of the chosen tensor; None where nothing was recorded."""
        return self.rows.iloc[self.selected] if len(self.rows) else None

    @property
    def shares(self) -> pd.DataFrame:
        """A row per chosen format: counts of the chosen tensor's non-zero finite values after
        scaling and rounding, and what they are ``by``: replay or histogram.

        The values are those of its float32 twin where there is one: what was flushed as it ran can
        be lost no more.
        """
        found = self._replay(self.selected, self.log2_scale)
        if isinstance(found, AtScale):
            by, casts = "replay", {name: found.shares[name] for name in self.chosen}
        else:
            by, casts = "histogram", {name: self._expected(name) for name in self.chosen}
        names = ["numel", "zero", "subnormal", "normal", "overflow", "limit"]
        table = [[*(getattr(c, n) for n in names), by] for c in casts.values()]
        return pd.DataFrame(table, index=list(casts), columns=[*names, "by"])

    def _expected(self, name: str) -> CastShares:
        """The counts of the chosen tensor in a format, by its histogram."""
        row = self.row
        none = pd.Series(dtype="int64")
        exponents = none if row is None else before_rounding(self._trace, row)
        return cast_shares(exponents, getattr(torch, name), self.log2_scale)

    def _replay(self, selected: int, log2_scale: int) -> AtScale | str:
        """A tensor at a scale, by replay, or the reason why not; cached."""
        if not len(self.rows):
            return "nothing was recorded to run again"
        key = int(self.rows["position"].iloc[selected]), log2_scale
        if key not in self._known:
            try:
                self._known[key] = at_scale(self._trace, *key, FORMATS)
            except NotReplayable as error:
                self._known[key] = str(error)
            except Exception as error:  # an operator that refuses what comes at this scale
                self._known[key] = f"running it again failed ({type(error).__name__}: {error})"
        return self._known[key]

    def _answer(self, selected: int, log2_scale: int) -> None:
        found = self._replay(selected, log2_scale)
        answer: dict[str, Any] = {"of": [selected, log2_scale], "reason": ""}
        if isinstance(found, AtScale):
            scaled = log2_scale if self.tensors[selected]["scalable"] else 0
            lost = {"flushed": found.flushed, "overflowed": found.overflowed}
            answer["data"] = _unscaled(found.result, scaled) | lost
            answer["twin"] = found.twin and _unscaled(found.twin, scaled)
            answer["shares"] = {name: asdict(cast) for name, cast in found.shares.items()}
        else:
            answer["reason"] = found
        self.replayed = answer

    @traitlets.validate("selected")
    def _in_list(self, proposal: Any) -> int:
        return below(proposal, len(self.rows), "a tensor", "see .tensors")

    @traitlets.validate("chosen")
    def _are_formats(self, proposal: Any) -> list[str]:
        if unknown := [name for name in proposal["value"] if name not in NARROW]:
            raise UsageError(f"expected formats out of {', '.join(NARROW)}, got {unknown}")
        return list(proposal["value"])

    @traitlets.validate("log2_scale")
    def _within_slider(self, proposal: Any) -> int:
        if proposal["value"] not in LOSS_SCALES:
            raise UsageError(
                f"expected a power of two from {LOSS_SCALES[0]} to {LOSS_SCALES[-1]}, got"
                f" {proposal['value']}"
            )
        return int(proposal["value"])

    def _tensor(self, row: pd.Series[Any]) -> dict[str, Any]:
        return {
            "label": _label(row),
            "module": str(known(row["module"])),
            "dtype": str(row["dtype"]),
            "data": browser_histogram(self._trace, row) | self._lost_as_run(row),
            "twin": twin_for_browser(self._trace, row),
            "best": _best(before_rounding(self._trace, row)),
            "run_scale": self._scales.get(int(row["step"]), 0) if row["phase"] == "backward" else 0,
            "scalable": row["phase"] == "backward",
        }

    def _lost_as_run(self, row: pd.Series[Any]) -> dict[str, int]:
        """Values lost when the row was computed, whatever the scale."""
        position = int(row["position"])
        flushed = self._flushed.get(position) or flushed_at(self._trace, position)
        return {"flushed": flushed, "overflowed": _overflowed(row)}

    def static_text(self) -> str:
        """The tensor that would lose most, in one line."""
        row = self.row
        if row is None:
            return "Underflow explorer: nothing was recorded"
        first = self.rows.iloc[0]
        count = plural(len(self.tensors) + self.left_out, "tensor")
        return f"Underflow explorer: {count}; {self._told(first)}"

    def _told(self, row: pd.Series[Any]) -> str:
        """The losses of a row in float16, and those as it ran, in words."""
        op, lost = spoken(row["op"]), self._lost_as_run(row)
        gone = [f"{lost[name]:,} became {what}" for name, what in GONE.items() if lost[name]]
        if gone:
            of = plural(int(row["numel"]), "value")
            return f"{op} loses most: as it ran in {row['dtype']} {' and '.join(gone)} of {of}"
        zero, inf = int(known(row["fp16_zero"]) or 0), int(known(row["fp16_inf"]) or 0)
        if not zero and not inf:
            return "float16 would flush and overflow nothing"
        of = plural(int(row["numel"]), "value")
        return f"{op} loses most: float16 flushes {zero:,} and overflows {inf:,} of {of}"

    def static_html(self) -> str:
        """The histogram of the tensor that would lose most, and a table of the first ten."""
        row = self.row
        if row is None:
            return f"<div>{escape(self.static_text())}</div>"
        heads = ["tensor", "values", "lost as it ran"]
        heads += ["fp16 → 0", "fp16 subnormal", "fp16 → inf", "best scale"]
        names = ["fp16_zero", "fp16_subnormal", "fp16_inf"]
        rows = [
            [
                escape(_whole_label(t)),
                number(r["numel"]),
                number(t["data"]["flushed"] + t["data"]["overflowed"]),
                *(number(r[name]) for name in names),
                f"2^{t['best']['float16'] + t['run_scale']}",
            ]
            for t, (_, r) in zip(self.tensors[:10], self.rows.head(10).iterrows(), strict=True)
        ]
        first = self.first_loss.get("text", "")
        title = f"<div><b>Signal is lost first at</b> {escape(first)}</div>" if first else ""
        shown = self.tensors[self.selected]
        title += f"<div>{escape(_whole_label(shown))}</div>"
        others = ("zero", "neginf", "posinf", "nan")
        exponents = self._trace.histogram(int(row["position"]), replays=False)
        picture = exponents_chart(exponents, {n: shown["data"][n] for n in (*others, "flushed")})
        if (twin := twin_histogram(self._trace, row)) is not None:
            picture += "<div>Its float32 twin</div>"
            picture += exponents_chart(twin, {n: shown["twin"][n] for n in others})
        return title + picture + table(heads, rows, ["left", *["right"] * 6])


def by_loss(trace: Trace) -> pd.DataFrame:
    """Rows of ``trace.ops`` with values, the one that would lose the largest share in float16
    first.

    What counts is the share flushed to zero or overflowing, or already lost when it was computed in
    low precision (see ``first_losses``), then the share that becomes subnormal; between equals the
    earlier row, where the signal is lost first. What an optimizer keeps in full precision comes
    last: no loss scale reaches it. So does all that is in full precision in a run that uses low
    precision: it stays there.
    """
    ops = trace.ops
    ops = ops[(ops["numel"].fillna(0) > 0).to_numpy(dtype=bool)]
    numel = ops["numel"].to_numpy(dtype="float64", na_value=np.nan)
    lost = _floats(ops["fp16_zero"]) + _floats(ops["fp16_inf"])
    lost = np.maximum(
        lost, ops["position"].map(_twin_flushed(trace)).fillna(0).to_numpy(dtype="float64")
    )
    born = ops["status"].eq("born") & ops["dtype"].isin(NARROW)
    lost = np.where(born, np.maximum(lost, _floats(ops["posinf"]) + _floats(ops["neginf"])), lost)
    already = first_losses(trace).set_index("position")["share"]
    share = np.maximum(
        lost / numel, ops["position"].map(already).fillna(0).to_numpy(dtype="float64")
    )
    full = ops["dtype"].isin(["float32", "float64"])
    kept = bool(ops["dtype"].isin(NARROW).any())
    aside = (full & (ops["phase"].eq("optimizer") | kept)).to_numpy(dtype=bool)
    keys = pd.DataFrame(
        {
            "aside": aside,
            "lost": -share,
            "faint": -_floats(ops["fp16_subnormal"]) / numel,
        }
    )
    return ops.iloc[keys.sort_values(list(keys.columns), kind="stable").index.to_numpy()]


def _unscaled(counted: Counted, log2_scale: int) -> dict[str, Any]:
    """A tensor for the page, with exponents before the loss scale."""
    exponents = counted.exponents.copy()
    exponents.index = exponents.index - log2_scale
    names = ("numel", "zero", "neginf", "posinf", "nan")
    return dense(exponents) | {name: getattr(counted.stats, name) for name in names}


def _overflowed(row: pd.Series[Any]) -> int:
    """Infinities of a row in low precision whose operands were finite."""
    if row["status"] != "born" or row["dtype"] not in NARROW:
        return 0
    return int(known(row["posinf"]) or 0) + int(known(row["neginf"]) or 0)


def _twin_flushed(trace: Trace) -> dict[int, int]:
    positions, flushed = (trace.shadow[name].astype(int) for name in ("position", "flushed"))
    return dict(zip(positions.tolist(), flushed.tolist(), strict=True))


def _floats(column: pd.Series[Any]) -> Any:
    return column.to_numpy(dtype="float64", na_value=0.0)


def _label(row: pd.Series[Any]) -> str:
    place = f"{str(known(row['file'])).rsplit('/', 1)[-1]}:{known(row['line'])}"
    kind = "gradient" if row["phase"] == "backward" else str(row["phase"])
    return (
        f"{row['op'] or 'accumulate'} · {kind} · {place} · step {row['step']} · #{row['position']}"
    )


def _whole_label(tensor: dict[str, Any]) -> str:
    module = module_name(tensor["module"])
    return f"{module} · {tensor['label']}" if module else str(tensor["label"])


def _gradients(trace: Trace, scales: dict[int, int]) -> dict[str, Any]:
    """The histogram of every gradient together."""
    ops = trace.ops
    chosen = (ops["phase"] == "backward") & (ops["numel"].fillna(0) > 0)
    rows = ops[chosen.to_numpy(dtype=bool)]
    twins = dict(zip(trace.shadow["position"], trace.shadow["exponents"], strict=True))
    positions = rows["position"].astype(int).tolist()
    together = add_histograms(
        twins[at] if at in twins else trace.histogram(at, replays=False) for at in positions
    )
    run = {scales.get(int(step), 0) for step in rows["step"].unique()}
    return {
        "tensors": len(rows),
        "data": dense(together),
        "best": _best(together),
        "run_scale": run.pop() if len(run) == 1 else None,
    }


def _run_scales(trace: Trace) -> dict[int, int]:
    """log2 of the loss scale of each training step as it ran."""
    steps = trace.steps
    if "loss_scale" not in steps:
        return {}
    pairs = zip(steps["step"].tolist(), floats(steps["loss_scale"]).tolist(), strict=True)
    return {int(step): round(math.log2(scale)) for step, scale in pairs if scale > 0}


def _best(exponents: pd.Series[int]) -> dict[str, int]:
    """log2 of the loss scale that loses least, for each format."""
    return {name: best_scale(exponents, dtype) for name, dtype in zip(NARROW, FORMATS, strict=True)}


def underflow(trace: Trace) -> UnderflowExplorer:
    """Explore the losses of each tensor in float16, bfloat16 and float8."""
    return UnderflowExplorer(trace)
