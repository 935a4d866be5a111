"""Where low precision first loses signal: named at its own line, in report and explorer, not where
it blows up later."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import nanlab
from nanlab.analysis.signal_loss import first_losses
from nanlab.trace import Trace
from nanlab.views.report import report
from nanlab.views.underflow import underflow


def vanished_epsilon(constant: bool) -> Callable[[], None]:
    torch.manual_seed(0)
    x, weight = torch.randn(4, 8).half(), nn.Parameter(torch.ones(8).half())
    if constant:
        x[1] = 0.5

    def step() -> None:
        centred = x - x.mean(-1, keepdim=True)
        var = (centred**2).mean(-1, keepdim=True)
        steady = var + 1e-9
        y = centred * torch.rsqrt(steady) * weight
        (y**2).mean().backward()

    return step


def flushed_linear(normalised: bool) -> Callable[[], None]:
    torch.manual_seed(0)
    net = nn.Linear(8, 8, bias=False)
    with torch.no_grad():
        net.weight.mul_(1e-6 / net.weight.abs().mean())
    net, x = net.half(), (1e-3 * torch.randn(4, 8)).half()
    scale = nn.Parameter(torch.ones(8).half())

    def step() -> None:
        hidden = net(x)
        size = (hidden * hidden).mean(-1, keepdim=True)
        y = hidden * torch.rsqrt(size) if normalised else hidden * scale
        (y * scale).sum().backward()

    return step


def watched(step: Callable[[], None], shadow: str | None) -> Trace:
    with nanlab.watch(on_fault="record", shadow=shadow) as trace:
        step()
    return trace


SHADOWS = pytest.mark.parametrize("shadow", [None, "float32"])
FAULTS = pytest.mark.parametrize("fault", [False, True], ids=["quiet", "blows-up-later"])


@SHADOWS
@FAULTS
def test_an_epsilon_that_is_zero_in_float16_is_the_first_loss(
    fault: bool, shadow: str | None
) -> None:
    trace = watched(vanished_epsilon(fault), shadow)
    first = first_losses(trace).iloc[0]
    assert (first["op"], first["source"], first["share"]) == ("add", "steady = var + 1e-9", 1.0)
    assert float(torch.tensor(1e-9).half()) == 0.0
    explorer = underflow(trace)
    assert explorer.row is not None
    assert explorer.row["source"] == "steady = var + 1e-9"
    assert "1e-9 is 0 in float16: add changes nothing" in explorer.first_loss["text"]
    assert "steady = var + 1e-9" in repr(report(trace))
    page = report(trace)._repr_html_()
    assert page.count("Where signal is lost first") == 1
    (told,) = [f for f in trace.findings if f.cause == "eps-underflow" and f.severity == "warning"]
    assert (told.op, told.source) == ("add", "steady = var + 1e-9") and (
        trace.culprit is not None
    ) == fault
    assert not fault or "Where signal is lost first" in page
    assert ">healthy<" not in page


@SHADOWS
@FAULTS
def test_a_linear_layer_whose_results_are_flushed_is_the_first_loss(
    fault: bool, shadow: str | None
) -> None:
    trace = watched(flushed_linear(fault), shadow)
    first = first_losses(trace).iloc[0]
    assert (first["op"], first["source"], first["share"]) == ("mm", "hidden = net(x)", 1.0)
    assert first["told_by"] == ("float32 twin" if shadow else "counts")
    explorer = underflow(trace)
    assert explorer.row is not None
    assert explorer.row["source"] == "hidden = net(x)"


def test_counts_are_what_a_cast_really_flushes() -> None:
    x = torch.logspace(-12, 0, 1000)
    with nanlab.watch(on_fault="record") as trace:
        x.half()
    (loss,) = first_losses(trace).itertuples()
    assert loss.lost == int((x.half() == 0).sum())
    assert loss.share == loss.lost / 1000


def test_the_twin_counts_what_the_same_product_keeps_in_float32() -> None:
    torch.manual_seed(0)
    a, b = (1e-4 * torch.randn(64)).half(), (1e-4 * torch.randn(64)).half()
    truth = int(((a * b == 0) & (a.float() * b.float() != 0)).sum())
    found = {}
    for shadow in (None, "float32"):
        with nanlab.watch(on_fault="record", shadow=shadow) as trace:
            a * b
        found[shadow] = int(first_losses(trace)["lost"].iloc[0])
    assert found == {None: truth, "float32": truth}


def healthy() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4)).half()
    v = net(torch.randn(8, 16).half())
    var = v.var(-1, keepdim=True) + 1e-3
    masked = (v / var.sqrt()) * (v > 0)
    (masked + 0).relu().mean().backward()


@SHADOWS
def test_masks_dropout_and_working_epsilons_are_no_losses(shadow: str | None) -> None:
    trace = watched(healthy, shadow)
    assert not len(first_losses(trace))
    assert " ".join(("signal is lost", "first")) not in report(trace)._repr_html_()
    assert underflow(trace).first_loss == {}


def test_full_precision_has_no_such_place() -> None:
    x = torch.full((8,), 1e-30, requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        (x + 1e-9).sum().backward()
    assert not len(first_losses(trace))


def test_an_epsilon_of_a_library_is_told_only_where_there_is_a_zero_to_prevent() -> None:
    def losses(row: torch.Tensor) -> int:
        with nanlab.watch(on_fault="record") as trace:
            torch.nn.functional.normalize(row.half(), dim=-1).sum()
        return sum(f.cause == "eps-underflow" for f in trace.findings)

    assert losses(torch.ones(2, 3)) == 0
    assert losses(torch.tensor([[0.0, 0.0], [1.0, 1.0]])) == 1
