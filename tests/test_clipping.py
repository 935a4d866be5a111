"""Clipping told from the gradients themselves: who clips, how often, by how much, and which bound
would be a good one."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
import torch
from torch import nn

import nanlab
from nanlab.errors import UsageError
from nanlab.findings.rule import Finding
from nanlab.topics.clipping import clipping
from nanlab.trace import Trace

torch.set_num_threads(1)
Clip = Callable[[list[nn.Parameter]], None]
BOUND = 2.0


def total(parameters: list[nn.Parameter]) -> float:
    return math.sqrt(
        sum(float(p.grad.double().square().sum()) for p in parameters if p.grad is not None)
    )


def by_hand(parameters: list[nn.Parameter]) -> None:
    with torch.no_grad():
        norm = torch.sqrt(sum(p.grad.square().sum() for p in parameters))  # type: ignore[union-attr,arg-type,misc]
        if norm > BOUND:
            for p in parameters:
                p.grad.mul_(BOUND / norm)  # type: ignore[union-attr]


def by_numbers(parameters: list[nn.Parameter]) -> None:
    norm = total(parameters)
    for p in parameters:
        p.grad.data.mul_(min(1.0, BOUND / norm))  # type: ignore[union-attr]


def averaged(parameters: list[nn.Parameter]) -> None:
    for p in parameters:
        p.grad.div_(4)  # type: ignore[union-attr]


def anew(parameters: list[nn.Parameter]) -> None:
    for p in parameters:
        p.grad = p.grad.clamp(-0.5, 0.5)  # type: ignore[union-attr]


def unscaled(parameters: list[nn.Parameter]) -> None:
    """By a number that differs from step to step, as a loss scale of one's own does."""
    for p in parameters:
        p.grad.mul_(0.01 / (1.0 + abs(float(parameters[0].detach()[0, 0]))))  # type: ignore[union-attr]


NORM: dict[str, Clip] = {
    "clip_grad_norm_": lambda p: nn.utils.clip_grad_norm_(p, BOUND) and None,
    "one by one": lambda p: nn.utils.clip_grad_norm_(p, BOUND, foreach=False) and None,
    "by hand": by_hand,
    "by hand, with numbers": by_numbers,
}
VALUE: dict[str, Clip] = {
    "clip_grad_value_": lambda p: nn.utils.clip_grad_value_(p, 0.5),
    "new gradients": anew,
}


def train(
    clip: Clip | None, scaled: bool = False, steps: int = 9
) -> tuple[Trace, list[tuple[float, float]]]:
    """(trace, norms before and after clipping as torch computes them); losses differ so that some
    steps are clipped."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))
    parameters = list(net.parameters())
    opt = torch.optim.SGD(parameters, lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12) if scaled else None
    real = []
    with nanlab.watch(net, on_fault="record") as trace:
        for i in range(steps):
            x = torch.randn(16, 8)
            opt.zero_grad()
            loss = (net(x) - 3 * x[:, :4]).square().mean() * (0.1, 1.0, 5.0)[i % 3]
            (scaler.scale(loss) if scaler else loss).backward()
            if scaler:
                scaler.unscale_(opt)
            before = total(parameters)
            if clip is not None:
                clip(parameters)
            real.append((before, total(parameters)))
            if scaler:
                scaler.step(opt)
                scaler.update()
            else:
                opt.step()
    assert not trace.notes and trace.findings == []
    return trace, real


@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])
@pytest.mark.parametrize("name", [*NORM, *VALUE])
def test_norms_before_and_after_are_those_that_torch_computes_whoever_clips(
    name: str, scaled: bool
) -> None:
    trace, real = train({**NORM, **VALUE}[name], scaled)
    found = trace.clipping()
    assert np.allclose(found.history.before.to_numpy(float), [b for b, _ in real], rtol=1e-5)
    assert np.allclose(found.history.after.to_numpy(float), [a for _, a in real], rtol=1e-5)
    assert found.history.clipped.tolist() == [a < 0.999 * b for b, a in real]
    assert 0.3 < found.share < 1.0 and found.share == np.mean([a < 0.999 * b for b, a in real])
    assert found.kind == ("norm" if name in NORM else "value")
    assert found.bound == pytest.approx(BOUND if name in NORM else 0.5, rel=1e-4)
    assert found.place is not None and found.place[0].endswith("test_clipping.py")


@pytest.mark.parametrize(
    "clip", [None, averaged, unscaled], ids=["nothing", "an average over four", "a scale"]
)
def test_what_does_not_clip_is_not_taken_for_clipping(clip: Clip | None) -> None:
    found = train(clip)[0].clipping()
    assert (found.kind, found.share, found.bound, found.place) == ("", 0.0, None, None)


def test_a_step_whose_norm_is_no_number_counts_for_no_bound() -> None:
    found = train(None, steps=6)[0].clipping()
    found.history.loc[found.history.index[-1], "before"] = float("nan")
    largest = found.history["before"].max()
    assert found.would_clip(largest) == 0.0
    assert "none of 6 steps clipped" in repr(found)


def test_without_clipping_the_table_says_what_each_bound_would_have_clipped() -> None:
    trace, real = train(None, steps=12)
    found, norms = trace.clipping(), np.array([b for b, _ in real])
    table = found.table()
    assert {1.0, 5.0, 10.0} <= set(table.index)
    for bound in table.index:
        assert table.clipped[bound] == pytest.approx((norms > bound).mean())
    assert found.advised_max_norm is not None
    assert (
        np.quantile(norms, 0.9)
        <= found.advised_max_norm * 1.01
        <= 1.6 * np.quantile(norms, 0.9, method="higher")
    )
    assert "advised" in table.choice[found.advised_max_norm]


def test_parameter_that_dominates_the_norm_is_named_with_its_share() -> None:
    torch.manual_seed(0)
    small, large = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(4))
    opt = torch.optim.SGD([small, large], lr=1e-3)
    net = nn.ParameterDict({"small": small, "large": large})
    with nanlab.watch(net, on_fault="record") as trace:
        for _ in range(3):
            opt.zero_grad()
            (1.0 * small.sum() + 3.0 * large.sum()).backward()
            opt.step()
    found = trace.clipping()
    assert found.parameters.index[0] == "large"
    assert found.parameters.share["large"] == pytest.approx(36 / 39)
    assert set(found.history.top) == {"large"} and found.parameters["first"].tolist() == [3, 0]


def test_exploding_run_is_advised_by_the_norms_before_the_explosion() -> None:
    torch.manual_seed(1)
    net = nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.3)
    ordinary = []
    with nanlab.watch(net, on_fault="record") as trace:
        for i in range(60):
            x = torch.randn(16, 4) * (1.0 if i < 15 else 40.0)
            opt.zero_grad()
            loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            if i < 15:
                ordinary.append(total(list(net.parameters())))
            opt.step()
            if not math.isfinite(float(loss.detach())):
                break
    found = trace.clipping()
    assert found.history.before.max() > 1e9
    assert found.advised_max_norm is not None and found.advised_max_norm <= 2 * max(ordinary)


def test_two_optimizers_have_a_row_each() -> None:
    torch.manual_seed(0)
    a, b = nn.Linear(4, 4), nn.Linear(4, 1)
    first, second = (
        torch.optim.SGD(a.parameters(), lr=1e-2),
        torch.optim.Adam(b.parameters(), lr=1e-3),
    )
    with nanlab.watch(nn.ModuleList([a, b]), on_fault="record") as trace:
        for _ in range(3):
            first.zero_grad(), second.zero_grad()
            (100 * b(a(torch.randn(8, 4))).square().mean()).backward()
            nn.utils.clip_grad_norm_(a.parameters(), 0.01)
            first.step()
            second.step()
    history = trace.clipping().history
    assert history.optimizer.tolist() == ["SGD", "Adam"] * 3
    assert history.clipped.tolist() == [True, False] * 3


def test_skipped_step_has_a_norm_before_and_none_after() -> None:
    net = nn.Linear(4, 2)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    with nanlab.watch(net, on_fault="record") as trace:
        for i in range(3):
            opt.zero_grad()
            half = net(torch.randn(8, 4)).half()
            scaler.scale(half.float().square().mean() * (1e4 if i == 0 else 1.0)).backward()
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(net.parameters(), 1e3)
            scaler.step(opt)
            scaler.update()
    history = trace.clipping().history
    assert history.after.isna().tolist() == [True, False, False]
    assert not math.isfinite(history.before[0]) and math.isfinite(history.before[1])


def always(bound: float, misuse: bool = False) -> Trace:
    torch.manual_seed(0)
    net = nn.Linear(8, 4)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    with nanlab.watch(net, on_fault="record") as trace:
        for _ in range(25):
            x = torch.randn(16, 8)
            opt.zero_grad()
            (net(x) - 3 * x[:, :4]).square().mean().backward()
            nn.utils.clip_grad_norm_(net.parameters(), bound)  # ALWAYS
            opt.step()
    return trace


def test_clipping_that_is_always_on_is_a_note_with_a_better_bound() -> None:
    (found,) = always(0.01).findings
    with open(__file__) as file:
        line = next(i for i, text in enumerate(file, 1) if text.rstrip().endswith("# ALWAYS"))
    assert (found.cause, found.severity, found.line) == ("clip-always-on", "note", line)
    advised = always(0.01).clipping().advised_max_norm
    assert f"{advised:g}" in found.fixes[0].code


@pytest.mark.parametrize("bound", [1.0, 5.0, 100.0])
def test_clipping_to_a_fair_part_or_seldom_is_silent(bound: float) -> None:
    assert always(bound).findings == []


SCALE = 2.0**12


def scaled_by_hand(*edits: Clip) -> Trace:
    torch.manual_seed(0)
    net = nn.Linear(8, 4)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    with nanlab.watch(net, on_fault="record") as trace:
        for _ in range(4):
            x = torch.randn(16, 8)
            opt.zero_grad()
            ((net(x) - 3 * x[:, :4]).square().mean() * SCALE).backward()
            for edit in edits:
                edit(list(net.parameters()))
            opt.step()
    return trace


def clipped(parameters: list[nn.Parameter]) -> None:
    nn.utils.clip_grad_norm_(parameters, 1.0)


def divided(parameters: list[nn.Parameter]) -> None:
    for p in parameters:
        p.grad.div_(SCALE)  # type: ignore[union-attr]


def by_tokens(parameters: list[nn.Parameter]) -> None:
    for p in parameters:
        p.grad.div_(torch.tensor(64.0))  # type: ignore[union-attr]


def test_clipping_under_a_scale_of_ones_own_is_told() -> None:
    (found,) = [f for f in scaled_by_hand(clipped, divided).findings if f.severity == "error"]
    assert found.cause == "scaler-misuse" and "before their scale of 4096" in found.title


@pytest.mark.parametrize("edits", [(divided, clipped), (by_tokens, divided), (divided,)])
def test_scale_that_is_divided_out_in_time_is_no_misuse(edits: tuple[Clip, ...]) -> None:
    assert not any(f.severity == "error" for f in scaled_by_hand(*edits).findings)


@pytest.mark.parametrize(("gain", "count"), [(1.0, 0), (150.0, 1)])
def test_norm_in_half_whose_factor_is_a_python_number_is_told(gain: float, count: int) -> None:
    torch.manual_seed(0)
    net = nn.Linear(6, 8).half()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    with nanlab.watch(net, on_fault="record") as trace:
        for _ in range(2):
            opt.zero_grad()
            (net(torch.randn(16, 6).half()).float() - 3.0 * gain).square().mean().backward()
            square = sum(p.grad.pow(2).sum() for p in net.parameters())  # type: ignore[union-attr]
            factor = min(1.0, float(5.0 / square**0.5))  # type: ignore[operator]
            for p in net.parameters():
                p.grad.mul_(factor)  # type: ignore[union-attr]
            opt.step()
    found = [f for f in trace.findings if f.severity == "error"]
    assert len(found) == count and all(f.cause == "dtype-overflow" for f in found)


def test_plot_draws_both_norms_and_the_advised_bound() -> None:
    with mpl.rc_context({"backend": "agg"}):
        ax = train(NORM["clip_grad_norm_"])[0].clipping().plot()
        labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert (
        labels[0] == "norm before clipping"
        and labels[1] == "after"
        and labels[2].startswith("max_norm=")
    )


def test_run_without_gradients_is_refused() -> None:
    with nanlab.watch() as trace:
        torch.ones(3).sum()
    with pytest.raises(UsageError, match="no gradients"):
        clipping(trace)


MISUSED = {
    "clipped before it is unscaled": (
        "    scaler.scale(loss).backward()\n"
        "    nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n"
        "    grads.step(opt)\n    grads.update()\n",
        "grads.unscale_(opt)\nnn.utils.clip_grad_norm_(net.parameters(), 1.0)",
    ),
    "clipped on the line of backward": (
        "    scaler.scale(loss).backward(); nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n"
        "    grads.step(opt)\n    grads.update()\n",
        "grads.scale(loss).backward(); grads.unscale_(opt);"
        " nn.utils.clip_grad_norm_(net.parameters(), 1.0)",
    ),
    "clipped under a condition": (
        "    scaler.scale(loss).backward()\n"
        "    if i >= 0: nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n"
        "    grads.step(opt)\n    grads.update()\n",
        "if i >= 0: grads.unscale_(opt); nn.utils.clip_grad_norm_(net.parameters(), 1.0)",
    ),
    "clipped on several lines": (
        "    opt.zero_grad(); scaler.scale(loss).backward()\n"
        "    total = nn.utils.clip_grad_norm_(\n        net.parameters(), 1.0\n    )\n"
        "    grads.step(opt); grads.update()\n",
        "grads.unscale_(opt)\ntotal = nn.utils.clip_grad_norm_(",
    ),
    "unscaled after the clipping": (
        "    scaler.scale(loss).backward()\n"
        "    nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n"
        "    # the update\n    scaler.unscale_(opt)  # first\n"
        "    grads.step(opt)\n    grads.update()\n",
        "grads.unscale_(opt)\nnn.utils.clip_grad_norm_(net.parameters(), 1.0)\n# the update",
    ),
    "unscaled after the clipping, on its line": (
        "    scaler.scale(loss).backward()\n    total = nn.utils.clip_grad_norm_(net.parameters(),"
        " 1.0); scaler.unscale_(opt); scaler.step(opt)\n    scaler.update()\n",
        "grads.unscale_(opt)\n"
        "total = nn.utils.clip_grad_norm_(net.parameters(), 1.0); grads.step(opt)",
    ),
    "stepped without the scaler": (
        "    scaler.scale(loss).backward()\n    opt.step()\n",
        "grads.step(opt)\ngrads.update()",
    ),
}


@pytest.mark.parametrize("what", MISUSED)
def test_a_misused_scaler_is_mended_in_the_names_of_the_program(what: str, tmp_path: Path) -> None:
    end, code = MISUSED[what]
    program = (
        "import torch\nfrom torch import nn\n\ntorch.manual_seed(0)\nnet = nn.Linear(4, 2)\n"
        "opt = torch.optim.SGD(net.parameters(), lr=1e-3)\n"
        'grads = torch.amp.GradScaler("cpu")\nfor i in range(4):\n    opt.zero_grad()\n'
        "    loss = net(torch.randn(8, 4)).square().mean()\n" + end.replace("scaler.", "grads.")
    )

    def findings(text: str, name: str) -> list[Finding]:
        path = tmp_path / name
        path.write_text(text)
        with nanlab.watch(on_fault="record") as trace:
            exec(compile(text, str(path), "exec"), {})
        return [f for f in trace.findings if f.cause == "scaler-misuse"]

    (found,) = findings(program, "before.py")
    (fix,) = [fix for fix in found.fixes if fix.edits]
    assert fix.code == code and fix.verdict == "untried"
    (edit,) = fix.edits
    rows = program.splitlines()
    rows[edit.first - 1 : edit.last] = edit.rows()
    assert findings("\n".join(rows) + "\n", "after.py") == []


def test_steps_without_an_update_are_counted_whatever_kept_it_away() -> None:
    net = nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    with nanlab.watch(net) as trace:
        (net(torch.ones(3, 4)) * 0).sqrt().sum().backward()  # stops here
        opt.step()
    assert trace.culprit is not None
    assert clipping(trace).told() == "1 step recorded, none with an update"
    with nanlab.watch(net) as trace:
        net(torch.ones(3, 4)).sum().backward()
    assert clipping(trace).told().startswith("1 step recorded, none with an update")
