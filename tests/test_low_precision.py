"""What is said of programs in half precision: told once, with numbers that are right and cures that
fit."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent / "corpus"))

import harness
from fixing import holds

import nanlab
from nanlab.rules import Finding


@cache
def findings(number: str, fixed: bool = False) -> list[Finding]:
    """What is found in a program of the corpus, the culprit first."""
    module = harness.load(harness.case_files([number])[0])
    model, step = module.build(fixed)
    with nanlab.watch(model, on_fault="record") as trace:
        for i in range(module.META["n_steps"]):
            step(i)
    return list(trace.findings)


@pytest.mark.parametrize("number", ["f331", "f332", "t340", "t341", "t348"])
def test_a_silent_loss_of_everything_is_an_error_and_its_repaired_twin_has_none(
    number: str,
) -> None:
    meta = harness.load(harness.case_files([number])[0]).META
    assert [f.severity for f in findings(number)][:1] == ["error"]
    assert findings(number)[0].cause == meta["cause"]
    assert "error" not in {f.severity for f in findings(number, fixed=True)}


def test_the_overflow_below_an_inverse_root_names_no_count() -> None:
    culprit = findings("f332")[0]
    assert culprit.title.startswith("pow overflows float16 and becomes a divisor")
    assert not any("mask" in fix.code for fix in culprit.fixes)


def test_a_count_in_float32_is_said_to_stop_at_two_to_the_24() -> None:
    assert "norm.seen stays at 16777216" in findings("t340")[0].title


def test_a_scale_that_grew_is_told_as_that_of_the_step_that_overflowed() -> None:
    culprit = findings("t342")[0]
    assert "the loss scale 65536 is too large" in culprit.title
    assert any("4096 instead of 65536" in fix.title for fix in culprit.fixes)


def test_a_jump_is_not_told_as_growth_and_one_overflow_not_twice() -> None:
    told = [f for f in findings("t344") if f.cause == "dtype-overflow"]
    assert len(told) == 1 and "is beyond its largest number 65504" in told[0].title


def test_an_epsilon_that_is_the_culprit_is_not_told_again_as_a_warning_on_its_line() -> None:
    assert [f.severity for f in findings("f336") if f.cause == "eps-underflow"] == ["error"]


def test_a_cast_to_float8_is_tried_with_a_clamp() -> None:
    tried = {fix.title.split(" at ")[0]: holds(fix) for fix in findings("f345")[0].fixes}
    assert tried["clamp"] is True


def test_a_larger_scale_is_no_cure_for_what_is_lost_when_it_is_divided_out() -> None:
    assert not any("scale" in fix.title for fix in findings("t343")[0].fixes)
    assert any('GradScaler("cpu")' in fix.code for fix in findings("f338")[0].fixes)


def test_a_larger_scale_of_the_loss_is_no_cure_for_data_that_the_cast_flushed() -> None:
    net = nn.Linear(4, 2).half()
    with nanlab.watch(net, on_fault="record") as trace:
        for _ in range(2):
            net.zero_grad()
            net((1e-9 * torch.ones(8, 4)).half()).float().square().mean().backward()
    culprit = trace.culprit
    assert culprit is not None and culprit.cause == "dtype-underflow"
    assert not any("GradScaler" in fix.code for fix in culprit.fixes)


def test_the_mean_is_no_cure_for_a_squared_norm() -> None:
    means = [fix for fix in findings("f330")[0].fixes if "mean" in fix.title]
    assert not any(fix.verified for fix in means)


Update = Callable[[torch.Tensor, torch.Tensor], None]


def in_place(average: torch.Tensor, weight: torch.Tensor) -> None:
    average.mul_(0.9999).add_(weight.to(average.dtype), alpha=1e-4)


def interpolated(average: torch.Tensor, weight: torch.Tensor) -> None:
    average.lerp_(weight.to(average.dtype), 1e-4)


def following(update: Update, dtype: torch.dtype, rate: float = 0.01) -> nanlab.Trace:
    torch.manual_seed(0)
    net = nn.Linear(8, 8)
    nn.init.uniform_(net.weight, 0.5, 1.0)
    slow = copy.deepcopy(net).to(dtype)
    opt = torch.optim.SGD(net.parameters(), lr=rate)
    with nanlab.watch(net, on_fault="record") as trace:
        for _ in range(4):
            opt.zero_grad()
            net(torch.ones(2, 8)).square().mean().backward()
            opt.step()
            with torch.no_grad():
                for average, weight in zip(slow.parameters(), net.parameters(), strict=True):
                    update(average, weight)
    return trace


@pytest.mark.parametrize("update", [in_place, interpolated])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_an_average_beside_the_model_that_never_moves_is_found_by_the_weight_it_follows(
    update: Update, dtype: torch.dtype
) -> None:
    culprit = following(update, dtype).culprit
    assert culprit is not None and (culprit.cause, culprit.phase, culprit.step) == (
        "absorbed-update",
        "optimizer",
        0,
    )
    assert "the average of weight (8x8)" in culprit.title


@pytest.mark.parametrize("update", [in_place, interpolated])
def test_an_average_in_float32_and_that_of_weights_at_rest_are_no_fault(update: Update) -> None:
    assert following(update, torch.float32).findings == []
    assert "error" not in {f.severity for f in following(update, torch.bfloat16, rate=0.0).findings}


@pytest.mark.parametrize(("dtype", "stops"), [(torch.bfloat16, 256), (torch.float16, 2048)])
def test_a_count_that_is_made_anew_is_found_when_it_stops(dtype: torch.dtype, stops: int) -> None:
    net, seen = nn.Linear(2, 2), torch.tensor(stops - 4.0, dtype=dtype)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    with nanlab.watch(net, on_fault="record") as trace:
        for _ in range(8):
            seen = seen + 1
            opt.zero_grad()
            net(torch.ones(1, 2)).square().sum().backward()
            opt.step()
    culprit = trace.culprit
    assert culprit is not None and (culprit.cause, culprit.step) == ("absorbed-update", 4)
    assert f"stays at {stops}" in culprit.title and culprit.source == "seen = seen + 1"


@pytest.mark.parametrize("added", [0.0, 1.0])
def test_a_count_that_goes_on_and_one_to_which_nothing_is_added_are_no_fault(added: float) -> None:
    net, seen = nn.Linear(2, 2), torch.tensor(8.0, dtype=torch.bfloat16)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    with nanlab.watch(net, on_fault="record") as trace:
        for _ in range(8):
            seen = seen + added
            opt.zero_grad()
            net(torch.ones(1, 2)).square().sum().backward()
            opt.step()
    assert trace.findings == []


def test_weight_decay_of_float32_masters_is_not_said_to_be_lost_in_their_half_copies() -> None:
    net = nn.Linear(8, 8).bfloat16()
    masters = [p.detach().float().requires_grad_() for p in net.parameters()]
    opt = torch.optim.AdamW(masters, lr=1e-5)
    with nanlab.watch(net, on_fault="record") as trace:
        for _ in range(3):
            net.zero_grad()
            net(torch.ones(2, 8).bfloat16()).float().square().mean().backward()
            for master, p in zip(masters, net.parameters(), strict=True):
                master.grad = p.grad.float() if p.grad is not None else None
            opt.step()
            with torch.no_grad():
                for master, p in zip(masters, net.parameters(), strict=True):
                    p.copy_(master)
    assert [f.title for f in trace.findings if "weight decay" in f.title] == []


def test_what_holds_an_average_is_told_by_what_it_is() -> None:
    assert "ema = " in findings("t341")[0].fixes[0].code
    assert "decay**k" in findings("t341")[0].fixes[1].code


def low_rank(size: float, steps: int) -> nanlab.Trace:
    """A correction by two small factors in half, beside a path that learns whatever becomes of
    it."""
    torch.manual_seed(0)
    base = nn.Linear(8, 4).half()
    a, b = (nn.Parameter((size * torch.randn(shape)).half()) for shape in ((8, 2), (2, 4)))
    whole = nn.ModuleList([base, nn.ParameterList([a, b])])
    opt = torch.optim.SGD(whole.parameters(), lr=1e-2)
    with nanlab.watch(whole, on_fault="record") as trace:
        for _ in range(steps):
            x = torch.randn(16, 8).half()
            opt.zero_grad()
            (base(x) + 10 * (x @ (a @ b))).float().square().mean().backward()
            opt.step()
    return trace


def test_a_result_that_is_lost_in_every_step_is_an_error_though_gradients_come_back_through_it() -> (
    None
):
    culprit = low_rank(2e-5, steps=4).culprit
    assert culprit is not None and (culprit.cause, culprit.op, culprit.step) == (
        "dtype-underflow",
        "mm",
        0,
    )
    assert culprit.title.startswith("mm flushes all 32 values to zero in float16")


@pytest.mark.parametrize(("size", "steps", "severities"), [(2e-5, 2, ["warning"]), (0.1, 4, [])])
def test_a_result_that_is_lost_in_a_step_or_two_is_a_warning_at_most(
    size: float, steps: int, severities: list[str]
) -> None:
    assert [
        f.severity for f in low_rank(size, steps).findings if f.cause == "dtype-underflow"
    ] == severities


def test_the_square_of_an_error_that_has_become_small_is_no_error() -> None:
    net = nn.Linear(2, 1).half()
    x, y = torch.ones(8, 2).half(), net(torch.ones(8, 2).half()).detach()
    with nanlab.watch(net, on_fault="record") as trace:
        for _ in range(4):
            error = net(x) - y + 1e-4
            (error * error).mean().backward()
    assert "error" not in {f.severity for f in trace.findings}


def test_the_epsilon_of_a_logit_stays_in_its_line() -> None:
    codes = [fix.code for fix in findings("f360")[0].fixes if holds(fix)]
    assert "evidence = torch.logit(p.float(), eps=1e-4)" in codes


def test_a_sum_that_overflows_upwards_is_offered_no_bound_from_below() -> None:
    assert not any("clamp_min" in fix.code for fix in findings("f361")[0].fixes)


def test_a_square_that_overflows_is_written_in_float32() -> None:
    wide = next(fix for fix in findings("f364")[0].fixes if "in float32" in fix.title)
    assert wide.verdict != "fails" and "h.float().square()" in wide.code


def test_parameters_in_half_get_a_loss_scale_that_no_scaler_refuses() -> None:
    best = next(fix for fix in findings("f098")[0].fixes if "p.grad.float()" in fix.code)
    assert "GradScaler" not in best.code and "p.grad.float() / 2.0**25" in best.code


def test_a_factor_on_the_loss_that_is_no_scale_is_named_beside_the_learning_rate() -> None:
    culprit = findings("t369")[0]
    assert (
        culprit.cause == "learning-rate" and "The loss is multiplied by 1000" in culprit.explanation
    )


def test_second_moments_narrower_than_the_parameters_are_given_an_eps_that_they_hold() -> None:
    culprit = findings("t370")[0]
    assert "is zero in float16" in culprit.title
    assert any(holds(fix) and "eps=1e-4" in fix.code for fix in culprit.fixes)


def test_a_number_that_is_no_count_is_told_by_the_spacing_of_its_dtype() -> None:
    culprit = findings("t371")[0]
    assert "values are 0.00391 apart there" in culprit.explanation  # 2**-8, of bfloat16 at 0.5
    assert "int64" not in culprit.fixes[0].code


def test_the_norm_of_norms_is_one_finding_whichever_of_them_overflows() -> None:
    assert [f.step for f in findings("t363") if f.cause == "dtype-overflow"] == [0]


@pytest.mark.parametrize(
    ("start", "made", "read", "told"),
    [
        ([1e-5, 2e-5, 0.0, 1.0], "w.square().half()", "p.sqrt()", "2 of the 3 zeros were other"),
        ([-20.0, -18.0, 0.5, 1.0], "w.half().exp().view(2, 2)", "p.log()", "All 2 zeros were"),
        ([1e-5, 0.5, 1.0], "w.half() * w.half()", "p.log()", "The zero was another number before"),
        ([-1.0, 2.0], "w.half().relu()", "p.sqrt()", ""),  # what it makes 0 is 0
        ([0.0, 2.0], "w.half()", "p.log()", ""),
        ([-20.0, 0.0, 1.0], "w.half().exp()", "p.log()", "The zero was another number before: exp"),
        ([1e-25, 2.0], "w.square()", "p.log()", ""),  # told of half precision and divisors alone
    ],
)
def test_zeros_that_half_precision_made_are_told_with_their_line(
    start: list[float], made: str, read: str, told: str
) -> None:
    w = torch.nn.Parameter(torch.tensor(start))
    with nanlab.watch(on_fault="record") as trace:
        p = eval(compile(made, "made.py", "eval"), {"w": w})
        eval(read, {"p": p}).float().sum().backward()
    if trace.culprit is not None:
        assert ("rounds to 0 what float16" in trace.culprit.explanation) == bool(told)
        assert told in trace.culprit.explanation
    assert trace.culprit is not None or not told


@pytest.mark.parametrize(
    ("divisor", "told"),
    [
        ("w * w", "The zero was another number before: mul"),
        ("(w - w).abs() + 0 * w", ""),
        ("w.double().float()", ""),
        ("(w > 1).float()", ""),
        ("w.long().float()", ""),
    ],
)
def test_a_divisor_that_underflows_is_told_in_any_format(divisor: str, told: str) -> None:
    w = torch.nn.Parameter(torch.tensor([1e-25, 2.0]))
    with nanlab.watch(on_fault="record") as trace:
        below = eval(compile(divisor, "made.py", "eval"), {"w": w})
        (w.sum() / below).sum().backward()
    if told or trace.culprit is not None:
        assert trace.culprit is not None and told in trace.culprit.explanation
        assert ("rounds to 0 what float32" in trace.culprit.explanation) == bool(told)


@pytest.mark.parametrize("seen", [True, False])
def test_a_statistic_that_half_precision_cannot_hold_is_told_where_it_was_converted(
    seen: bool,
) -> None:
    norm = nn.BatchNorm1d(2).eval()
    norm.running_var.fill_(1e5)
    converted = "norm.half()  # converted"
    if not seen:
        norm.half()
    with nanlab.watch(on_fault="record") as trace:
        if seen:
            norm.half()  # converted
        for _ in range(3):
            x = torch.randn(4, 2, dtype=torch.float16, requires_grad=True)
            norm(x).sum().backward()
    found = next(f for f in trace.findings if f.cause == "poisoned-buffer")
    assert (found.source.strip() == converted) is seen
    assert "divides by it is constant" in found.title
