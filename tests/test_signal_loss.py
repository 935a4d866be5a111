"""Where gradients were flushed, held against what is lost when the same step is really run at other
scales and dtypes."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from torch import nn

import nanlab
from nanlab.analysis.signal_loss import KEPT, signal_loss
from nanlab.errors import UsageError
from nanlab.trace import Trace

torch.set_num_threads(1)
DEEP = ("0.weight", "2.weight", "4.weight")


def watched(
    scale: float, dtype: torch.dtype = torch.float16, shadow: str | None = None, wide: float = 0.0
) -> Trace:
    """A step of a small net under autocast whose loss is tiny; ``wide``: factor on a second loss
    with a large gradient."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 4)
    )
    other = nn.Linear(16, 4)
    x = torch.randn(64, 16)
    with nanlab.watch(
        nn.ModuleDict({"net": net, "other": other}), on_fault="record", shadow=shadow
    ) as trace:
        with torch.autocast("cpu", dtype=dtype):
            out = net(x)  # FORWARD
            far = other(x) if wide else None
        error = out.float() - x[:, :4]  # CAST
        loss = 1e-4 * error.square().mean()
        if far is not None:
            loss = loss + wide * far.float().mean()
        (scale * loss).backward()
    assert not trace.notes
    return trace


def line_of(mark: str) -> int:
    with open(__file__) as file:
        return next(i for i, line in enumerate(file, 1) if line.rstrip().endswith(f"# {mark}"))


@pytest.fixture(scope="module")
def measured() -> pd.DataFrame:
    return watched(1.0, shadow="float32").signal_loss()


def test_each_place_is_the_forward_line_whose_gradient_was_flushed_in_the_order_of_the_backward_pass(
    measured: pd.DataFrame,
) -> None:
    places = measured[measured.parameter == "net.0.weight"]
    assert places.line.tolist()[0] == line_of("CAST") and set(places.line.tolist()[1:]) == {
        line_of("FORWARD")
    }
    assert places.op.tolist() == ["_to_copy", "mm", "gelu_backward", "mm", "gelu_backward", "mm"]
    assert places.measured.tolist() == ["cast"] + 5 * ["twin"]
    assert places.position.is_monotonic_increasing


def test_a_parameter_near_the_loss_loses_at_fewer_places(measured: pd.DataFrame) -> None:
    counts = measured[measured.flushed > 0].groupby("parameter").size()
    assert counts["net.4.bias"] < counts["net.2.weight"] < counts["net.0.weight"]


def test_share_flushed_by_the_cast_is_that_of_torchs_own_cast(measured: pd.DataFrame) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 4)
    )
    nn.Linear(16, 4)
    x = torch.randn(64, 16)
    with torch.autocast("cpu", dtype=torch.float16):
        out = net(x)
    wide = out.detach().float().requires_grad_()
    (1e-4 * (wide - x[:, :4]).square().mean()).backward()
    lost = float(((wide.grad != 0) & (wide.grad.half() == 0)).sum() / (wide.grad != 0).sum())
    assert measured.flushed[measured.op == "_to_copy"].iloc[0] == pytest.approx(lost)


@pytest.mark.parametrize("shadow", [None, "float32"], ids=["from zeros", "with twins"])
def test_the_loss_scale_that_is_named_keeps_what_was_lost_when_really_run(
    shadow: str | None,
) -> None:
    told = watched(1.0, shadow=shadow).signal_loss()
    powers = {p: int(told.needed_log2_scale[told.parameter == f"net.{p}"].max()) for p in DEEP}
    assert set(told.kept_by[told.flushed > 0]) <= {f"loss scale 2^{k}" for k in range(1, 17)}
    for name, power in powers.items():
        kept = watched(2.0**power, shadow="float32").signal_loss()
        less = watched(2.0 ** (power - 5), shadow="float32").signal_loss()
        here, there = (t.flushed[t.parameter == f"net.{name}"].max() for t in (kept, less))
        assert here < 0.02 and there > 3 * max(here, KEPT)


def test_where_the_range_is_too_wide_for_any_scale_another_dtype_is_named_and_does_keep_them() -> (
    None
):
    told = watched(1.0, wide=1e4).signal_loss()
    lost = told[told.flushed > KEPT]
    assert "bfloat16" in set(lost.kept_by)
    power = int(lost.needed_log2_scale[lost.kept_by == "bfloat16"].max())
    scaled = watched(2.0**power, wide=1e4)
    assert (
        scaled.ops[
            (scaled.ops.phase == "backward") & (scaled.ops.posinf + scaled.ops.neginf > 0)
        ].shape[0]
        > 0
    )
    assert (watched(1.0, dtype=torch.bfloat16, wide=1e4).signal_loss().flushed <= KEPT).all()


def test_a_parameter_that_loses_nothing_has_one_row_without_a_place() -> None:
    told = watched(2.0**14).signal_loss()
    assert (told.flushed <= KEPT).all() and told.op.isna().all()
    assert told.parameter.is_unique and len(told) == 6


def test_masks_and_dead_units_are_not_taken_for_flushed_gradients() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 4))
    with torch.no_grad():
        net[0].bias[:20] = -100.0
    x = torch.randn(64, 16)
    with nanlab.watch(net, on_fault="record") as trace:
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x)
        (2.0**8 * (out.float() - x[:, :4]).square().mean(1)[:40].sum() / 40).backward()
    assert (signal_loss(trace).flushed <= 0.01).all()


def test_run_without_gradients_is_refused() -> None:
    with nanlab.watch() as trace:
        torch.ones(3).sum()
    with pytest.raises(UsageError, match="no gradients"):
        signal_loss(trace)


def test_healthy_run_shows_one_sentence_and_no_row_of_blanks() -> None:
    net = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with nanlab.watch(net, keep=3) as trace:
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.ones(2, 4)).square().mean().backward()
            optimizer.step()
    lost = trace.signal_loss()
    assert len(lost) == 6
    assert repr(lost) == "No gradient lost a value in 3 kept steps (2 parameters)."
    assert repr(lost) in lost._repr_html_()


def test_what_was_not_lost_is_a_dash(measured: pd.DataFrame) -> None:
    html = measured._repr_html_()
    assert "nan" not in html.lower()
    assert "loss scale 2^" in html
    assert "NaN" not in repr(measured)


@pytest.mark.parametrize("cut", ["no_grad", "detach", "nothing", "frozen"])
def test_parameter_that_the_optimizer_holds_and_no_gradient_reaches_is_noted_with_the_line(
    cut: str,
) -> None:
    body, head = nn.Linear(4, 3), nn.Linear(3, 1)
    body.requires_grad_(cut != "frozen")
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
    with nanlab.watch(nn.ModuleList([body, head]), on_fault="record") as trace:
        for _ in range(4):
            optimizer.zero_grad()
            with torch.set_grad_enabled(cut != "no_grad"):
                h = body(torch.ones(2, 4))
            head(h.detach() if cut == "detach" else h).square().mean().backward()
            optimizer.step()
    told = [(f.severity, f.cause, "0.weight" in f.title) for f in trace.findings]
    assert told == ([("note", "dead-gradient", True)] if cut in ("no_grad", "detach") else [])


@pytest.mark.parametrize("drawn", ["sample", "rsample", "weighed"])
def test_a_scale_that_only_samples_are_drawn_by_gets_no_gradient(drawn: str) -> None:
    torch.manual_seed(0)
    mean, scale = nn.Linear(4, 3), nn.Linear(4, 3)
    optimizer = torch.optim.SGD([*mean.parameters(), *scale.parameters()], lr=0.1)
    with nanlab.watch(nn.ModuleList([mean, scale]), on_fault="record") as trace:
        for _ in range(4):
            optimizer.zero_grad()
            x = torch.randn(2, 4)
            q = torch.distributions.Normal(mean(x), scale(x).exp())
            z = q.rsample() if drawn == "rsample" else q.sample()
            loss = z.square().mean() + mean(x).square().mean()
            if drawn == "weighed":
                loss = loss + (z.square() * q.log_prob(z)).mean()
            loss.backward()
            optimizer.step()
    told = [(f.severity, f.cause, "draws a sample" in f.title) for f in trace.findings]
    assert told == ([("error", "dead-gradient", True)] if drawn == "sample" else [])


def test_what_is_encoded_and_sampled_under_no_grad_is_left_alone_on_purpose() -> None:
    torch.manual_seed(0)
    encoder, head = nn.Linear(4, 3), nn.Linear(3, 1)
    optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.1)
    with nanlab.watch(nn.ModuleList([encoder, head]), on_fault="record") as trace:
        for _ in range(4):
            optimizer.zero_grad()
            with torch.no_grad():
                z = torch.distributions.Normal(encoder(torch.randn(2, 4)), 1.0).sample()
            head(z).square().mean().backward()
            optimizer.step()
    assert [(f.severity, f.cause) for f in trace.findings] == [("note", "dead-gradient")]


@pytest.mark.parametrize(
    ("factor", "dtype", "cause"),
    [
        (20, torch.float16, "dtype-underflow"),
        (20, torch.float32, None),
        (200, torch.float32, "dead-gradient"),
        (200, torch.float16, "dead-gradient"),
    ],
)
def test_zeros_that_float32_does_not_have_are_those_of_the_dtype(
    factor: int, dtype: torch.dtype, cause: str | None
) -> None:
    w = torch.nn.Parameter(torch.ones(2, dtype=dtype))
    with nanlab.watch(on_fault="record") as trace:
        for _ in range(3):
            w.grad = None
            torch.exp(-w * factor).sum().backward()
    found = trace.culprit
    assert (found.cause if found is not None else None) == cause
    if found is not None:
        assert ("in float16" in found.title) is (cause == "dtype-underflow")
        assert not any(fix.verified for fix in found.fixes)


def test_equal_rows_that_are_no_distance_apart_are_not_told_of_exponentials() -> None:
    w = torch.nn.Parameter(torch.ones(2, 2))
    with nanlab.watch(on_fault="record") as trace:
        for _ in range(3):
            w.grad = None
            torch.cdist(w, w).sum().backward()
    assert trace.culprit is not None
    assert trace.culprit.cause == "dead-gradient"
    assert not any("exponentiate" in fix.title for fix in trace.culprit.fixes)
