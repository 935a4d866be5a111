"""The loss-scale simulator against really running at each scale; the ledger of skipped steps."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

import nanlab
from nanlab.analysis.loss_scale import loss_scale, skips
from nanlab.capture.watching import FaultFound
from nanlab.errors import UsageError
from nanlab.formats import format_of
from nanlab.trace import Trace

torch.set_num_threads(1)


def gradients(scale: float = 1.0) -> tuple[Trace, list[torch.Tensor]]:
    """One backward pass at a loss scale, in float32: the trace, and the scaled gradients."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    x = torch.randn(64, 16)
    with nanlab.watch(net) as trace:
        loss = 1e-4 * net(x).square().mean()
        (scale * loss).backward()
    return trace, [p.grad for p in net.parameters() if p.grad is not None]


@pytest.mark.parametrize("k", [0, 8, 16, 24, 30])
def test_prediction_equals_the_share_measured_at_that_scale(k: int) -> None:
    """A power of two changes no mantissa, so the shares differ at most by the values inside a
    limit's own bin."""
    row = loss_scale(gradients()[0]).table.loc[k]
    limits = format_of(torch.float16)
    scaled = torch.cat([g.flatten() for g in gradients(2.0**k)[1]])
    scaled = scaled[scaled != 0]
    half = scaled.half()
    flushed = float((half == 0).double().mean())
    overflow = float(half.isinf().double().mean())
    subnormal = float(((half != 0) & (half.abs() < limits.smallest_normal)).double().mean())
    slack = row.uncertain + 1e-12
    assert abs(row.flushed - flushed) <= slack
    assert abs(row.overflow - overflow) <= slack
    assert abs(row.subnormal - subnormal) <= slack
    assert row.uncertain < 0.2


@pytest.mark.parametrize("scale", [1.0, 2.0**10])
def test_table_is_that_of_the_unscaled_gradients_whatever_scale_was_in_use(scale: float) -> None:
    found = loss_scale(gradients(scale)[0])
    assert found.used == scale
    assert loss_scale(gradients()[0]).table.equals(found.table)


def test_advised_scales_overflow_nothing_and_flush_least() -> None:
    found = loss_scale(gradients()[0])
    assert found.advised is not None and found.headroom is not None
    low, high = (round(math.log2(s)) for s in found.advised)
    inside = found.table.loc[low:high]
    assert (inside.overflow == 0).all()
    assert inside.flushed.max() <= found.table[found.table.overflow == 0].flushed.min() + 0.001
    _, scaled = gradients(2.0**found.headroom)
    assert all(bool(g.half().isfinite().all()) for g in scaled)
    _, beyond = gradients(2.0 ** (found.headroom + 2))
    assert not all(bool(g.half().isfinite().all()) for g in beyond)


def test_shares_of_the_parameters_add_up_to_those_of_all() -> None:
    trace, real = gradients()
    found = loss_scale(trace)
    counts = {
        name: int((g != 0).sum())
        for name, g in zip(("0.weight", "0.bias", "2.weight", "2.bias"), real, strict=True)
    }
    at = found.parameters.loc[4]
    total = sum(at.flushed[name] * count for name, count in counts.items()) / sum(counts.values())
    assert total == pytest.approx(found.table.flushed[4])


def under_autocast(scale: float) -> tuple[Trace, bool, float]:
    """A step of a net whose activations have larger gradients than its weights: (trace, all finite,
    share of zeros)."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 4)
    )
    x = torch.randn(64, 16)
    with nanlab.watch(net, on_fault="record") as trace:
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x)
        spread = 10.0 ** torch.linspace(-2, 2, 64)[:, None]
        loss = 1e-4 * (spread * (out.float() - x[:, :4])).abs().mean()
        (scale * loss).backward()
    real = torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])
    return trace, bool(real.isfinite().all()), float((real == 0).double().mean())


def test_advised_range_heeds_the_gradients_of_activations_and_holds_when_really_run() -> None:
    found = loss_scale(under_autocast(1.0)[0])
    assert found.advised is not None and len(found.activations) == len(found.table)
    low, high = found.advised
    assert under_autocast(high)[1] and not under_autocast(high * 4)[1]
    assert under_autocast(low)[2] == 0.0 < under_autocast(1.0)[2]
    assert found.headroom == round(math.log2(high))


def test_run_without_gradients_is_refused() -> None:
    with nanlab.watch() as trace:
        torch.ones(3).sum()
    with pytest.raises(UsageError, match="no gradients"):
        loss_scale(trace)


@pytest.mark.parametrize("on_fault", ["stop", "record"])
def test_run_without_finite_gradients_is_told_to_be_mended_first(on_fault: Any) -> None:
    net = nn.Linear(4, 1)
    with contextlib.suppress(FaultFound), nanlab.watch(net, on_fault=on_fault) as trace:
        for _ in range(2):
            (net(torch.ones(3, 4)) * 0).sqrt().sum().backward()
    assert trace.culprit is not None
    with pytest.raises(UsageError, match=r"all of them finite: mend what trace\.culprit names"):
        loss_scale(trace)
    with pytest.raises(UsageError, match="step 7 has none, others have: 0"):
        loss_scale(trace, step=7)


def train(steps: int, nan_at: int | None = None) -> Trace:
    """A scaler that calibrates from 2**16 and then trains; ``nan_at``: a step whose loss has a root
    of zero."""
    torch.manual_seed(0)
    net = nn.Linear(8, 4)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=10_000)
    with nanlab.watch(net, on_fault="record") as trace:
        for i in range(steps):
            x = torch.randn(16, 8)
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                out = net(x)
            loss = 20.0 * (out.float() - x[:, :4]).square().mean()
            if i == nan_at:
                loss = loss + (0 * out.float()).sqrt().sum()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
    return trace


def test_calibration_is_one_note_and_nothing_else() -> None:
    trace = train(205)
    assert len(skips(trace.recording)) == 5
    assert [(f.severity, f.cause) for f in trace.findings] == [("note", "loss-scale-overflow")]
    assert trace.culprit is None and not trace.notes


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize(
    ("power", "backoff", "optimizers"), [(30, 0.5, 2), (40, 0.5, 1), (30, 0.8, 1), (60, 0.5, 1)]
)
def test_a_scale_that_falls_for_long_until_the_gradients_fit_stops_nothing(
    power: int, backoff: float, optimizers: int, guarded: bool
) -> None:
    torch.manual_seed(0)
    net = nn.Linear(8, 4)
    opts = [torch.optim.SGD(net.parameters(), lr=1e-2) for _ in range(optimizers)]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**power, backoff_factor=backoff)
    data = [torch.randn(16, 8) for _ in range(100)]

    def train(batches: Iterable[torch.Tensor]) -> None:
        for x in batches:
            net.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                out = net(x)
            scaler.scale((out.float() - x[:, :4]).square().mean()).backward()
            for opt in opts:
                scaler.step(opt)
            scaler.update()

    nanlab.last = None
    if guarded:
        train(nanlab.guard(data, net, opts[0]))
        assert nanlab.last is None
    else:
        with nanlab.watch(net) as trace:
            train(data)
        assert [f.severity for f in trace.findings] == ["note"] and not trace.recording.ended
    assert scaler.get_scale() < 2.0**20


@pytest.mark.parametrize("guarded", [False, True])
def test_a_scale_that_falls_below_one_is_a_fault_wherever_it_began(guarded: bool) -> None:
    net = nn.Linear(8, 4)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
    data = [torch.randn(16, 8) for _ in range(60)]

    def train(batches: Iterable[torch.Tensor]) -> None:
        for x in batches:
            opt.zero_grad()
            scaler.scale((net(x).half().float() * 1e12).mean()).backward()
            scaler.step(opt)
            scaler.update()

    nanlab.last = None
    if guarded:
        with pytest.raises(nanlab.capture.FaultFound):
            train(nanlab.guard(data, net, opt))
    else:
        with nanlab.watch(net):
            train(data)
    assert nanlab.last is not None and nanlab.last.culprit is not None
    assert nanlab.last.culprit.cause == "loss-scale-overflow"
    assert 0.1 < scaler.get_scale() < 1.0


def test_a_run_whose_every_step_was_skipped_is_not_called_fine() -> None:
    net = nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126)
    with nanlab.watch(net, on_fault="record") as trace:
        for _ in range(3):
            opt.zero_grad()
            scaler.scale(1000 * net(torch.ones(16, 4)).square().mean()).backward()
            scaler.step(opt)
            scaler.update()
    assert trace.culprit is None and trace.steps.skipped.all()
    assert "skipped every step: no parameter was updated" in repr(trace.report())
    assert ">no update<" in trace.report()._repr_html_()
    with pytest.raises(UsageError, match="watch more steps, or start at the scale"):
        trace.loss_scale()


def test_real_nan_behind_a_scaler_is_found_at_its_first_step() -> None:
    trace = train(40, nan_at=25)
    assert trace.culprit is not None
    assert (trace.culprit.cause, trace.culprit.step, trace.culprit.op) == (
        "sqrt-at-zero",
        25,
        "sqrt",
    )


def test_each_skip_names_the_parameter_and_the_operation() -> None:
    first = skips(train(12).recording)[0]
    assert first.scale == 2.0**16 and first.after == 2.0**15
    assert (
        first.parameter in ("weight", "bias")
        and first.place is not None
        and first.place.op == "_to_copy"
    )


# -- the table of skipped steps, and what is made of it
# ------------------------------------------------------------


def scaled_step(scale: float, size: float = 20.0) -> bool:
    """Whether the first step of :func:`train` has finite gradients when it is really run at a
    scale."""
    torch.manual_seed(0)
    net = nn.Linear(8, 4)
    x = torch.randn(16, 8)
    with torch.autocast("cpu", dtype=torch.float16):
        out = net(x)
    (scale * size * (out.float() - x[:, :4]).square().mean()).backward()
    return all(bool(torch.isfinite(p.grad).all()) for p in net.parameters())


def test_skipped_step_is_finite_at_the_scale_that_is_named_when_really_run_at_it() -> None:
    table = train(12).skips
    assert table.scale_before.tolist()[:2] == [2.0**16, 2.0**15] and table.scale_after[0] == 2.0**15
    assert set(table.known_by) <= {"replay", "histogram", "later step"}
    assert scaled_step(table.finite_at[0]) and not scaled_step(table.scale_before[0])
    replayed = train(1).skips
    assert replayed.known_by[0] in ("replay", "histogram") and replayed.finite_at[0] < 2.0**16
    assert table.parameter[0] in ("weight", "bias") and table.op[0] == "_to_copy"
    assert table.file[0].endswith("test_loss_scale.py") and "loss" in table.source[0]


def test_simulator_bears_the_table_of_skips() -> None:
    trace = train(12)
    assert loss_scale(trace).skips.equals(trace.skips)
    assert len(train(3, nan_at=None).skips) == 3


def test_note_says_at_which_scale_the_gradients_are_finite() -> None:
    (note,) = train(60).findings
    assert "65,536 → 2,048, finite at 2^11" in note.title


def test_a_nan_that_no_scale_cures_is_told_so_in_the_table() -> None:
    table = train(30, nan_at=25).skips
    row = table[table.step == 25].iloc[0]
    assert row.known_by == "no scale" and table.finite_at.isna()[row.name]


@pytest.mark.parametrize("spoilt", ["loss", "forward", "mask", "nothing"])
def test_no_scale_is_named_where_more_than_the_scaled_gradients_is_not_finite(spoilt: str) -> None:
    torch.manual_seed(0)
    net = nn.Linear(8, 4)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    with nanlab.watch(net, on_fault="record") as trace:
        x = torch.randn(16, 8)
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x)
        loss = 20.0 * (out.float() - x[:, :4]).square().mean()
        if spoilt == "loss":
            loss = loss + torch.full((4,), 1e38).sum() * 10
        if spoilt == "forward":
            loss = loss + (1000 * out.float()).exp().clamp(max=1.0).mean()
        if spoilt == "mask":  # of which the derivative is 0
            hidden = out.float().masked_fill(torch.arange(4) > 2, -math.inf)
            loss = loss + hidden.logsumexp(1).mean()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    (row,) = trace.skips.itertuples()
    (note,) = (f for f in trace.findings if f.severity == "note")
    named = spoilt in ("mask", "nothing")
    assert (row.known_by != "no scale") is named and pd.notna(row.finite_at) is named
    assert ("finite at" in note.title) is named
    assert ("fails at any scale" in note.explanation) is not named


def misused(kind: str, init: float = 2.0**10) -> Trace:
    """Eight steps around a GradScaler in one of the orders that people write."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=init, growth_interval=1000)
    with contextlib.suppress(RuntimeError), nanlab.watch(net, on_fault="record") as trace:
        for _ in range(8):
            x = torch.randn(16, 8)
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                out = net(x)
            loss = 20.0 * (out.float() - x[:, :4]).square().mean()
            penalty = 0.01 * sum(p.square().sum() for p in net.parameters())
            if kind == "new scaler":
                scaler = torch.amp.GradScaler("cpu", init_scale=init)
            if kind == "penalty unscaled":
                (scaler.scale(loss) + penalty).backward()  # penalty unscaled
            else:
                scaler.scale(loss).backward()
            if kind == "penalty by itself":
                penalty.backward()  # penalty by itself
            if kind == "divided twice":
                for p in net.parameters():
                    p.grad.div_(scaler.get_scale())  # divided twice
            if kind == "unscaled, then stepped":
                scaler.unscale_(opt)
            if kind in ("bypassed", "unscaled, then stepped"):
                opt.step()  # bypassed, unscaled, then stepped
            else:
                scaler.step(opt)  # no update
            if kind not in ("no update", "bypassed"):
                scaler.update()
    return trace


@pytest.mark.parametrize(
    ("kind", "init"),
    [
        ("penalty unscaled", 2.0**10),
        ("penalty by itself", 2.0**10),
        ("divided twice", 2.0**10),
        ("bypassed", 2.0**10),
        ("bypassed", 2.0**16),
        ("unscaled, then stepped", 2.0**16),
        ("no update", 2.0**10),
        ("no update", 2.0**16),
    ],
)
def test_each_misuse_of_a_scaler_is_found_at_its_line_and_told_once(kind: str, init: float) -> None:
    trace = misused(kind, init)
    assert trace.culprit is not None and not trace.notes
    with open(__file__) as file:
        lines = [
            i
            for i, line in enumerate(file, 1)
            if kind in line.rpartition("# ")[2] and "  # " in line
        ]
    assert (trace.culprit.cause, trace.culprit.line) == ("scaler-misuse", lines[-1])
    assert [f.cause for f in trace.findings if f.severity == "error"] == ["scaler-misuse"]


@pytest.mark.parametrize("kind", ["sound", "unscaled, then stepped"])
def test_what_does_no_harm_is_not_told(kind: str) -> None:
    assert misused(kind).findings == []


def test_scaler_made_anew_in_each_step_never_comes_down() -> None:
    found = misused("new scaler", 2.0**16).culprit
    assert found is not None and found.cause == "loss-scale-overflow"
    assert "65536 again" in found.title and any(
        "before the loop" in fix.title for fix in found.fixes
    )


def test_the_simulation_prints_the_scale_in_use_and_the_advised_ones_in_a_few_lines() -> None:
    shown = repr(loss_scale(gradients(2.0**10)[0]))
    assert "2^10 was in use" in shown
    assert "advised: 2^" in shown
    assert len(shown.splitlines()) <= 6


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_fix_whose_gradients_wait_for_the_scale_to_come_down_is_finite(by_hand: bool) -> None:
    torch.manual_seed(0)
    net = nn.Linear(16, 4)
    opt = torch.optim.SGD(net.parameters(), 1e-5)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    x = torch.randn(32, 16) * 100
    with nanlab.watch(net, on_fault="record") as trace:
        with torch.autocast("cpu", dtype=torch.float16):
            squares = net(x) ** 4
            loss = squares.float().mean().sqrt()
        if by_hand:
            (loss * 2.0**16).backward()
            for parameter in net.parameters():
                assert parameter.grad is not None
                parameter.grad.div_(2.0**16)
            opt.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(opt)
    assert trace.culprit is not None
    wide = next(f for f in trace.culprit.fixes if "float32" in f.title)
    assert wide.verdict == ("fails" if by_hand else "finite")
    assert ("to which the scaler comes down" in wide.why) != by_hand
    if not by_hand:
        low = next(s for s in (2.0**k for k in range(16, -1, -1)) if f"at {s:,.0f}," in wide.why)
        assert not trace.replay(fix=wide).finite
        assert trace.replay(fix=wide, loss_scale=low).finite


def test_no_fix_is_finite_for_a_scale_that_comes_down_without_it() -> None:
    trace = train(3)
    (note,) = trace.findings
    assert note.cause == "loss-scale-overflow" and note.severity == "note"
    assert not any("comes down" in fix.why for fix in note.fixes)
