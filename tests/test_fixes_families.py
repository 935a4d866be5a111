"""Families of fixes: of each a line that fails, the line that is offered, and that the offered line
is finite."""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import Any

import pytest
import torch
from fixing import holds
from torch import nn
from torch.nn import functional as F

import nanlab
from nanlab.rules import Finding

ZERO = "nan=0.0, posinf=0.0, neginf=0.0"


def run_line(line: str, values: dict[str, Any], folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and gradient of ``w`` after ``value = <line>; value.sum().backward()``, from a file of
    its own."""
    file = folder / f"line{len(list(folder.iterdir()))}.py"
    file.write_text(
        f"def step():\n    value = {line}\n    loss = value.abs().sum()\n    loss.backward()\n   "
        " return loss\n"
    )
    linecache.checkcache()
    w = torch.ones((), requires_grad=True)
    names = {"torch": torch, "F": F, "nn": nn, "nanlab": nanlab, "w": w, **values}
    exec(compile(file.read_text(), str(file), "exec"), names)
    loss = names["step"]()
    assert w.grad is not None
    return loss.detach(), w.grad


def diagnosed(line: str, values: dict[str, Any], folder: Path) -> Finding:
    with nanlab.watch(on_fault="record") as trace:
        run_line(line, values, folder)
    assert trace.culprit is not None and not trace.notes
    return trace.culprit


def z(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape)


INF = float("inf")
CASES = [
    # complex divisors, Python numbers that are 0, reciprocals that overflow
    (
        "w * a / b",
        {"a": torch.ones(3, dtype=torch.complex64), "b": torch.zeros(3, dtype=torch.complex64)},
        "div-by-zero",
        "conj()",
    ),
    (
        "F.gumbel_softmax(w * a, tau=tau)",
        {"a": torch.ones(2, 3), "tau": 0.0},
        "div-by-zero",
        "tau=max(tau, 0.01)",
    ),
    (
        "a.numel() / (3 * (w * a).float())",
        {"a": torch.tensor([0.0, 1.0])},
        "div-by-zero",
        "a.numel() / (3 * (w * a).float()).",
    ),
    ("400.0 / (w * a)", {"a": torch.tensor([1e-37, 1.0])}, "div-by-tiny", "clamp_min("),
    ("torch.addcdiv(w * a, a, b)", {"a": torch.ones(2), "b": z(2)}, "div-by-zero", "addcdiv("),
    # infinities that the program wrote
    (
        "(w * a) @ b.masked_fill(b == 2, float('inf'))",
        {"a": torch.tensor([[0.0, 1.0]]), "b": torch.tensor([[2.0], [1.0]])},
        "zero-times-inf",
        "isinf()",
    ),
    (
        "torch.logaddexp(torch.logaddexp(w + a, w + a), w)",
        {"a": torch.tensor([-INF, 1.0])},
        "softmax-all-masked",
        "clamp_min(-1e30)",
    ),
    ("w * p * torch.log(w * p)", {"p": torch.tensor([0.0, 0.5])}, "log-of-zero", "safe."),
    (
        "(w * a) @ b.masked_fill(b == 2, -float('inf'))",
        {"a": torch.tensor([[[1.0, -1.0]]]), "b": torch.tensor([[[2.0], [2.0]]])},
        "inf-minus-inf",
        "(w * a) @ (inner_y := b.masked_fill(b == 2, -float('inf'))).masked_fill(inner_y.isinf()",
    ),
    # reductions of nothing
    ("F.smooth_l1_loss(w * a, a)", {"a": z(0)}, "empty-reduction", "max("),
    (
        "torch.segment_reduce(w * a, 'mean', lengths=n)",
        {"a": torch.ones(3), "n": torch.tensor([3, 0])},
        "empty-reduction",
        "initial=0.0",
    ),
    (
        "F.cross_entropy(w * a, y, weight=c)",
        {"a": torch.randn(2, 2), "y": torch.tensor([0, 0]), "c": torch.tensor([0.0, 1.0])},
        "empty-reduction",
        "c[y].sum()",
    ),
    (
        "w * a.nanmean(1)",
        {"a": torch.tensor([[float("nan")] * 2, [1.0, 3.0]])},
        "empty-reduction",
        "a.nansum(1)",
    ),
    # special functions and matrices
    (
        "torch.linalg.solve_ex(w * a, b).result",
        {"a": z(2, 2), "b": torch.ones(2, 1)},
        "degenerate-matrix",
        "torch.linalg.solve_ex((w * a) + ",
    ),
    ("torch.special.entr(w * p)", {"p": torch.tensor([0.0, 0.5])}, "log-of-zero", "special.entr("),
    (
        "torch.special.ndtri(w * p)",
        {"p": torch.tensor([0.0, 0.5])},
        "inverse-function-at-edge",
        "ndtri(",
    ),
    ("torch.polygamma(1, w * p)", {"p": torch.tensor([0.0, 0.5])}, "log-of-zero", "polygamma("),
    ("torch.linalg.qr(w * a).Q", {"a": torch.ones(3, 2)}, "degenerate-matrix", "torch.eye("),
    ("torch.linalg.matrix_exp(w * a)", {"a": torch.full((2, 2), 90.0)}, "exp-overflow", "clamp("),
    # exponents and products beyond every dtype at hand
    (
        "torch.log(torch.expm1(w * a))",
        {"a": torch.tensor([1.0, 200.0])},
        "exp-overflow",
        "+ torch.log(-torch.expm1(-",
    ),
    (
        "torch.log(torch.exp(w * a) - 1)",
        {"a": torch.tensor([1.0, 200.0])},
        "exp-overflow",
        "+ torch.log(-torch.expm1(-",
    ),
    ("10.0 ** (w * a)", {"a": torch.tensor([50.0, 1.0])}, "exp-overflow", "clamp(max="),
    (
        "(w * a) * b",
        {"a": torch.tensor([1e25, 1.0]), "b": torch.tensor([1e20, 1.0])},
        "dtype-overflow",
        "clamp(-",
    ),
    # data
    (
        "F.mse_loss(w * a, y)",
        {"a": torch.ones(3), "y": torch.tensor([1.0, float("nan"), 2.0])},
        "nan-in-target",
        "[torch.isfinite(y)]",
    ),
    (
        "w * a - y",
        {"a": torch.ones(3), "y": torch.tensor([1.0, float("nan"), 2.0])},
        "nan-in-target",
        "torch.nan_to_num(",
    ),
]


@pytest.mark.examples(every=3)
@pytest.mark.parametrize(("line", "values", "cause", "part"), CASES, ids=[c[0] for c in CASES])
def test_the_offered_line_is_finite(
    line: str, values: dict[str, Any], cause: str, part: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    loss, gradient = run_line(line, values, tmp_path)
    assert not (torch.isfinite(loss) and torch.isfinite(gradient))
    finding = diagnosed(line, values, tmp_path)
    assert finding.cause == cause
    held = [fix.code.removeprefix("value = ") for fix in finding.fixes if holds(fix)]
    # what draws random numbers is not tried
    tried = held if "gumbel" not in line else [fix.code for fix in finding.fixes]
    assert any(part in code for code in tried), finding.fixes
    for code in held:
        if code.startswith("import "):
            continue  # a patch of the library's function, which is no line of the program
        loss, gradient = run_line(code, values, tmp_path)
        assert torch.isfinite(loss) and torch.isfinite(gradient), code


def test_an_input_with_gaps_is_filled_in_the_call_of_its_layer() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x)

    net = Net()
    x = torch.ones(4, 3)
    x[1, 2] = float("nan")
    with nanlab.watch(net, on_fault="record") as trace:
        net(x).sum().backward()
    assert trace.culprit is not None and trace.culprit.cause == "nan-in-input"
    first = next(f for f in trace.culprit.fixes if holds(f))
    assert first.code == f"return self.head(torch.nan_to_num(x, {ZERO}))"


def test_poisoned_running_statistics_are_to_start_again() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).eval()
    net[1].running_var[1] = float("nan")
    with nanlab.watch(net, on_fault="record") as trace:
        net(torch.ones(4, 2)).sum().backward()
    assert trace.culprit is not None and trace.culprit.cause == "poisoned-buffer"
    assert any("reset_running_stats()" in fix.code for fix in trace.culprit.fixes)
    assert torch.isnan(net[1].running_var[1])  # nobody touched it


def test_a_scale_that_vanished_is_kept_above_zero_where_it_is_made() -> None:
    raw = torch.tensor([-200.0, 1.0], requires_grad=True)

    def step() -> None:
        scale = F.softplus(raw)
        law = torch.distributions.Normal(torch.zeros(2), scale, validate_args=False)
        (-law.log_prob(torch.ones(2))).sum().backward()

    with nanlab.watch(on_fault="record") as trace:
        step()
    assert trace.culprit is not None
    assert any(holds(f) and "softplus(raw) + 1e-3" in f.code for f in trace.culprit.fixes)


def test_float32_is_verified_in_a_half_model_where_what_follows_goes_on_in_it() -> None:
    def culprit(back: bool) -> Finding:
        net = nn.Linear(2, 2).half()

        def step() -> None:
            v = torch.full((3, 500), 300.0).half() + net.weight.sum()
            total = torch.cumsum(v, 1)
            out = torch.log1p(total)
            (F.linear(out[:, -2:], net.weight) if back else out.float()).sum().backward()

        with nanlab.watch(net, on_fault="record") as trace:
            step()
        assert trace.culprit is not None and trace.culprit.op == "cumsum"
        return trace.culprit

    assert any(holds(f) and "float32" in f.title for f in culprit(back=False).fixes)
    assert not any(holds(f) and "float32" in f.title for f in culprit(back=True).fixes)


def test_a_fix_is_doubted_where_the_same_line_divides_by_nothing_as_well() -> None:
    scale = torch.zeros(2, requires_grad=True)

    def step() -> None:
        law = torch.distributions.Normal(torch.zeros(2), scale, validate_args=False)
        (-law.log_prob(torch.ones(2))).sum().backward()

    with nanlab.watch(on_fault="record") as trace:
        step()
    assert trace.culprit is not None
    assert not any(f.verified for f in trace.culprit.fixes)


def test_the_determinant_of_a_reflection_has_no_logarithm_and_a_ratio_of_lengths_normalises_nothing() -> (
    None
):
    flip = torch.tensor([[-1.0, 0.0], [0.0, 1.0]], requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        (3 * torch.logdet(flip)).backward()
    assert trace.culprit is not None
    assert (trace.culprit.cause, trace.culprit.phase) == ("log-of-negative", "forward")
    x = torch.ones(2, 3, requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        (x.norm(dim=1) / torch.zeros(2, 3).norm(dim=1)).sum().backward()
    assert trace.culprit is not None and trace.culprit.cause == "div-by-zero"


@pytest.mark.parametrize(
    "line",
    [
        "torch.log(torch.softmax(w * a, -1) + torch.softmax(w * b, -1))",
        "torch.log(torch.sigmoid(w * a) + torch.sigmoid(w * b))",
    ],
)
def test_the_sum_of_two_probabilities_is_not_taken_for_one(line: str, tmp_path: Path) -> None:
    values = {"a": torch.tensor([-300.0, 1.0, 0.0]), "b": torch.tensor([-300.0, 0.5, -1.0])}
    finding = diagnosed(line, values, tmp_path)
    assert finding.cause == "log-of-zero" and any(holds(fix) for fix in finding.fixes)
    single = [f for f in finding.fixes if "log_softmax" in f.code or "logsigmoid" in f.code]
    assert all("logaddexp" in fix.code for fix in single)


def test_a_weight_is_not_taken_for_a_mask_where_nothing_says_what_it_let_through() -> None:
    weight = torch.tensor(0.5, requires_grad=True)

    def energy(x: torch.Tensor) -> torch.Tensor:
        r = torch.sqrt((x * x).sum())
        return weight * r

    with nanlab.watch(on_fault="record") as trace:
        forces = torch.func.vmap(torch.func.grad(energy))(torch.zeros(2, 3))
        forces.sum().backward()
    assert trace.culprit is not None and trace.culprit.cause == "sqrt-at-zero"
    assert not any(holds(fix) and "weight != 0" in fix.code for fix in trace.culprit.fixes)


@pytest.mark.parametrize("half", [False, True])
def test_gradients_in_half_are_not_to_be_scaled_by_a_scaler_that_refuses_them(half: bool) -> None:
    net = nn.Linear(4, 1)
    net = net.half() if half else net
    with nanlab.watch(net, on_fault="record") as trace:
        for _ in range(3):
            net.zero_grad()
            out = net(torch.ones(8, 4, dtype=net.weight.dtype)).half()
            (1e-9 * out.float()).sum().backward()
    finding = next(f for f in trace.findings if f.cause == "dtype-underflow")
    scaled = next(fix for fix in finding.fixes if "scale the loss" in fix.title)
    assert 'GradScaler("cpu")' in scaled.code
    assert ("model.float()" in scaled.code) == half


def test_a_root_differentiated_in_forward_mode_is_told_as_a_root(tmp_path: Path) -> None:
    line = "torch.func.jvp(lambda t: torch.sqrt(t.relu()), (w * a,), (d,))[1]"
    finding = diagnosed(line, {"a": torch.tensor([-1.0, 4.0]), "d": torch.ones(2)}, tmp_path)
    assert (finding.cause, finding.op, finding.phase) == ("sqrt-at-zero", "sqrt", "forward")
    # what torch.func computes in forward mode is not tried: its calls are not those of the line
    offered = [fix for fix in finding.fixes if "torch.sqrt(t.relu() + 1e-" in fix.code]
    assert offered and all(fix.verdict == "untried" and fix.why for fix in offered)


def test_a_divisor_that_underflowed_is_no_norm_of_a_zero_vector(tmp_path: Path) -> None:
    finding = diagnosed(
        "w * a / (a.norm() * a.norm() ** 2)", {"a": torch.tensor([1e-16, 2e-16])}, tmp_path
    )
    assert finding.cause == "div-by-zero"
    assert "another number before: mul at" in finding.explanation
    assert "rounds to 0 what float32 cannot hold, 7.01e-46 and less" in finding.explanation
    zero = diagnosed("w * a / (a.norm() * a.norm() ** 2)", {"a": z(2)}, tmp_path)
    assert zero.cause == "norm-at-zero"


def _distance(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.sqrt((x * w).pow(2).sum())


def _weights(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    s = 200 * x * w
    e = torch.exp(s)
    return e / e.sum()


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize(
    ("function", "cause", "rewritten"),
    [(_distance, "sqrt-at-zero", "vector_norm"), (_weights, "exp-overflow", "torch.softmax(s")],
)
def test_a_line_that_sums_each_sample_under_vmap_is_rewritten_and_tried(
    function: Any, cause: str, rewritten: str, dim: int
) -> None:
    w = torch.tensor([0.5, -1.0, 2.0], requires_grad=True)
    x = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0], [-1.0, 0.5, 1.0]])[[0, 1, 2, 0]]
    with nanlab.watch(on_fault="record") as trace:
        out = torch.func.vmap(function, (dim, None))(x if dim == 0 else x.t().contiguous(), w)
        out.reshape(4, -1)[:, 0].sum().backward()
    assert trace.culprit is not None and trace.culprit.cause == cause
    fix = next(fix for fix in trace.culprit.fixes if rewritten in fix.code)
    assert fix.verified, fix.why


def test_a_line_under_two_vmaps_is_tried() -> None:
    def cosine(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (a * b).sum() / (a.norm() * (b * w).norm())

    w = torch.tensor([0.5, -1.0, 2.0], requires_grad=True)
    a, b = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]), torch.eye(3)
    with nanlab.watch(on_fault="record") as trace:
        of_one = torch.func.vmap(cosine, (None, 0, None))
        torch.func.vmap(of_one, (0, None, None))(a, b, w).sum().backward()
    assert trace.culprit is not None and trace.culprit.cause == "norm-at-zero"
    assert any(fix.verified for fix in trace.culprit.fixes)


def test_a_fix_before_gradients_of_each_sample_gives_what_the_program_with_it_gives() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0], [-1.0, 0.5, 1.0]])[[0, 1, 2, 0]]

    def loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.sqrt((x * w).pow(2).sum()) + (w * x).sum().exp()

    def repaired(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.sqrt((x * w).pow(2).sum().clamp_min(1e-6)) + (w * x).sum().exp()

    def step(function: Any, w: torch.Tensor) -> torch.Tensor:
        taken = torch.func.vmap(torch.func.grad(function), (None, 0))(w, x)
        w.grad = (taken / taken.norm(dim=1, keepdim=True).clamp_min(1.0)).sum(0).detach()
        torch.optim.SGD([w], 0.1).step()
        return w.detach()

    w, other = (torch.tensor([0.5, -1.0, 2.0], requires_grad=True) for _ in range(2))
    with nanlab.watch(on_fault="record") as trace:
        step(loss, w)
    assert trace.culprit is not None and trace.replay().identical
    fix = next(fix for fix in trace.culprit.fixes if "clamp_min(1e-6)" in fix.code)
    assert fix.verified, fix.why
    (replayed,) = trace.replay(fix).parameters.values()
    assert torch.equal(replayed, step(repaired, other))


def test_a_quotient_without_a_limit_in_a_mean_is_held_against_what_each_element_may_be() -> None:
    torch.manual_seed(0)
    net = nn.Conv2d(1, 1, 3, padding=1)
    x, y = torch.rand(2, 1, 12, 12), torch.rand(2, 1, 12, 12)
    x[:, :, :6, :6] = y[:, :, :6, :6] = 0
    with nanlab.watch(net, on_fault="record") as trace:
        p = net(x) * x
        mean, other = (nn.functional.avg_pool2d(t, 3, 1) for t in (p, y))
        square = nn.functional.avg_pool2d(p * p, 3, 1) - mean * mean
        wanted = nn.functional.avg_pool2d(y * y, 3, 1) - other * other
        both = nn.functional.avg_pool2d(p * y, 3, 1) - mean * other
        correlation = both * both / (square * wanted)
        (1 - correlation.mean()).backward()
    assert trace.culprit is not None and trace.culprit.cause == "div-by-zero"
    held = {"clamp_min" in fix.code or "nanlab.safe.div" in fix.code for fix in trace.culprit.fixes}
    assert True in held and trace.culprit.fixes[0].verified
    # where both vanish the quotient may be what a correlation may be, and is 1 in no direction
    assert not any(fix.verified for fix in trace.culprit.fixes if "(both * both) + 1e" in fix.code)


def test_of_several_statements_on_a_line_the_one_at_fault_is_rewritten(tmp_path: Path) -> None:
    line = "z = w * x; pooled = (z * m).sum(1) / m.sum(1); return pooled.mean()"
    code = f"def mean(w, x, m):\n    {line}\n"
    path = tmp_path / "pooled.py"
    path.write_text(code)
    names: dict[str, Any] = {}
    exec(compile(code, str(path), "exec"), names)
    w, x, m = torch.ones((), requires_grad=True), torch.arange(12.0).view(3, 4), torch.ones(3, 4)
    m[1] = 0
    with nanlab.watch(on_fault="record") as trace:
        names["mean"](w, x, m).backward()
    assert trace.culprit is not None and trace.culprit.cause == "div-by-zero"
    first = trace.culprit.fixes[0]
    assert first.verified, first.why
    assert first.code == line.replace("m.sum(1)", "m.sum(1).clamp_min(1)")


def test_lines_that_did_not_run_are_not_rewritten(tmp_path: Path) -> None:
    code = (
        "import torch\n\n\ndef loss(x, kind):\n"
        "    d = torch.sqrt((x**2).sum(-1))\n"
        "    if kind:\n        return torch.log(d + 1).mean()\n"
        "    return d.mean()\n"
    )
    path = tmp_path / "branch.py"
    path.write_text(code)
    names: dict[str, Any] = {}
    exec(compile(code, str(path), "exec"), names)
    x = torch.tensor([[1.0, 2.0], [0.0, 0.0]], requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        names["loss"](x, False).backward()
    assert trace.culprit is not None and trace.culprit.fixes[0].verified
    assert not any("log" in fix.code for fix in trace.culprit.fixes)
