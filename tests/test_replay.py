"""A replay with other settings is the step of the program that was run with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import nanlab
from nanlab.program.rerun import window
from nanlab.program.settings import other_settings
from nanlab.views.results import replay_html

Program = Callable[..., tuple[nn.Module, Callable[[int], None]]]


def same(replay: Any, net: nn.Module) -> bool:
    """Whether a replay has the gradients and parameters of a module, bit for bit."""
    return all(
        torch.equal(found[name].nan_to_num(7.0), value.nan_to_num(7.0))
        for found, values in (
            (replay.parameters, {n: p.detach() for n, p in net.named_parameters()}),
            (replay.gradients, {n: p.grad for n, p in net.named_parameters()}),
        )
        for name, value in values.items()
    )


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 2))


def plain(kind: str, lr: float) -> tuple[nn.Module, Callable[[int], None]]:
    """Three steps at a rate of 0.01, the last at another."""
    net = network()
    optimizer = getattr(torch.optim, kind)(net.parameters(), lr=1e-2, weight_decay=1e-3)

    def step(i: int) -> None:
        if i == 2:
            optimizer.param_groups[0]["lr"] = lr
        optimizer.zero_grad()
        net(torch.randn(5, 4)).pow(2).mean().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()

    return net, step


def scaled(scale: float, dtype: torch.dtype = torch.float16) -> Any:
    """One step with a GradScaler."""
    net = network()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)

    def step(i: int) -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            loss = net(torch.randn(5, 4)).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    return net, step


def scaled_by_hand(scale: float, inverse: bool = False, undone: bool = True) -> Any:
    """One step whose loss is multiplied by a number of the program's own."""
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)

    def step(i: int) -> None:
        (net(torch.randn(5, 4)).pow(2).mean() * scale).backward()
        for p in net.parameters():
            if undone:
                p.grad.mul_(1 / scale) if inverse else p.grad.div_(scale)
        optimizer.step()

    return net, step


def watched(program: Any, steps: int = 1) -> nanlab.Trace:
    net, step = program
    with nanlab.watch(net, on_fault="record") as trace:
        for i in range(steps):
            step(i)
    return trace


def run(program: Any, steps: int = 1) -> nn.Module:
    net, step = program
    for i in range(steps):
        step(i)
    return net  # type: ignore[no-any-return]


KINDS = "SGD Adam AdamW RMSprop Adagrad NAdam RAdam Adamax ASGD Adadelta Adafactor".split()


@pytest.mark.parametrize("kind", KINDS)
def test_at_another_learning_rate_the_step_is_that_of_the_program_with_it(kind: str) -> None:
    again = watched(plain(kind, 1e-2), 3).replay(lr=0.3)
    assert again.identical is None
    assert same(again, run(plain(kind, 0.3), 3))


@pytest.mark.parametrize("scale", [2.0**4, 2.0**20, 2.0**60])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_at_another_scale_of_a_scaler_the_step_is_that_of_the_program_with_it(
    scale: float, dtype: torch.dtype
) -> None:
    again = watched(scaled(2.0**12, dtype)).replay(loss_scale=scale)
    assert same(again, run(scaled(scale, dtype)))
    assert not again.looked_at  # what the scaler does then is known


@pytest.mark.parametrize("inverse", [False, True])
def test_at_another_scale_by_hand_the_step_is_that_of_the_program_with_it(inverse: bool) -> None:
    again = watched(scaled_by_hand(1024.0, inverse)).replay(loss_scale=16.0)
    assert same(again, run(scaled_by_hand(16.0, inverse)))


def test_a_scale_that_is_nowhere_divided_out_is_not_changed() -> None:
    trace = watched(scaled_by_hand(1024.0, undone=False))
    with pytest.raises(nanlab.NotReplayable, match="divided by it again"):
        trace.replay(loss_scale=16.0)
    with pytest.raises(nanlab.NotReplayable, match="no scale"):
        watched(plain("SGD", 1e-2)).replay(loss_scale=16.0)


def test_the_scale_and_the_rate_change_together() -> None:
    again = watched(scaled(2.0**12)).replay(loss_scale=2.0**4, lr=0.5)
    with_scale = watched(scaled(2.0**4)).replay(lr=0.5)
    assert all(torch.equal(again.parameters[n], p) for n, p in with_scale.parameters.items())
    wide = watched(scaled(2.0**12)).replay(loss_scale=2.0**60, dtype=torch.float32)
    assert wide.finite


def test_an_update_rule_of_the_program_own_says_that_it_is_not_known() -> None:
    class Own(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for p in group["params"]:
                    p.data.sub_(p.grad, alpha=group["lr"])

    net = network()
    optimizer = Own(net.parameters(), lr=0.1)

    def step(i: int) -> None:
        net(torch.randn(5, 4)).pow(2).mean().backward()
        optimizer.step()

    with pytest.raises(nanlab.NotReplayable, match="Own"):
        watched((net, step)).replay(lr=0.2)


def test_an_optimizer_whose_hooks_do_more_is_not_taken_anew() -> None:
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    optimizer.register_step_post_hook(lambda *_: [p.data.mul_(0.5) for p in net.parameters()])

    def step(i: int) -> None:
        net(torch.randn(5, 4)).pow(2).mean().backward()
        optimizer.step()

    trace = watched((net, step))
    assert trace.replay().identical
    with pytest.raises(nanlab.NotReplayable, match="does more than SGD"):
        trace.replay(lr=0.2)


def test_wrong_arguments_are_refused() -> None:
    trace = watched(plain("SGD", 1e-2))
    with pytest.raises(nanlab.NanlabError, match="number for lr="):
        trace.replay(lr="high")  # type: ignore[arg-type]
    with pytest.raises(nanlab.NanlabError, match="above 0 for loss_scale="):
        trace.replay(loss_scale=0.0)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"lr": 0.1}, "its learning rate is not known"),
        ({"momentum": 0.9}, "its momentum is not known"),
        ({"lr": 0.1, "momentum": 0.9}, "its learning rate and momentum are not known"),
    ],
)
def test_settings_of_a_step_without_an_optimizer_are_not_known(
    changed: dict[str, float], told: str
) -> None:
    with nanlab.watch() as trace:
        nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()
    where = window(trace.recording, 0)
    with pytest.raises(nanlab.NotReplayable, match=told):
        other_settings(where, where.segments, changed)


def test_the_tables_of_a_replay_are_those_of_the_step_as_it_is_now() -> None:
    trace = watched(scaled(2.0**60))
    as_it_was = trace.replay()
    assert as_it_was.identical
    assert as_it_was.ops.position.tolist() == trace.ops.position.tolist()
    assert as_it_was.ops.posinf.sum() > 0
    assert [f.cause for f in as_it_was.findings] == [f.cause for f in trace.findings]
    lower = trace.replay(loss_scale=2.0**10)
    assert lower.ops[["posinf", "neginf", "nan"]].sum().sum() == 0
    assert lower.culprit is None
    assert "changed" in repr(lower)
    assert "Replay of step 0" in replay_html(lower)


def test_a_capsule_is_replayed_with_other_settings(tmp_path: Path) -> None:
    for made, change in ((plain("AdamW", 1e-2), {"lr": 0.3}), (scaled(64.0), {"loss_scale": 8.0})):
        trace = watched(made)
        again = nanlab.load(trace.save(tmp_path / "a.nanlab")).replay(**change)
        there = trace.replay(**change)
        assert all(torch.equal(again.parameters[n], p) for n, p in there.parameters.items())
        assert again.ops.op.tolist() == there.ops.op.tolist()
    rows = watched(plain("SGD", 1e-2))
    loaded = nanlab.load(rows.save(tmp_path / "b.nanlab"))
    assert loaded.replay(without=[2]).loss == rows.replay(without=[2]).loss


def test_a_replayed_step_has_the_rows_of_the_recorded_one() -> None:
    trace = watched(plain("AdamW", 1e-2), 3)
    again = trace.replay(lr=1e-2)  # a change that changes nothing
    recorded = trace.ops[trace.ops.step == 2]
    columns = ["phase", "op", "shape", "line", "nan", "zero", "max", "rms"]
    forward = again.ops[again.ops.phase == "forward"]
    expected = recorded[recorded.phase == "forward"]
    for column in columns:
        assert forward[column].astype(str).tolist() == expected[column].astype(str).tolist(), column
    updates = again.ops[again.ops.phase == "optimizer"]
    assert updates.op.tolist() == recorded[recorded.phase == "optimizer"].op.tolist()
    assert set(again.ops.step) == {2}


def test_a_part_of_a_parameter_that_is_written_without_gradients_is_written_again() -> None:
    torch.manual_seed(3)
    weight = nn.Parameter(torch.rand(4, 2))
    opt = torch.optim.SGD([weight], lr=0.1)
    with nanlab.watch(on_fault="record") as trace:
        for _ in range(2):
            opt.zero_grad()
            with torch.no_grad():
                weight[3] -= 0.25
            (weight.exp().sum() / weight[:3].sum()).backward()
            opt.step()
    again = trace.replay(step=1)
    assert again.identical
    (value,) = again.parameters.values()
    assert torch.equal(value, weight)


def test_the_update_rule_of_an_installed_package_is_tried_with_another_epsilon(
    tmp_path: Path,
) -> None:
    optimizers: Any = pytest.importorskip("pytorch_optimizer", reason="wants pytorch_optimizer")
    torch.manual_seed(4)
    table = nn.Embedding(5, 3)
    opt = optimizers.AdamP(table.parameters(), lr=1e-2, eps=0.0)
    with nanlab.watch(table, on_fault="record") as trace:
        for _ in range(2):
            opt.zero_grad()
            table(torch.tensor([0, 1])).square().mean().backward()
            opt.step()
    found = trace.culprit
    assert found is not None and found.cause == "optimizer-arithmetic"
    fix = next(fix for fix in found.fixes if "eps of" in fix.title)
    assert (fix.verdict, fix.code.split("(")[0]) == ("verified", "AdamP")
    loaded = nanlab.load(trace.save(tmp_path / "foreign.nanlab"))
    with pytest.raises(nanlab.NotReplayable, match="no class of torch"):
        loaded.replay(lr=1e-3)


def test_an_operator_that_computes_less_without_autograd_is_not_run_again() -> None:
    graph = torch.eye(3).to_sparse_csr()
    x = torch.ones(3, 2, requires_grad=True)
    with nanlab.watch() as trace:
        torch.sparse.mm(graph, x, "amax").sum().backward()
    with pytest.raises(nanlab.NotReplayable, match="has shape"):
        trace.replay()


def test_what_an_optimizer_steps_with_gradients_set_by_hand_is_of_the_replay() -> None:
    net = nn.Linear(3, 1)
    optimizer, x = torch.optim.SGD(net.parameters(), lr=0.1), torch.ones(4, 3)
    with nanlab.watch(net, on_fault="record") as trace:
        taken = torch.autograd.grad(net(x).pow(2).mean(), [*net.parameters()])
        for parameter, gradient in zip(net.parameters(), taken, strict=True):
            parameter.grad = gradient / 2
        optimizer.step()
    replay = trace.replay()
    assert replay.identical
    for name, parameter in net.named_parameters():
        assert torch.equal(replay.parameters[name], parameter.detach())


def test_a_fix_that_leaves_what_the_optimizer_writes_bad_fails(tmp_path: Path) -> None:
    path = tmp_path / "twice.py"
    path.write_text(
        "import torch\n\n\ndef halved(g):\n    a = g / (g - g)\n    return a + (g - g) / (g - g)\n"
    )
    names: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    net = nn.Linear(3, 1)
    optimizer, x = torch.optim.SGD(net.parameters(), lr=0.1), torch.ones(4, 3)
    with nanlab.watch(net, on_fault="record") as trace:
        taken = torch.autograd.grad(net(x).pow(2).mean(), [*net.parameters()])
        for parameter, gradient in zip(net.parameters(), taken, strict=True):
            parameter.grad = names["halved"](gradient)
        optimizer.step()
    assert trace.culprit is not None and trace.culprit.line == 5
    assert trace.culprit.fixes and not any(fix.verified for fix in trace.culprit.fixes)


def test_the_loss_of_a_step_with_several_is_the_last_one_with_a_fix_too() -> None:
    net = nn.Linear(1, 1)
    opt = torch.optim.SGD(net.parameters(), 0.1)
    x = torch.tensor([[1.0], [2.0]])

    def step() -> torch.Tensor:
        total = torch.zeros(())
        for bottom in (torch.ones(2, 1), torch.zeros(2, 1)):
            loss = nn.functional.mse_loss(net(x) / bottom, x)  # more memory than one number
            opt.zero_grad()
            loss.backward()
            opt.step()
            total = total + loss.detach()
        return total

    with nanlab.watch(net, on_fault="record") as trace:
        step()
    losses = trace.ops.query("op == 'mse_loss'")
    mended = trace.replay(
        next(f for f in trace.culprit.fixes if f.verdict in ("verified", "finite"))
    )
    again = mended.ops.query("op == 'mse_loss'")
    assert (
        losses["nan"].tolist()[0] == 0 != losses["nan"].tolist()[-1] + losses["posinf"].tolist()[-1]
    )
    assert mended.loss == pytest.approx(again["max"].tolist()[-1])


# What lies upstream of what a change touches is told of as in the record.


def frozen(bad: float) -> nanlab.Trace:
    """A frozen layer before one that learns, and a bad value in the data."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8).requires_grad_(False), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(net[2].parameters(), lr=0.1)
    with nanlab.watch(net, on_fault="record") as trace:
        for i in range(3):
            x = torch.randn(5, 6)
            if i == 2:
                x[3, 1] = bad
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), torch.tensor([0, 1, 2, 0, 1])).backward()
            optimizer.step()
    return trace


@pytest.mark.parametrize("change", [{"lr": 0.01}, {"dtype": torch.float32}, {"without": [4]}])
def test_a_bad_value_in_the_data_is_first_used_by_the_frozen_layer(change: dict[str, Any]) -> None:
    found = frozen(float("nan")).replay(**change).culprit
    assert (found.op, found.module) == ("addmm", "0")
    assert "1 NaN" in found.title


class Running(nn.Module):
    """Centres by a running mean."""

    def __init__(self, keeps: float) -> None:
        super().__init__()
        self.line, self.keeps = nn.Linear(4, 2), keeps
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> Any:
        with torch.no_grad():
            if self.keeps:
                self.mean.mul_(self.keeps).add_(x.mean(0), alpha=1 - self.keeps)
            else:
                self.mean.copy_(x.mean(0))
        return self.line(x - self.mean)


@pytest.mark.parametrize("change", [{"dtype": torch.float32}, {"without": [0]}])
@pytest.mark.parametrize("keeps", [0.9, 0.0])
def test_a_buffer_that_goes_on_from_a_bad_value_has_a_culprit(
    change: dict[str, Any], keeps: float
) -> None:
    torch.manual_seed(0)
    net = Running(keeps)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with nanlab.watch(net, on_fault="record") as trace:
        for i in range(4):
            x = torch.randn(8, 4)
            x = x.log() if i == 2 else x
            loss = net(x).square().mean()
            if loss.isfinite():
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    found = trace.replay(step=2, **change).culprit
    assert (found is None) == (not keeps) == (trace.culprit is None)
    assert found is None or found.cause == trace.culprit.cause == "log-of-negative"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_model_in_half_precision_has_findings_in_float32(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).to(dtype)
    optimizer = torch.optim.Adam(net.parameters(), eps=1e-3)
    with nanlab.watch(net, on_fault="record") as trace:
        for _ in range(2):
            y = net(torch.randn(4, 8, dtype=dtype))
            y.register_hook(lambda gradient: gradient * 2)
            optimizer.zero_grad()
            (y * 300).float().square().mean().backward()
            optimizer.step()
    wide = trace.replay(dtype=torch.float32)
    assert wide.culprit is None
    assert {*wide.ops.dtype} == {"float32"}
    assert wide.trace.steps.loss.tolist() == [wide.loss]


# A setting that was judged is replayed, though the step does not run the line that makes it.


def narrow(kind: str) -> Program:
    """An update in float16, whose eps is zero."""

    def made() -> tuple[nn.Module, Callable[[int], None]]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).half()
        optimizer = getattr(torch.optim, kind)(net.parameters(), lr=1e-3)

        def step(i: int) -> None:
            scores = net(torch.randn(4, 8).half()).float()
            loss = nn.functional.cross_entropy(scores, torch.tensor([0, 1, 2, 0]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        return net, step

    return made


def diverging() -> tuple[nn.Module, Callable[[int], None]]:
    """A learning rate that is far too large."""
    torch.manual_seed(0)
    net, x = nn.Linear(8, 1), torch.randn(16, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e3)

    def step(i: int) -> None:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    return net, step


@pytest.mark.parametrize(
    ("program", "setting"),
    [(narrow("Adam"), "eps"), (narrow("RMSprop"), "eps"), (diverging, "lr")],
)
def test_a_setting_that_was_judged_is_replayed(
    program: Program, setting: str, tmp_path: Path
) -> None:
    net, step = program()
    with nanlab.watch(net, on_fault="record", keep=9) as trace:
        for i in range(9):
            step(i)
    for each in (trace, nanlab.load(trace.save(tmp_path / "s.nanlab"))):
        fix = each.culprit.fixes[0]
        assert [name for name, _ in fix.settings] == [setting] and fix.verdict == "finite"
        again = each.replay(fix=fix)
        assert again.finite and again.culprit is None
        assert each.replay(fix=[fix]).loss == again.loss


def misused(clips: int) -> nanlab.Trace:
    """Gradients are clipped before they are unscaled, in the first steps."""
    torch.manual_seed(0)
    net = nn.Linear(8, 3)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    with nanlab.watch(net, on_fault="record") as trace:
        for i in range(5):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = nn.functional.cross_entropy(net(torch.randn(4, 8)), torch.arange(4) % 3)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            if i < clips:
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
    return trace


def test_a_silent_fault_of_each_step_is_replayed_in_the_last() -> None:
    trace = misused(5)
    assert trace.culprit.cause == "scaler-misuse" and trace.culprit.step == 0
    again = trace.replay()
    assert again.identical and again.step == 4 and again.culprit is trace.culprit
    assert trace.replay(lr=0.1).culprit.cause == "scaler-misuse"


def test_a_step_that_is_no_longer_kept_says_which_are() -> None:
    trace = misused(1)
    with pytest.raises(nanlab.NotReplayable, match="in which a value first turned bad; try keep=5"):
        trace.replay(step=0)
    with pytest.raises(nanlab.NotReplayable, match="step 0 is no longer kept"):
        trace.replay()
