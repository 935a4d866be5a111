"""Fixes of what no loss is computed from: gradients that a program scales itself, and buffers."""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import Any

import pytest
import torch

import nanlab
from nanlab.rules import Edit, Finding, Fix
from nanlab.rules.remedies import judge_for
from nanlab.trace import Trace


def watched(text: str, path: Path, steps: int = 3) -> Trace:
    """A program's steps; it defines model and step."""
    file = path / "program.py"
    file.write_text(text)
    linecache.checkcache(str(file))
    names: dict[str, Any] = {"torch": torch, "nn": torch.nn, "__name__": "program"}
    exec(compile(text, str(file), "exec"), names)
    with nanlab.watch(names["model"], on_fault="record") as trace:
        for i in range(steps):
            names["step"](i)
    return trace


def told(trace: Trace) -> tuple[Finding, dict[str, Fix]]:
    finding = trace.culprit or trace.findings[0]
    return finding, {fix.code: fix for fix in finding.fixes}


def verdict_of(trace: Trace, code: str) -> str:
    """That of another line in the place of the culprit's."""
    finding, _ = told(trace)
    judge = judge_for(trace, finding)
    assert not isinstance(judge, str)
    row = linecache.getline(finding.file, finding.line).rstrip()
    return judge.judge([Edit(finding.file, finding.line, finding.line, code, row)]).verdict


SCALED = """
torch.manual_seed(0)
model = nn.Linear(3, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.ones(4, 3)
def step(i):
    opt.zero_grad()
    k = 4 if i == 0 else 0
    loss = model(x[:k]).square().sum()
    loss.backward()
    n = COUNT
    for g in [p.grad for p in model.parameters()]:
        LINE
    opt.step()
"""


@pytest.mark.parametrize(
    ("line", "count", "code"),
    [
        ("g.div_(n)", "k", "g.div_(max(n, 1))"),
        ("g.div_(n)", "torch.ones(k).bool().sum()", "g.div_(n.clamp_min(1))"),
        ("g /= n", "k", "g /= max(n, 1)"),
        ("h = g; h /= n", "k", "h /= max(n, 1)"),
        ("g.view(-1).div_(n)", "k", "g.view(-1).div_(max(n, 1))"),
        ("g.copy_(g / n)", "k", "g.copy_(g / max(n, 1))"),
    ],
)
def test_a_gradient_is_divided_in_place_by_a_count_of_at_least_one(
    line: str, count: str, code: str, tmp_path: Path
) -> None:
    trace = watched(SCALED.replace("LINE", line).replace("COUNT", count), tmp_path)
    finding, fixes = told(trace)
    assert finding.cause == "div-by-zero"
    (best,) = (fix for text, fix in fixes.items() if code in text)
    assert best is finding.fixes[0] and best.verified
    # others have the tensor by another name: it is no help to give it another here
    assert not any(f.verified and ("g = " in t.split("; ")[-1]) for t, f in fixes.items())


@pytest.mark.parametrize("line", ["g.div_(n)", "g /= n"])
def test_a_gradient_that_is_not_zero_has_no_quotient_by_a_count_of_zero(
    line: str, tmp_path: Path
) -> None:
    text = SCALED.replace("LINE", line).replace("COUNT", "k").replace("x[:k]", "x")
    trace = watched(text, tmp_path)
    finding, fixes = told(trace)
    assert {fix.verdict for fix in finding.fixes if fix.edits} == {"finite"} and fixes
    assert verdict_of(trace, "g.mul_(0)" if "div" in line else "g *= 0") != "verified"


def test_what_a_trial_writes_in_place_is_what_the_update_reads(tmp_path: Path) -> None:
    text = SCALED.replace("LINE", "g.view(-1)[0:1].div_(n)").replace("COUNT", "k")
    trace = watched(text.replace("x[:k]", "x"), tmp_path)
    replay = trace.replay(next(f for f in trace.culprit.fixes if "max(n, 1)" in f.code))  # type: ignore[union-attr]
    for name, after in replay.parameters.items():
        assert bool(after.isfinite().all()), name
        assert bool(replay.gradients[name].isfinite().all()), name


NORM = """
torch.manual_seed(0)
model = nn.Linear(8, 8).half()
params = list(model.parameters())
opt = torch.optim.SGD(params, lr=1e-4)
x = torch.randn(512, 8).half()
def step(i):
    opt.zero_grad()
    loss = (model(x * (0.1 if i < 1 else 1.0)).float() * SCALE).square().sum()
    loss.backward()
    total = START
    for p in params:
        g = p.grad
        LINE
    factor = (2.0 / (total ** 0.5 + 1e-3)).clamp(max=1.0)
    for p in params:
        p.grad.mul_(factor)
    opt.step()
"""
WIDE = "total = total + g.float()"


@pytest.mark.parametrize(
    ("line", "scale", "code"),
    [
        ("total = total + g.pow(2).sum()", 0.45, f"{WIDE}.pow(2).sum()"),
        ("total = total + g.pow(2).sum()", 1.0, f"{WIDE}.pow(2).sum()"),
        ("total = total + torch.sum(g * g)", 0.45, f"{WIDE}.square().sum()"),
        ("total += (g ** 2).sum()", 0.45, "total += g.float().pow(2).sum()"),
        ("total = total + g.norm() ** 2", 0.5, f"{WIDE}.norm() ** 2"),
    ],
)
def test_a_norm_of_gradients_in_half_is_added_up_in_float32(
    line: str, scale: float, code: str, tmp_path: Path
) -> None:
    text = NORM.replace("LINE", line).replace("SCALE", f"{scale}").replace("START", "0.0")
    trace = watched(text, tmp_path)
    finding, fixes = told(trace)
    assert finding.cause == "dtype-overflow" and finding.fixes[0].code == code
    assert fixes[code].verified
    assert not any("autocast" in fix for fix in fixes)  # there is none
    assert verdict_of(trace, code.replace("g.float()", "0.5 * g.float()")) == "finite"


def test_what_is_added_to_a_number_in_half_stays_in_half(tmp_path: Path) -> None:
    text = NORM.replace("LINE", "total += g.pow(2).sum()").replace("SCALE", "0.45")
    trace = watched(text.replace("START", "torch.zeros((), dtype=torch.half)"), tmp_path)
    _, fixes = told(trace)
    assert not any(fix.verified for fix in fixes.values())


BUFFER = """
class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.register_buffer("scale", torch.ones(3))
    def forward(self, x):
        y = self.lin(x * self.scale)
        with torch.no_grad():
            LINE
        return y.square().mean()
torch.manual_seed(0)
model = Scaled()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
def step(i):
    x = torch.randn(8, 3) * torch.tensor([1.0, float(i < 1), 1.0])
    opt.zero_grad()
    model(x).backward()
    opt.step()
"""


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (
            "self.scale.copy_(x.mean(0) / x.std(0))",
            "self.scale.copy_(x.mean(0) / x.std(0).clamp_min(1e-6))",
        ),
        (
            "self.scale.mul_(0.9).add_(0.1 / x.abs().amax(0))",
            "self.scale.mul_(0.9).add_(0.1 / x.abs().amax(0).clamp_min(1e-6))",
        ),
        (
            "self.scale.div_(x.abs().mean(0))",
            "self.scale.div_(x.abs().mean(0).clamp_min(1e-6))",
        ),
    ],
)
def test_what_is_written_into_a_buffer_is_tried_on_the_steps_up_to_that_which_reads_it(
    line: str, code: str, tmp_path: Path
) -> None:
    trace = watched(BUFFER.replace("LINE", line), tmp_path, 4)
    finding, fixes = told(trace)
    assert trace.recording.step_of(finding.position) < finding.step
    # a quotient without a limit: nobody knows what is right
    assert fixes[code].verdict == "finite"
    replay = trace.replay(fixes[code])
    assert replay.finite and replay.step == finding.step
    assert not any(fix.verdict == "untried" for fix in fixes.values() if fix.edits)


def test_a_value_in_a_buffer_that_has_a_limit_is_verified_by_it(tmp_path: Path) -> None:
    line = "self.scale.copy_(torch.sin(x.mean(0)) / x.mean(0))"
    trace = watched(BUFFER.replace("LINE", line), tmp_path, 4)
    _, fixes = told(trace)
    right = [text for text, fix in fixes.items() if fix.verified]
    assert any("sinc" in text for text in right)
    assert not any("clamp_min" in text or "safe.div" in text for text in right)


RULE = """
class Rule(torch.optim.Optimizer):
    def __init__(self, params, lr=0.1ARGUMENT):
        super().__init__(params, dict(lr=lr, eps=1e-8))
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                u = p.grad / p.grad.norm(dim=0)
                trust = TRUST
                p.add_(u, alpha=-group["lr"] * trust)
torch.manual_seed(0)
model = nn.Linear(3, 2, bias=False)
opt = Rule(model.parameters())
x = torch.randn(4, 3)
x[:, 1] = 0
def step(i):
    opt.zero_grad()
    model(x).square().mean().backward()
    opt.step()
"""


@pytest.mark.parametrize("trust", ["u.norm().item()", "float(u.mean() / p.norm())"])
def test_a_number_that_an_update_rule_has_read_is_not_known_anew(
    trust: str, tmp_path: Path
) -> None:
    text = RULE.replace("TRUST", trust).replace("ARGUMENT", "")
    trace = watched(text, tmp_path, 1)
    (finding,) = trace.findings
    assert finding.cause == "optimizer-arithmetic"
    assert finding.fixes and all(f.verdict == "untried" for f in finding.fixes)
    (place,) = trace.replay(finding.fixes[0]).looked_at
    assert place.endswith("program.py:10")
    assert all(place in fix.why for fix in finding.fixes)


def test_an_eps_is_offered_to_a_class_that_takes_one(tmp_path: Path) -> None:
    text = RULE.replace("TRUST", "1.0")
    plain = watched(text.replace("ARGUMENT", ""), tmp_path, 1).findings[0]
    other = watched(text.replace("ARGUMENT", ", eps=0.0"), tmp_path, 1).findings[0]
    assert not any("eps=" in fix.code for fix in plain.fixes)
    assert any("Rule(model.parameters(), eps=" in fix.code for fix in other.fixes)


SCALED_BY_NORM = """
torch.manual_seed(0)
model = nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
def step(i):
    x = torch.randn(4, 3)
    out = torch.func.functional_call(model, dict(model.named_parameters()), (x,))
    y = model(x).detach() if i == 1 else torch.zeros(4, 1)
    found = torch.autograd.grad((out - y).square().sum(), list(model.parameters()))
    scale = 1.0 / torch.stack([g.norm() for g in found]).norm()
    for p, g in zip(model.parameters(), found):
        p.grad = g * scale
    opt.step()
"""


def test_a_limit_that_rounding_makes_up_is_not_told(tmp_path: Path) -> None:
    trace = watched(SCALED_BY_NORM, tmp_path, 2)
    finding, fixes = told(trace)
    assert (finding.phase, finding.source[:5]) == ("forward", "scale")
    assert fixes and not any("its limit" in fix.why for fix in fixes.values())
