"""The recorded step is a program: it runs again bit for bit, and with edits as the program written
so."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import nanlab
from nanlab.errors import NotReplayable
from nanlab.rules import Edit, Fix


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.conv = nn.Conv1d(5, 5, 3, padding=1)
        self.head = nn.Sequential(
            nn.Linear(8, 16), nn.Dropout(0.2), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.lstm(self.conv(x))
        return self.head(hidden[:, -1])  # type: ignore[no-any-return]


class Independent(TorchDispatchMode):
    """Copies of what each call of the program returned, taken without nanlab."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Any, list[torch.Tensor]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        frame = sys._getframe(1)
        while frame.f_back is not None and (
            "torch" in frame.f_code.co_filename or "_with_zeros" in frame.f_code.co_qualname
        ):
            frame = frame.f_back
        if frame.f_code.co_name == "__torch_dispatch__":  # the program's, not nanlab's own
            flat = out if isinstance(out, list | tuple) else [out]
            self.seen.append(
                (func, [t.detach().clone() for t in flat if isinstance(t, torch.Tensor)])
            )
        return out


def training(
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
) -> Callable[[], None]:
    torch.manual_seed(0)
    net = Net()
    update = optimizer(net.parameters(), lr=1e-3)

    def step() -> None:
        update.zero_grad()
        loss = net(torch.randn(32, 5, 8)).pow(2).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        update.step()

    return step


def test_every_kept_step_runs_again_identically() -> None:
    step = training()
    with nanlab.watch() as trace:
        for _ in range(4):
            step()
    for number in (2, 3):
        again = trace.replay(step=number)
        assert again.identical, again.different
        assert again.loss == pytest.approx(trace.steps.loss[number], rel=1e-6)


def test_a_tensor_is_what_an_independent_mode_saw() -> None:
    step, independent = training(torch.optim.SGD), Independent()
    with independent, nanlab.watch() as trace:
        for _ in range(2):
            step()
    # nanlab makes room for its copies, too
    calls = [c for c in trace.recording.program.segments[-1].calls if "empty" not in str(c.func)]
    seen = [each for each in independent.seen if each[0] in {c.func for c in calls}][-len(calls) :]
    for at in range(0, len(calls), 7):
        call, (func, results) = calls[at], seen[at]
        assert call.func is func
        if results:
            phase = trace.ops.loc[call.position, "phase"]
            assert torch.equal(trace.tensor(call.position), results[0]), (str(func), phase)
    assert set(trace.ops.phase) >= {"forward", "backward", "optimizer"}


def test_copies_that_measure_an_update_are_paid_from_the_budget() -> None:
    torch.manual_seed(0)
    model = nn.Linear(64, 64)  # a weight of 16 KiB, a bias of 256 bytes
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with nanlab.watch(model, budget=4096) as trace:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 64)).square().mean().backward()
            optimizer.step()
    measured = trace.parameters.groupby("parameter").update_rms.count()
    assert measured["weight"] == 0 and measured["bias"] == 3


def test_a_step_with_a_node_whose_calls_are_not_seen_runs_again() -> None:
    x = torch.rand(4, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    with nanlab.watch() as trace:
        x.exp().prod(1).sum().backward()  # the derivative of prod runs below the dispatcher
    again = trace.replay()
    assert again.identical, again.different
    for position, shape in trace.ops["shape"].items():
        assert tuple(trace.tensor(position).shape) == shape


def test_a_step_that_seeds_and_draws_from_its_own_generator_runs_again() -> None:
    own, w = torch.Generator().manual_seed(3), nn.Parameter(torch.ones(4))
    with nanlab.watch() as trace:
        for seed in range(3):
            torch.manual_seed(seed)
            noise = torch.randn(4) + torch.randn(4, generator=own)
            (w * noise).sum().backward()
            with torch.no_grad():
                w -= 0.1 * torch.rand(4)
    before = torch.get_rng_state(), own.get_state()
    assert trace.replay(step=2).identical
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.equal(own.get_state(), before[1])


def test_what_the_program_does_after_the_watch_does_not_change_the_replay() -> None:
    step = training()
    with nanlab.watch() as trace:
        step()
        step()
    loss = trace.replay().loss
    step()
    step()
    again = trace.replay()
    assert again.identical
    assert again.loss == loss


FAULTY = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, 16), torch.nn.Linear(8, 4)

    def forward(self, x):
        h = (self.a(x) - self.a.bias).view(-1, 8)
        length = torch.sqrt(h.pow(2).sum(-1))
        return self.b(h / (1 + length[:, None]))

def build():
    torch.manual_seed(0)
    net, x = Net(), torch.randn(32, 8)
    x[3] = 0
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)

    def step(i):
        optimizer.zero_grad()
        loss = torch.nn.functional.dropout(net(x), 0.1).log_softmax(-1)[:, 0].neg().mean()
        loss.backward()
        optimizer.step()
        return loss

    return net, step
"""


def built(text: str, path: Any) -> tuple[nn.Module, Callable[[int], torch.Tensor]]:
    path.write_text(text)
    scope: dict[str, Any] = {"__name__": "program"}
    exec(compile(text, str(path), "exec"), scope)
    return scope["build"]()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("new", "finite"),
    [
        ("length = torch.sqrt(h.pow(2).sum(-1) + 1e-12)", True),
        ("length = torch.where(h.pow(2).sum(-1) > 0, torch.sqrt(h.pow(2).sum(-1)), 0.0)", False),
        (
            (
                "d = h.pow(2).sum(-1)\nlength = torch.where(d > 0, torch.sqrt(torch.where(d > 0, d,"
                " 1.0)), 0.0)"
            ),
            True,
        ),
        ("length = h.norm(dim=-1)", True),
        ("length = nanlab.safe.sqrt(h.pow(2).sum(-1))", True),
    ],
)
def test_a_step_with_an_edit_is_that_of_the_program_written_so(
    tmp_path: Any, new: str, finite: bool
) -> None:
    _, step = built(FAULTY, tmp_path / "faulty.py")
    with nanlab.watch(on_fault="record") as trace:
        step(0)
    edit = Edit(str(tmp_path / "faulty.py"), 10, 10, new)
    again = trace.replay(Fix("another root", new, edits=(edit,)))
    assert again.identical is None
    assert again.finite is finite

    rows = FAULTY.splitlines()
    rows[9:10] = ["        " + row for row in new.splitlines()]
    net, step = built("import nanlab\n" + "\n".join(rows), tmp_path / "written.py")
    loss = step(0)
    assert again.loss == loss.item()
    named = {f"Net.{name}": p for name, p in net.named_parameters()}
    assert again.gradients.keys() == named.keys()
    for name, parameter in named.items():
        assert torch.equal(again.gradients[name].nan_to_num(7.0), parameter.grad.nan_to_num(7.0)), (
            name
        )
        assert torch.equal(
            again.parameters[name].nan_to_num(7.0), parameter.detach().nan_to_num(7.0)
        ), name


SHARED = """
import torch


def window(t):
    return torch.sin(t) / t


def both(t):
    s = torch.cos(t)
    return s + slope(t)


def slope(t):
    return torch.log1p(t) / t


def build():
    w = torch.nn.Parameter(torch.tensor([0.5, 0.25, 0.125]))

    def step(i):
        t = 2 * w
        made = window(t)
        made = made + both(t) + window(t) * t
        made.sum().backward()
        return made.sum()

    return w, step
"""


@pytest.mark.parametrize(
    ("line", "new", "told"),
    [
        (6, "t = t + 0.25\nreturn torch.sin(t) / t", True),
        (15, "t = t.clamp(min=0.75)\nreturn torch.log1p(t) / t", True),
        # which calls of a function that is given the name read it is not known
        (10, "t = t * 0.5\ns = torch.cos(t)", False),
        (11, "t = t + 0.25\nreturn s + slope(t)", False),
        (23, "t = t.clamp(min=0.75)\nmade = window(t)", False),
        (24, "t = t.clamp(min=0.75)\nmade = made + both(t) + window(t) * t", False),
    ],
)
def test_a_name_bound_anew_is_another_for_those_alone_that_read_this_name(
    tmp_path: Any, line: int, new: str, told: bool
) -> None:
    _, step = built(SHARED, tmp_path / "shared.py")
    with nanlab.watch(on_fault="record") as trace:
        step(0)
    edit = Edit(str(tmp_path / "shared.py"), line, line, new)
    fix = Fix("another value", new, edits=(edit,))
    if not told:
        with pytest.raises(NotReplayable):
            trace.replay(fix)
        return
    again = trace.replay(fix)
    rows = SHARED.splitlines()
    rows[line - 1 : line] = ["    " + row for row in new.splitlines()]
    w, step = built("\n".join(rows), tmp_path / "written.py")
    assert again.loss == step(0).item()
    (gradient,) = again.gradients.values()
    assert torch.equal(gradient, w.grad)


def test_a_value_that_the_program_looked_at_and_that_is_another_now_is_told(tmp_path: Any) -> None:
    text = (
        "import torch\n\n\ndef build():\n    w = torch.nn.Parameter(torch.tensor([0.0, 4.0]))\n\n  "
        "  def step(i):\n        root = torch.sqrt(w)\n        if root.sum().item() > 1:\n         "
        "   pass\n        root.sum().backward()\n\n    return w, step\n"
    )
    _, step = built(text, tmp_path / "looks.py")
    with nanlab.watch(on_fault="record") as trace:
        step(0)
    edit = Edit(str(tmp_path / "looks.py"), 8, 8, "root = torch.sqrt(w + 1.0)")
    again = trace.replay(Fix("one more", "", edits=(edit,)))
    assert [place.rsplit(":", 1)[1] for place in again.looked_at] == ["9"]


def test_without_memory_for_it_a_step_cannot_be_run_again_and_says_why() -> None:
    step = training()
    with nanlab.watch(budget=0) as trace:
        step()
    with pytest.raises(nanlab.NotReplayable, match="budget=0"):
        trace.replay()
    with nanlab.watch(budget=64) as trace:
        step()
    with pytest.raises(nanlab.NotReplayable, match="budget"):
        trace.replay()


def test_a_step_that_is_no_longer_kept_is_refused() -> None:
    step = training()
    with nanlab.watch(keep=1) as trace:
        for _ in range(5):
            step()
    with pytest.raises(nanlab.NotReplayable, match="keep="):
        trace.replay(step=0)
    with pytest.raises(nanlab.NanlabError, match="steps 0 to 4"):
        trace.replay(step=9)


def test_of_a_run_that_goes_on_poisoned_the_first_faults_step_and_the_last_are_kept(
    tmp_path: Any,
) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(net.parameters())
    with nanlab.watch(net, on_fault="record") as trace:
        for i in range(300):
            optimizer.zero_grad()
            out = net(torch.randn(16, 8))
            (out.square() * (i != 5)).sum().sqrt().backward()
            optimizer.step()
    program = trace.recording.program
    assert trace.culprit is not None and trace.culprit.step == 5
    assert trace.recording.step_of(program.segments[0].start) == 5
    assert len(program.segments) < 150  # of the steps that were not folded yet all are there
    assert len(program.runs()) == 2
    trace.save(tmp_path / "poisoned.nanlab")
    loaded = nanlab.load(tmp_path / "poisoned.nanlab")
    for each in (trace, loaded):
        assert each.replay(step=5).identical and each.replay().identical
        assert each.replay(step=299).identical
        with pytest.raises(nanlab.NotReplayable, match="keep="):
            each.replay(step=50)
        assert each.culprit is not None and each.culprit.cause == "sqrt-at-zero"


@pytest.mark.parametrize("loop", ["cells", "noise"])
def test_a_step_whose_loops_look_like_steps_until_backward_reaches_over_them_runs_again(
    loop: str,
) -> None:
    torch.manual_seed(0)
    net = nn.ModuleDict({"cell": nn.LSTMCell(4, 8), "head": nn.Linear(8, 1)})
    optimizer = torch.optim.Adam(net.parameters())
    dropout = nn.Dropout(0.1)
    with nanlab.watch(net) as trace:
        for i in range(5):
            h = c = torch.zeros(8, 8)
            if loop == "noise":
                inputs = [dropout(torch.randn(8, 4)) for _ in range(12)]
            else:
                inputs = [torch.randn(8, 4) for _ in range(12)]
            for x in inputs:
                h, c = net["cell"](x, (h, c))
            loss = (net["head"](h) * (i != 3)).square().sum(1).sqrt().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert trace.culprit is not None and trace.culprit.step == 3
    assert trace.replay().identical and trace.replay(step=2).identical
    assert trace.replay().trace.culprit.cause == trace.culprit.cause


@pytest.mark.parametrize("grad", [False, True])
def test_an_evaluation_leaves_the_last_training_steps_and_no_trail_beyond_the_budget(
    grad: bool,
) -> None:
    torch.manual_seed(0)
    net = nn.Linear(1000, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    with nanlab.watch(net, budget=1 << 20) as trace:
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.randn(4, 1000)).square().mean().backward()
            optimizer.step()
        with torch.set_grad_enabled(grad):
            for _ in range(100):
                net(torch.randn(50, 1000)).square().mean().item()  # 200 kB each
        kept = trace.recording.program.segments
        assert len(kept) <= (9 if grad else 6)
        if not grad:
            assert any(segment.optimizers for segment in kept)
