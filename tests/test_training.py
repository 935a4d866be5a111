"""The training loop under watch: the update, the scaler, clipping and silent losses are told apart,
with line and step."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import nn

import nanlab
from nanlab.capture import training
from nanlab.rules import Finding
from nanlab.trace import Trace

torch.set_num_threads(1)
Step = Callable[[int], torch.Tensor]


def watched(model: nn.Module, step: Step, steps: int) -> Trace:
    with nanlab.watch(model, on_fault="record") as trace:
        for i in range(steps):
            step(i)
    assert not trace.notes
    return trace


def line_of(mark: str) -> int:
    with open(__file__) as file:
        return next(i for i, line in enumerate(file, 1) if line.rstrip().endswith(f"# {mark}"))


def told(trace: Trace) -> Finding:
    assert trace.culprit is not None
    return trace.culprit


# -- S2: gradients explode through time, the weights jump
# ------------------------------------------------------------


def recurrent(clip: float | None, rate: float) -> tuple[nn.Module, Step]:
    torch.manual_seed(1)
    net = nn.ModuleDict(
        {"rnn": nn.RNN(2, 32, nonlinearity="relu", batch_first=True), "head": nn.Linear(32, 1)}
    )
    nn.init.orthogonal_(net["rnn"].weight_hh_l0, gain=1.3)
    opt = torch.optim.SGD(net.parameters(), lr=rate)

    def step(i: int) -> torch.Tensor:
        x = torch.rand(16, 30, 2)
        opt.zero_grad()
        states, _ = net["rnn"](x)
        loss = nn.functional.mse_loss(net["head"](states[:, -1]).squeeze(-1), x.sum((1, 2)))
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        opt.step()  # RECURRENT
        return loss.detach()

    return net, step


def test_exploding_gradients_of_a_recurrent_net_are_blamed_on_the_update_and_clipping_is_the_cure() -> (
    None
):
    net, step = recurrent(None, 0.05)
    trace = watched(net, step, 3)
    found = told(trace)
    first_bad = next(
        i
        for i, loss in enumerate(trace.steps.loss.tolist())
        if loss != loss or loss in (float("inf"),)
    )
    assert found.cause == "exploding-gradient"
    assert (found.phase, found.op, found.line, found.step) == (
        "optimizer",
        "add_",
        line_of("RECURRENT"),
        first_bad,
    )
    assert "clip_grad_norm_" in found.fixes[0].code


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))  # type: ignore[no-any-return]


@pytest.mark.parametrize("rate", [1e2, 1e4, 1e6])
def test_gradients_of_weights_that_a_rate_threw_explode_no_chain(rate: float) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(*(Residual() for _ in range(10)), nn.Linear(16, 4))
    opt = torch.optim.SGD(net.parameters(), lr=rate)

    def step(i: int) -> torch.Tensor:
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(torch.randn(32, 16)), torch.randint(0, 4, (32,)))
        loss.backward()
        opt.step()
        return loss.detach()

    found = told(watched(net, step, 6))
    assert found.cause == "learning-rate"
    rates = [fix for fix in found.fixes if fix.code.startswith("lr=")]
    assert rates and all(fix.verdict == "untried" for fix in rates)  # of weights already thrown


@pytest.mark.parametrize("rate", [0.05, 1e10])
def test_what_grew_is_told_from_what_it_was(rate: float) -> None:
    net, step = recurrent(None, rate)
    start = {name: p.detach().square().mean().sqrt().item() for name, p in net.named_parameters()}
    title = told(watched(net, step, 5)).title
    grew = re.search(r"(\S+) grew from (\S+) to", title)
    assert grew is not None, title
    assert float(grew[2]) == pytest.approx(start[grew[1]], rel=0.01)


def test_clipped_recurrent_net_is_healthy() -> None:
    net, step = recurrent(1.0, 0.01)
    assert [f for f in watched(net, step, 12).findings if f.severity == "error"] == []


# -- S4: three causes of a NaN under mixed precision
# ------------------------------------------------------------


def mixed(fault: str) -> tuple[nn.Module, Step]:
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)

    def step(i: int) -> torch.Tensor:
        x = torch.randn(16, 8)
        weights = torch.zeros(16) if fault == "division" and i == 3 else torch.ones(16)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x)
        if fault == "large":
            out = 300 * out + 300  # LARGE
        error = (out.float() - x[:, :4]).square().mean(1)
        loss = (error * weights).sum() / weights.sum()  # DIVISION
        if fault == "large":
            loss = (out.square()).sum().float()  # SQUARE
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if fault == "poison" and i == 2:
            with torch.no_grad():
                net[0].bias.div_(torch.zeros(16))  # POISON
        return loss.detach()

    return net, step


def test_division_by_zero_in_the_loss_is_told_from_the_other_two() -> None:
    found = told(watched(*mixed("division"), 6))
    assert (found.cause, found.line, found.step) == ("div-by-zero", line_of("DIVISION"), 3)


def test_loss_too_large_for_half_precision_is_told_from_the_other_two() -> None:
    found = told(watched(*mixed("large"), 3))
    assert (found.cause, found.line, found.step) == ("dtype-overflow", line_of("SQUARE"), 0)


def test_poisoned_parameter_is_traced_to_the_step_and_the_operation_where_the_poison_entered() -> (
    None
):
    found = told(watched(*mixed("poison"), 6))
    assert (found.line, found.step, found.phase) == (line_of("POISON"), 2, "optimizer")
    assert found.symptom.startswith("param-")


def test_sound_mixed_precision_has_no_finding() -> None:
    assert watched(*mixed("none"), 8).findings == []


def test_optimizer_eps_is_blamed_only_where_it_is_zero_in_the_dtype() -> None:
    def adam(eps: float) -> tuple[nn.Module, Step]:
        torch.manual_seed(3)
        net = nn.Linear(6, 3).half()
        opt = torch.optim.Adam(net.parameters(), lr=1e-3, eps=eps, foreach=False)

        def step(i: int) -> torch.Tensor:
            x = torch.zeros(4, 6).half()
            x[:, :3] = 1.0
            opt.zero_grad()
            loss = net(x).float().square().mean()
            loss.backward()
            opt.step()  # EPS
            return loss.detach()

        return net, step

    found = told(watched(*adam(1e-8), 2))
    assert (found.cause, found.line, found.step) == ("optimizer-eps-underflow", line_of("EPS"), 0)
    assert watched(*adam(1e-4), 2).culprit is None


# -- silent losses
# ------------------------------------------------------------


def averaged(dtype: torch.dtype, decay: float = 0.999) -> tuple[nn.Module, Step]:
    torch.manual_seed(4)
    net = nn.Linear(8, 8)
    net.register_buffer("average", net.weight.detach().to(dtype))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(i: int) -> torch.Tensor:
        x = torch.randn(16, 8)
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(x), x)
        loss.backward()
        opt.step()
        with torch.no_grad():
            net.average.lerp_(net.weight.to(dtype), 1 - decay)  # AVERAGE
        return loss.detach()

    return net, step


def test_moving_average_that_does_not_move_is_an_error_though_nothing_is_nan() -> None:
    found = told(watched(*averaged(torch.bfloat16), 5))
    assert (found.cause, found.op, found.phase, found.line, found.step) == (
        "absorbed-update",
        "lerp_",
        "optimizer",
        line_of("AVERAGE"),
        0,
    )
    assert found.symptom == "silent-underflow"


@pytest.mark.parametrize(("dtype", "decay"), [(torch.float32, 0.999), (torch.bfloat16, 0.5)])
def test_moving_average_that_moves_is_healthy(dtype: torch.dtype, decay: float) -> None:
    assert watched(*averaged(dtype, decay), 5).findings == []


def flushed(scale: float, frozen: bool = False) -> tuple[nn.Module, Step]:
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).half()
    if frozen:
        nn.init.zeros_(net[2].weight)

    def step(i: int) -> torch.Tensor:
        net.zero_grad()
        wide = net(torch.randn(16, 8).half()).float()  # FLUSHED
        loss = scale * wide.square().mean()
        loss.backward()
        return loss.detach()

    return net, step


def test_gradient_flushed_whole_is_an_error_at_the_forward_line_of_the_cast() -> None:
    found = told(watched(*flushed(1e-9), 3))
    assert (found.cause, found.op, found.phase) == ("dtype-underflow", "_to_copy", "backward")
    assert (found.line, found.step) == (line_of("FLUSHED"), 0)


@pytest.mark.parametrize("frozen", [False, True])
def test_gradient_that_is_zero_for_good_reason_is_no_fault(frozen: bool) -> None:
    assert [f for f in watched(*flushed(1.0, frozen), 3).findings if f.severity == "error"] == []


# -- scaler and clipping
# ------------------------------------------------------------


def scaled(order: str) -> tuple[nn.Module, Step]:
    torch.manual_seed(6)
    net = nn.Linear(8, 4)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def step(i: int) -> torch.Tensor:
        x = torch.randn(16, 8)
        opt.zero_grad()
        loss = net(x).square().mean()
        scaler.scale(loss).backward()
        if order == "unscale first":
            scaler.unscale_(opt)
        if order != "bypass":
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # CLIP
            scaler.step(opt)
            scaler.update()
        else:
            opt.step()  # BYPASS
        return loss.detach()

    return net, step


def test_clipping_before_unscaling_is_found_at_its_line() -> None:
    found = told(watched(*scaled("clip first"), 3))
    assert (found.cause, found.line, found.step) == ("scaler-misuse", line_of("CLIP"), 0)
    assert "unscale_" in found.fixes[0].code


def test_optimizer_that_steps_past_the_scaler_is_found_at_its_line() -> None:
    found = told(watched(*scaled("bypass"), 2))
    assert (found.cause, found.line) == ("scaler-misuse", line_of("BYPASS"))


def test_right_order_is_healthy() -> None:
    assert watched(*scaled("unscale first"), 4).findings == []


@pytest.mark.parametrize("form", ["add_", "lerp_"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_decay_that_rounds_to_one_in_a_narrow_dtype_is_why_the_average_stands_still(
    dtype: torch.dtype, form: str
) -> None:
    torch.manual_seed(7)
    net = nn.Linear(8, 8)
    net.register_buffer("average", net.weight.detach().clone())
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    decay = torch.full((), 0.9999, dtype=dtype)

    def step(i: int) -> torch.Tensor:
        x = torch.randn(16, 8)
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(x), x)
        loss.backward()
        opt.step()
        with torch.no_grad():
            if form == "add_":
                net.average.mul_(decay).add_(net.weight * (1 - decay))
            else:
                net.average.lerp_(net.weight, (1 - decay).float())
        return loss.detach()

    findings = watched(net, step, 5).findings
    if dtype == torch.float32:
        assert findings == []
    else:
        assert [(f.cause, f.severity, f.op) for f in findings] == [
            ("absorbed-update", "error", form)
        ]
        assert "exactly 0 in bfloat16" in findings[0].title


def test_bad_learning_rate_in_a_tensor_is_led_back_to_the_line_that_made_it() -> None:
    torch.manual_seed(8)
    net = nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), lr=torch.tensor(0.01))

    def step(i: int) -> torch.Tensor:
        opt.zero_grad()
        loss = net(torch.randn(8, 4)).square().mean()
        loss.backward()
        divisor = torch.tensor(0.0 if i == 2 else 1.0)
        opt.param_groups[0]["lr"] = torch.tensor(0.01) / divisor  # RATE
        opt.step()
        return loss.detach()

    found = told(watched(net, step, 9))
    assert (found.line, found.step, found.op) == (line_of("RATE"), 2, "div")


def test_scaler_whose_scale_is_zero_is_told_so() -> None:
    torch.manual_seed(9)
    net = nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    scaler.load_state_dict(scaler.state_dict() | {"scale": 0.0})

    def step(i: int) -> torch.Tensor:
        opt.zero_grad()
        loss = net(torch.randn(8, 4)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        return loss.detach()

    trace = watched(net, step, 4)
    assert [(f.cause, f.step) for f in trace.findings] == [("loss-scale-overflow", 0)]
    assert "scale is 0" in told(trace).title


# -- numbers for the cures
# ------------------------------------------------------------


def least_squares(rate: float, momentum: float) -> tuple[nn.Module, Step]:
    torch.manual_seed(10)
    net = nn.Linear(6, 2)
    opt = torch.optim.SGD(net.parameters(), lr=rate, momentum=momentum)
    x = 3.0 * torch.randn(64, 6)

    def step(i: int) -> torch.Tensor:
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(x), x[:, :2])
        loss.backward()
        opt.step()
        return loss.detach()

    return net, step


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_learning_rate_that_is_named_is_the_limit_of_stability_when_really_run(
    momentum: float,
) -> None:
    found = told(watched(*least_squares(0.6, momentum), 200))
    assert found.cause == "learning-rate"
    fix = next(f for f in found.fixes if f.code.startswith("lr="))
    limit = float(re.search(r"below (\S+),", fix.title)[1])  # type: ignore[index]
    assert float(fix.code.removeprefix("lr=")) < limit

    def last_loss(rate: float) -> float:
        _, step = least_squares(rate, momentum)
        return [float(step(i)) for i in range(400)][-1]

    assert last_loss(0.9 * limit) < 0.1 and not last_loss(1.1 * limit) < 1e3


def test_bound_that_is_proposed_for_clipping_comes_with_its_share_of_the_recorded_steps() -> None:
    trace = watched(*recurrent(None, 0.05), 3)
    fix = next(f for f in told(trace).fixes if "clip_grad_norm_" in f.code)
    bound = float(re.search(r"([\d.]+)\)$", fix.code)[1])  # type: ignore[index]
    assert (
        1.0 <= bound <= 10.0
        and f"{trace.clipping().would_clip(bound):.0%} of the recorded steps" in fix.title
    )


@pytest.mark.parametrize(("size", "found"), [(1e-5, ["dtype-underflow"]), (1.0, [])])
@pytest.mark.parametrize("foreach", [False, True])
def test_second_moment_that_underflows_in_every_step_is_an_error_though_nothing_is_nan(
    size: float, found: list[str], foreach: bool
) -> None:
    torch.manual_seed(11)
    net = nn.Linear(16, 4).half()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3, eps=1e-4, foreach=foreach)

    def step(i: int) -> torch.Tensor:
        opt.zero_grad()
        loss = size * net(torch.randn(8, 16).half()).float().square().mean()
        (256.0 * loss).backward()
        with torch.no_grad():
            for p in net.parameters():
                p.grad.div_(256.0)  # type: ignore[union-attr]
        opt.step()
        return loss.detach()

    told_of = [f for f in watched(net, step, 4).findings if "second moment" in f.title]
    assert [f.cause for f in told_of] == found and all(f.severity == "error" for f in told_of)


@pytest.mark.parametrize(
    ("dtype", "rate", "told_of"),
    [(torch.bfloat16, 1e-2, True), (torch.bfloat16, 0.9, False), (torch.float32, 1e-2, False)],
)
def test_weight_decay_that_rounds_away_is_a_note_where_the_weights_really_stay(
    dtype: torch.dtype, rate: float, told_of: bool
) -> None:
    torch.manual_seed(12)
    net = nn.Linear(32, 4).to(dtype)
    opt = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=0.01)
    stays = torch.equal(net.weight * (1 - rate * 0.01), net.weight)

    def step(i: int) -> torch.Tensor:
        opt.zero_grad()
        loss = net(torch.randn(8, 32, dtype=dtype)).float().square().mean()
        loss.backward()
        opt.step()  # DECAY
        return loss.detach()

    found = [f for f in watched(net, step, 4).findings if f.title.startswith("weight decay")]
    assert stays == told_of == bool(found)
    assert [(f.severity, f.line) for f in found] == [("note", line_of("DECAY"))] * told_of


@pytest.mark.parametrize(
    ("dtype", "stops"), [(torch.bfloat16, 256.0), (torch.float16, 2048.0), (torch.float32, None)]
)
def test_counter_that_reaches_the_end_of_its_dtype_is_found_when_it_stops(
    dtype: torch.dtype, stops: float | None
) -> None:
    net = nn.Linear(2, 1)
    net.register_buffer("seen", torch.tensor((stops or 256.0) - 3, dtype=dtype))

    def step(i: int) -> torch.Tensor:
        with torch.no_grad():
            net.seen.add_(1)  # COUNTER
        net.zero_grad()
        loss = net(torch.ones(1, 2)).square().mean()
        loss.backward()
        return loss.detach()

    trace = watched(net, step, 8)
    if stops is None:
        assert trace.findings == []
    else:
        found = told(trace)
        assert (found.cause, found.line, found.step) == ("absorbed-update", line_of("COUNTER"), 3)
        assert f"seen stays at {stops:g}" in found.title


def test_a_parameter_written_by_way_of_data_is_an_update() -> None:
    net = nn.Linear(3, 2)
    with nanlab.watch(net, on_fault="record") as trace:
        for i in range(4):
            net.zero_grad()
            (net(torch.ones(1, 3)) * (i != 2)).square().sum().backward()
            for p in net.parameters():
                unit = p.grad / p.grad.norm()
                p.data.sub_(0.1 * unit)
    culprit = trace.culprit
    assert culprit is not None and (culprit.step, culprit.phase, culprit.symptom) == (
        2,
        "optimizer",
        "param-nan",
    )
    assert "p.grad / p.grad.norm()" in culprit.source


def test_replicas_that_go_backward_in_turn_and_are_stepped_together_share_a_step() -> None:
    nets = [nn.Linear(2, 1), nn.Linear(2, 1)]
    opts = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]
    with nanlab.watch(on_fault="record") as trace:
        for _ in range(5):
            for net, opt in zip(nets, opts, strict=True):
                opt.zero_grad()
                net(torch.ones(4, 2)).sum().backward()
            for opt in opts:
                opt.step()
    assert len(trace.steps) == 5


def test_a_program_without_backward_has_operations_of_its_own() -> None:
    net = nn.Linear(2, 1).requires_grad_(False)
    with nanlab.watch(net, on_fault="record") as trace:
        for i in range(3):
            returns = torch.stack([net(torch.ones(1, 2)).sum() * (i != 1) for _ in range(4)])
            advantage = (returns - returns.mean()) / returns.std()
            net.weight.copy_(net.weight + advantage.mean())
    culprit = trace.culprit
    assert culprit is not None and culprit.phase in ("forward", "optimizer") and culprit.op == "div"


@pytest.mark.parametrize("cleared", [False, True])
def test_gradients_that_are_never_cleared_are_told_with_the_weights_that_they_drive_away(
    cleared: bool,
) -> None:
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    opt = torch.optim.SGD(net.parameters(), lr=3.0 if cleared else 0.3)

    def step(i: int) -> torch.Tensor:
        x = torch.randn(16, 4, generator=generator)
        if cleared:
            opt.zero_grad()
        loss = (net(x) - 5 * x[:, :1]).square().mean()
        loss.backward()
        opt.step()
        return loss

    finding = told(watched(net, step, 60))
    assert finding.cause in ("learning-rate", "exploding-gradient")
    assert ("never cleared" in finding.explanation) is not cleared
    assert ("optimizer.zero_grad()" in [fix.code for fix in finding.fixes]) is not cleared


@pytest.mark.parametrize("other", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("last", [False, True])
def test_the_optimizer_that_owns_the_parameter_that_ran_away_is_blamed(
    other: type[torch.optim.Optimizer], last: bool
) -> None:
    """The decay of one part of the net is unstable at its rate of 8; another optimizer, of a sane
    rate, steps before or after."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    wild, sane = torch.optim.SGD(net[0].parameters(), lr=8.0), other(net[2].parameters(), lr=1e-4)

    def step(i: int) -> torch.Tensor:
        x = torch.randn(32, 8)
        net.zero_grad()
        loss = nn.functional.mse_loss(net(x), x[:, :2]) + net[0].weight.square().sum()
        loss.backward()
        if last:
            sane.step()
        wild.step()  # WILD
        if not last:
            sane.step()
        return loss.detach()

    trace = watched(net, step, 60)
    errors = [f for f in trace.findings if f.severity == "error"]
    assert [(f.cause, f.line) for f in errors] == [("learning-rate", line_of("WILD"))]
    assert "a learning rate of 8 makes" in errors[0].title and ": 0." in errors[0].title


def test_the_rate_that_is_blamed_is_that_of_the_group_of_the_parameter() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    groups = [
        {"params": net[0].parameters(), "lr": 1e-4},
        {"params": net[1].parameters(), "lr": 7.0},
    ]
    opt = torch.optim.SGD(groups)

    def step(i: int) -> torch.Tensor:
        opt.zero_grad()
        loss = net(torch.ones(4, 8)).square().mean() + net[1].weight.square().sum()
        loss.backward()
        opt.step()
        return loss.detach()

    assert "a learning rate of 7 makes" in told(watched(net, step, 60)).title


def by_hand(update: Callable[[nn.Parameter, torch.Tensor], None]) -> tuple[nn.Module, Step]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    momenta = {p: torch.zeros_like(p) for p in net.parameters()}

    def step(i: int) -> torch.Tensor:
        x = torch.randn(16, 4)
        net.zero_grad()
        loss = (net(x) - x).pow(2).mean()
        loss.backward()
        with torch.no_grad():
            for p in net.parameters():
                momenta[p].lerp_(p.grad, 0.1)
                update(p, momenta[p])
        return loss.detach()

    return net, step


def test_clipping_is_no_cure_for_an_update_in_which_the_size_of_the_gradient_does_not_count() -> (
    None
):
    """The decay has the wrong sign and doubles the weights; what comes after it is the sign of a
    momentum."""

    def update(p: nn.Parameter, momentum: torch.Tensor) -> None:
        p.add_(p, alpha=1.0)  # DOUBLED
        p.add_(momentum.sign(), alpha=-1e-2)

    errors = [f for f in watched(*by_hand(update), 70).findings if f.severity == "error"]
    assert [(f.cause, f.op, f.line) for f in errors] == [
        ("learning-rate", "add_", line_of("DOUBLED"))
    ]
    assert not any("clip_grad_norm_" in fix.code for fix in errors[0].fixes) and errors[0].fixes


def test_clipping_is_offered_where_the_update_is_a_multiple_of_the_gradient() -> None:
    def update(p: nn.Parameter, momentum: torch.Tensor) -> None:
        p.sub_(30.0 * momentum)

    culprit = told(watched(*by_hand(update), 60))
    assert culprit.cause == "learning-rate" and any(
        "clip_grad_norm_" in fix.code for fix in culprit.fixes
    )


@pytest.mark.parametrize("inverted", [True, False])
def test_clipping_with_its_coefficient_upside_down_is_blamed_itself(inverted: bool) -> None:
    torch.manual_seed(0)
    net = nn.Linear(4, 4)
    opt = torch.optim.SGD(net.parameters(), lr=0.3)

    def step(i: int) -> torch.Tensor:
        x = torch.randn(16, 4)
        opt.zero_grad()
        loss = (net(x) - 20 * x).square().mean()
        loss.backward()
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in net.parameters()]).norm()
            for p in net.parameters():
                p.grad.mul_(norm / 0.5 if inverted else 0.5 / norm)  # INVERTED
        opt.step()
        return loss.detach()

    trace = watched(net, step, 30)
    if not inverted:
        assert trace.culprit is None
        return
    culprit = told(trace)
    assert (culprit.cause, culprit.op, culprit.line, culprit.phase) == (
        "exploding-gradient",
        "mul_",
        line_of("INVERTED"),
        "optimizer",
    )
    assert [fix.code for fix in culprit.fixes] == [
        "coefficient = (max_norm / (norm + 1e-6)).clamp(max=1.0)"
    ]


def test_unscaling_before_the_last_micro_batch_is_told_as_such() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)

    def step(i: int) -> torch.Tensor:
        opt.zero_grad()
        for micro in range(3):
            x = torch.randn(8, 4)
            loss = (net(x) - x[:, :1]).square().mean() / 3
            scaler.scale(loss).backward()
            if micro == 0:
                scaler.unscale_(opt)
        scaler.step(opt)  # MICRO
        scaler.update()
        return loss.detach()

    found = next(f for f in watched(net, step, 8).findings if f.cause == "scaler-misuse")
    assert found.line == line_of("MICRO") and "before the last backward pass" in found.explanation
    assert ["after the last micro-batch" in fix.title for fix in found.fixes] == [True]


def adapted(rate: float, dtype: torch.dtype = torch.float32) -> Trace:
    """Meta-learning: a few inner steps of gradient descent, and an outer loss."""
    torch.manual_seed(0)
    net = nn.Linear(4, 4).to(dtype)
    x = torch.randn(16, 4).to(dtype)

    def step(i: int) -> torch.Tensor:
        weight = net.weight
        for _ in range(40):
            inner = (x @ weight.T - x).square().mean()
            (gradient,) = torch.autograd.grad(inner, weight, create_graph=True)
            weight = weight - rate * gradient  # INNER
        net.zero_grad()
        loss = (x @ weight.T - x).square().mean()
        loss.backward()
        return loss.detach()

    return watched(net, step, 2)


def test_an_inner_loop_that_diverges_is_blamed_on_its_updates_and_not_on_the_range_of_float32() -> (
    None
):
    culprit = told(adapted(300.0))
    assert (culprit.cause, culprit.op, culprit.line) == ("learning-rate", "sub", line_of("INNER"))
    assert "within the step" in culprit.title and any(
        "inner rate" in fix.title for fix in culprit.fixes
    )
    assert not any("clamp(-" in fix.code for fix in culprit.fixes)


def test_an_inner_loop_with_a_sane_rate_is_healthy() -> None:
    assert adapted(0.3).culprit is None


def test_updates_that_are_not_measured_tell_nothing_of_eps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(training, "COPY_LIMIT", 0)  # as of parameters beyond it
    net = nn.Linear(8, 8)
    opt = torch.optim.Adam(net.parameters(), eps=1e3)
    with nanlab.watch(net, on_fault="record", budget=0) as trace:
        for _ in range(6):
            opt.zero_grad()
            net(torch.randn(4, 8)).square().mean().backward()
            opt.step()
    assert trace.parameters["update_rms"].isna().all()
    assert not list(trace.findings)
    assert not [note for note in trace.notes if "rule" in note]


def test_weights_that_are_made_anew_of_a_bad_gradient_stop_the_program_in_the_next_step() -> None:
    w, done = torch.ones(3), 0
    with nanlab.watch() as trace:
        for step in range(6):
            x = torch.randn(4, 3, generator=torch.Generator().manual_seed(step))
            y = x @ w if step == 2 else x[:, 0]
            root = torch.func.grad(lambda v, x=x, y=y: torch.sqrt(((x @ v - y) ** 2).sum()))
            w = w - 0.01 * root(w)
            done = step
    assert trace.culprit is not None and trace.culprit.cause == "sqrt-at-zero"
    assert (trace.culprit.step, done) == (2, 3)


def test_a_bad_proposal_that_is_refused_does_not_stop_the_program() -> None:
    q = torch.ones(3)
    with nanlab.watch() as trace:
        for step in range(6):
            aside = q - 3.0 if step % 2 else q + 0.1  # no logarithm there
            slope, value = torch.func.grad_and_value(lambda v: v.log().square().sum())(aside)
            q = aside - 0.01 * slope if bool(value.isfinite()) else q
    assert bool(q.isfinite().all()) and step == 5 and not trace.recording.ended
