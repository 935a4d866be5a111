"""Updates that change nothing are made again by replay, and tried in float32."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import torch
from torch import nn

import nanlab
from nanlab.rules import Finding


def absorbed(trace: nanlab.Trace) -> list[Finding]:
    return [f for f in trace.findings if f.cause == "absorbed-update"]


@pytest.mark.parametrize("foreach", [False, True])
def test_an_update_that_bfloat16_absorbs_is_shown_to_move_in_float32(foreach: bool) -> None:
    net = nn.ParameterList([nn.Parameter(torch.ones(16, dtype=torch.bfloat16)) for _ in range(2)])
    opt = torch.optim.SGD(net.parameters(), lr=1e-3, foreach=foreach)
    with nanlab.watch(net, on_fault="record") as trace:
        for _ in range(3):
            opt.zero_grad()
            sum(p.sum() for p in net).backward()
            opt.step()
    fix = absorbed(trace)[0].fixes[0]
    assert "16 of 16 elements then change" in fix.title


def test_an_average_by_hand_over_a_list_is_shown_to_move_in_float32() -> None:
    net, average = nn.Linear(4, 4), nn.Linear(4, 4).bfloat16().requires_grad_(False)
    both = nn.ModuleList([net, average])
    with nanlab.watch(both, on_fault="record") as trace:
        for _ in range(3):
            net.zero_grad()
            net(torch.ones(2, 4)).sum().backward()
            with torch.no_grad():
                torch._foreach_lerp_(
                    list(average.parameters()), [p.bfloat16() for p in net.parameters()], 1e-5
                )
    fix = absorbed(trace)[0].fixes[0]
    assert "elements then change, instead of none" in fix.title


def fixes_of_updates(lr: float) -> list[nanlab.Fix]:
    """What is told of updates of ones in bfloat16, all of them absorbed."""
    w = nn.Parameter(torch.ones(16, dtype=torch.bfloat16))
    opt = torch.optim.SGD([w], lr=lr)
    with nanlab.watch(on_fault="record") as trace:
        for _ in range(3):
            opt.zero_grad()
            w.sum().backward()
            opt.step()
    return [fix for finding in absorbed(trace) for fix in finding.fixes]


def test_what_does_not_move_in_float32_either_is_not_said_to() -> None:
    fixes = fixes_of_updates(1e-12)
    assert fixes and not any("then change" in fix.title for fix in fixes)


def test_advice_without_an_edit_is_not_verified() -> None:
    fixes = fixes_of_updates(1e-4)
    assert any("16 of 16 elements then change" in fix.title for fix in fixes)
    assert all(fix.edits for fix in fixes if fix.verified)


def whole_model(
    schedule: Callable[[int], float], steps: int, optimizer: str = "SGD"
) -> list[Finding]:
    """What is said of a small net in bfloat16 that is trained with a schedule, by torch's SGD or by
    hand."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 8)).bfloat16()
    parameters = list(net.parameters())
    teacher = torch.randn(8, 8)
    opt = torch.optim.SGD(parameters, lr=0.1)
    with nanlab.watch(net, on_fault="record") as trace:
        for i in range(steps):
            x, rate = torch.randn(32, 8), 0.1 * schedule(i)
            net.zero_grad()
            (net(x.bfloat16()).float() - x @ teacher).square().mean().backward()
            opt.param_groups[0]["lr"] = rate
            if optimizer == "SGD":
                opt.step()
                continue
            with torch.no_grad():
                if optimizer == "list":
                    torch._foreach_add_(parameters, [p.grad for p in parameters], alpha=-rate)
                for p in parameters if optimizer != "list" else ():
                    p.add_(p.grad, alpha=-rate) if optimizer == "alpha" else p.sub_(rate * p.grad)
    return absorbed(trace)


@pytest.mark.parametrize("optimizer", ["SGD", "list", "alpha", "product"])
def test_a_net_that_stands_still_once_its_rate_has_dropped_is_an_error_whoever_updates_it(
    optimizer: str,
) -> None:
    found = whole_model(lambda i: 1.0 if i < 6 else 1e-5, 12, optimizer)
    assert [(f.severity, f.step) for f in found] == [("error", 6)]
    assert "and 4 more" in found[0].title and "It changed in 6 steps" in found[0].explanation


@pytest.mark.parametrize("optimizer", ["SGD", "list", "alpha", "product"])
@pytest.mark.parametrize(
    ("schedule", "steps"),
    [
        (lambda i: 1.0 if i < 6 else 0.0, 16),
        (lambda i: 0.5 * (1 + math.cos(math.pi * i / 24)), 24),
        (lambda i: 1e-5 if i < 3 else 1.0, 12),
        (lambda i: 1e-5 if i == 6 else 1.0, 7),
        (lambda i: 1e-5 if i % 4 else 1.0, 16),
    ],
    ids=["ends at zero", "cosine", "warm-up", "one step", "now and then"],
)
def test_a_rate_of_zero_or_that_is_small_for_a_few_steps_is_no_fault(
    schedule: Callable[[int], float], steps: int, optimizer: str
) -> None:
    assert whole_model(schedule, steps, optimizer) == []


def test_what_stands_still_at_the_rate_at_which_it_moved_has_converged_and_is_no_error() -> None:
    w = nn.Parameter(torch.full((16,), 2.0, dtype=torch.bfloat16))
    opt = torch.optim.SGD([w], lr=0.1)
    with nanlab.watch(on_fault="record") as trace:
        for _ in range(60):
            opt.zero_grad()
            (w.float() - 1.0).square().sum().backward()
            opt.step()
    assert w.detach().ne(1.0).all()  # float32 goes on: its error falls by a fifth in each step
    assert [f.severity for f in absorbed(trace)] == ["note"]


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_small_part_that_never_moves_is_as_bad_by_hand_as_by_an_optimizer(by_hand: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(8, 16, False), nn.LayerNorm(16, bias=False), nn.Linear(16, 8, False)
    ).bfloat16()
    opt = torch.optim.SGD(net.parameters(), lr=2e-3)
    severities = []
    for steps in (3, 9):
        with nanlab.watch(net, on_fault="record") as trace:
            for _ in range(steps):
                net.zero_grad()
                net(torch.randn(32, 8).bfloat16()).float().square().mean().backward()
                if by_hand:
                    with torch.no_grad():
                        for p in net.parameters():
                            p.add_(p.grad, alpha=-2e-3)
                else:
                    opt.step()
        severities.append([f.severity for f in absorbed(trace)])
    assert severities == [["warning"], ["error"]]


def _bias_before_batch_norm() -> None:
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    )
    _train(model, torch.optim.SGD(model.parameters(), 1e-3), torch.randn(8, 2, 6, 6), 10)


def _converged() -> None:
    model = nn.Linear(3, 1)
    x = torch.randn(64, 3)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(300):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()


def _warm_up() -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), 5e-5, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / 10000)
    _train(model, optimizer, torch.randn(8, 6), 8, schedule.step)


def _train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    x: torch.Tensor,
    steps: int,
    then: Callable[[], None] | None = None,
) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), torch.arange(len(x)) % 3).backward()
        optimizer.step()
        if then is not None:
            then()


@pytest.mark.parametrize("program", [_bias_before_batch_norm, _converged, _warm_up])
def test_in_float32_what_has_nothing_to_add_yet_or_any_more_is_no_fault(
    program: Callable[[], None],
) -> None:
    torch.manual_seed(0)
    with nanlab.watch(on_fault="record") as trace:
        program()
    assert not [f.title for f in absorbed(trace) if f.severity != "note"]


def test_in_float32_a_rate_at_which_nothing_moves_is_an_error() -> None:
    model = nn.Linear(6, 3)
    with nanlab.watch(model, on_fault="record") as trace:
        _train(model, torch.optim.SGD(model.parameters(), 1e-10), torch.randn(8, 6), 8)
    assert [f.severity for f in absorbed(trace)] == ["error"]


@pytest.mark.parametrize(("rate", "steps"), [(0.1, 300), (0.01, 3000)])
def test_a_fit_that_had_converged_when_the_watch_began_has_no_culprit(
    rate: float, steps: int
) -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(3, 1), torch.randn(64, 3)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]])
    optimizer = torch.optim.SGD(model.parameters(), rate)

    def train(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()

    train(steps)
    with nanlab.watch(model) as trace:
        train(20)
    assert trace.culprit is None and all(f.severity != "error" for f in trace.findings)


@pytest.mark.parametrize(("rate", "severities"), [(1e-12, ["note"]), (1e-4, [])])
def test_float32_that_stands_still_once_its_rate_has_dropped_is_a_note(
    rate: float, severities: list[str]
) -> None:
    """A rate of 1e-12 changes no float32 weight; it may be meant as the end of a schedule."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    with nanlab.watch(net, on_fault="record") as trace:
        for i in range(12):
            x = torch.randn(32, 8)
            opt.zero_grad()
            (net(x) - 3 * x).square().mean().backward()
            opt.param_groups[0]["lr"] = 0.1 if i < 6 else rate
            opt.step()
    assert [f.severity for f in absorbed(trace)] == severities


def test_an_average_that_has_come_close_to_what_it_follows_is_no_fault() -> None:
    torch.manual_seed(0)
    net, average = nn.Linear(16, 16), nn.Linear(16, 16).bfloat16().requires_grad_(False)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    with nanlab.watch(nn.ModuleList([net, average]), on_fault="record") as trace:
        for i in range(40):
            opt.param_groups[0]["lr"] = 0.1 if i < 10 else 1e-5
            opt.zero_grad()
            net(torch.randn(32, 16)).square().mean().backward()
            opt.step()
            with torch.no_grad():
                for kept, value in zip(average.parameters(), net.parameters(), strict=True):
                    kept.lerp_(value.bfloat16(), 0.1)
    assert absorbed(trace) == []


def _summed(
    total: torch.Tensor, add: Callable[[torch.Tensor], object], steps: int
) -> list[Finding]:
    """What is said of a training loop whose steps add to a tensor of its own."""
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], 0.1)
    with nanlab.watch(on_fault="record") as trace:
        for _ in range(steps):
            optimizer.zero_grad()
            add(total)
            (weight - 3).square().sum().backward()
            optimizer.step()
    return absorbed(trace)


def _add_to_slice(total: torch.Tensor) -> None:
    total[:] += 1


def _add_to_element(total: torch.Tensor) -> None:
    total[1] += 1


def _add_to_chosen(total: torch.Tensor) -> None:
    total[torch.tensor([0, 2])] += 1


def _add_by_index(total: torch.Tensor) -> None:
    total.index_add_(0, torch.arange(3), torch.ones(3, dtype=total.dtype))


def _add_by_scatter(total: torch.Tensor) -> None:
    total.scatter_add_(0, torch.arange(3), torch.ones(3, dtype=total.dtype))


@pytest.mark.parametrize(
    "add", [_add_to_slice, _add_to_element, _add_to_chosen, _add_by_index, _add_by_scatter]
)
@pytest.mark.parametrize(("dtype", "end"), [(torch.bfloat16, 256.0), (torch.float16, 2048.0)])
def test_a_sum_of_ones_in_half_precision_ends_where_neighbours_are_two_apart(
    add: Callable[[torch.Tensor], object], dtype: torch.dtype, end: float
) -> None:
    total = torch.full((3,), end - 3, dtype=dtype)
    (found,) = _summed(total, add, 8)
    assert total.max() == end
    assert found.severity == "error" and found.line == add.__code__.co_firstlineno + 1  # type: ignore[attr-defined]
    assert f"stays at {end:.0f}" in found.title


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_a_sum_of_ones_that_its_dtype_holds_is_no_fault(dtype: torch.dtype) -> None:
    assert _summed(torch.full((3,), 253, dtype=dtype), _add_by_index, 8) == []


def test_a_sum_that_is_compensated_is_no_fault() -> None:
    """Kahan: what is lost is added to what comes next, until the sum moves."""
    lost = torch.zeros(4, dtype=torch.bfloat16)

    def add(total: torch.Tensor) -> None:
        change = 1e-3 - lost
        before = total.clone()
        total.add_(change)
        lost.copy_((total - before) - change)

    assert _summed(torch.ones(4, dtype=torch.bfloat16), add, 30) == []


def test_another_element_that_moves_does_not_hide_a_count_that_has_ended() -> None:
    total = torch.tensor([255.0, 0.0], dtype=torch.bfloat16)

    def add(total: torch.Tensor) -> None:
        for k in range(2):
            total[k] += 1

    (found,) = _summed(total, add, 6)
    assert total.tolist() == [256.0, 6.0] and "stays at 256" in found.title


@pytest.mark.parametrize(("rate", "told"), [(3e-5, True), (1e-3, False)])
def test_updates_of_which_nearly_all_elements_are_rounded_away_are_told(
    rate: float, told: bool
) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8)).bfloat16()
    opt = torch.optim.Adam(net.parameters(), lr=rate)
    with nanlab.watch(net, on_fault="record") as trace:
        for _ in range(8):
            x = torch.randn(64, 32, dtype=torch.bfloat16)
            opt.zero_grad()
            (net(x) - 2 * x[:, :8]).float().square().mean().backward()
            opt.step()
    assert trace.culprit is None
    found = [f for f in trace.findings if f.cause == "absorbed-update"]
    assert len(found) == told
    if told:
        assert found[0].severity == "warning"
        assert re.match(r"9\d(\.\d)? % of what addcdiv_ adds to", found[0].title)
