"""Faults in the way people reported them, each held to the answer that would have helped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fixing import holds
from torch import nn

import nanlab


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)


def culprit(step: Callable[[int], Any], steps: int = 1) -> nanlab.Finding:
    with nanlab.watch(on_fault="record") as trace:
        for i in range(steps):
            step(i)
    assert not trace.notes
    assert trace.culprit is not None
    return trace.culprit


def verified(found: nanlab.Finding) -> dict[str, str]:
    """Code of each verified fix by its title."""
    return {fix.title: fix.code for fix in found.fixes if holds(fix)}


def test_an_assignment_to_one_element_hides_a_value_and_not_its_gradient() -> None:
    beta = nn.Parameter(torch.tensor(0.4))

    def step(i: int) -> None:
        frequency = torch.fft.rfftfreq(16)
        amplitude = (frequency ** (-beta)).clone()
        amplitude[0] = 0.0
        amplitude.sum().backward()

    found = culprit(step)
    assert (found.cause, found.op, found.phase) == ("repair-forward-only", "pow", "backward")
    assert "an assignment after it hid the bad value" in found.title


def test_a_bad_row_of_a_table_that_indexing_leaves_out_is_a_trap() -> None:
    slope = nn.Parameter(torch.tensor(1.0))

    def step(i: int) -> None:
        times = torch.tensor([[0.0, 1.0], [0.5, 0.5]])
        table = torch.full((2,), float("nan"))
        for k, t in enumerate(times):
            spread = t - t.mean()
            table[k] = (slope * spread).sum() / spread.square().sum()
        table[~table.isnan()].mean().backward()

    found = culprit(step)
    assert (found.cause, found.op, found.phase) == ("where-grad-trap", "div", "backward")
    assert "`index` hid the bad value" in found.title


def test_the_derivative_in_a_learned_exponent_is_told_as_such() -> None:
    p = nn.Parameter(torch.tensor(2.0))

    def step(i: int) -> None:
        x = torch.tensor([-1.5, 0.5])
        loss = (x**p).sum()
        loss.backward()

    found = culprit(step)
    assert (found.cause, found.phase) == ("pow-negative-base", "backward")
    assert "the derivative of x**2 in its exponent is NaN for 1 negative base" in found.title
    assert (
        "loss = (x.abs().clamp_min(1e-6)**p).sum()".replace("**", " ** ")
        in verified(found).values()
    )


def test_a_divisor_that_is_a_python_number_gets_no_methods_of_a_tensor() -> None:
    w = nn.Parameter(torch.ones(3))

    def step(i: int, beta: float = 0.0) -> None:
        n = (w * torch.tensor([0.0, 1.0, 2.0])).abs()
        small = 0.5 * n.square() / beta
        torch.where(n < beta, small, n - 0.5 * beta).sum().backward()

    codes = verified(culprit(step))
    assert next(iter(codes.values())) == "small = (0.5 * n.square()) / max(beta, 0.01)"
    assert not any("clamp" in code for code in codes.values())


def over_sum(x: torch.Tensor, y: torch.Tensor, eps: float) -> torch.Tensor:
    return x / (y + eps)


def over_clamp(x: torch.Tensor, y: torch.Tensor, eps: float) -> torch.Tensor:
    return x / y.clamp(min=eps)


def by_inverse_root(x: torch.Tensor, y: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(y + eps)


@pytest.mark.parametrize(
    ("divide", "code"),
    [
        (over_sum, "return x / (y.float() + eps)"),
        (over_clamp, "return x / y.float().clamp_min(eps)"),
        (by_inverse_root, "return x * torch.rsqrt(y.float() + eps)"),
    ],
)
def test_an_epsilon_that_half_precision_rounds_to_zero_is_added_in_float32(
    divide: Callable[..., torch.Tensor], code: str
) -> None:
    gain = nn.Parameter(torch.ones(3))

    def step(i: int) -> None:
        with torch.no_grad():
            x = divide(torch.zeros(3).half(), torch.tensor([0.0, 1.0, 2.0]).half(), 1e-9)
        (gain * x.float()).sum().backward()

    found = culprit(step)
    assert found.cause == "eps-underflow"
    assert code in verified(found).values()
    assert not any("clamp_min(1)" in code for code in verified(found).values())


def test_a_layer_that_overflows_under_autocast_is_called_outside_it() -> None:
    net = nn.ModuleDict({"wo": nn.Linear(4, 2, bias=False)})
    with torch.no_grad():
        net["wo"].weight.fill_(200.0)
    block = net["wo"]

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wo = block

        def forward(self, h: torch.Tensor) -> torch.Tensor:
            return self.wo(h)

    model = Block()

    def step(i: int) -> None:
        with torch.autocast("cpu", dtype=torch.float16):
            out = model(torch.full((3, 4), 100.0))
        torch.log_softmax(out.float(), 1)[:, 0].sum().backward()

    with nanlab.watch(model, on_fault="record") as trace:
        step(0)
    assert trace.culprit is not None
    assert trace.culprit.cause == "dtype-overflow"
    assert [fix.code for fix in trace.culprit.fixes] == [
        'with torch.autocast("cpu", enabled=False):\n    return self.wo(h.float())'
    ]


def gates(w: torch.Tensor) -> torch.Tensor:
    return torch.log1p((w * torch.tensor([[0.0, 0.0, 1e13, 1e13, 1e13, 1e13]])).prod(-1)).sum()


def test_the_other_factors_of_a_zero_overflow_in_the_derivative_of_a_product() -> None:
    w = nn.Parameter(torch.ones(6))
    found = culprit(lambda i: gates(w).backward())
    assert (found.cause, found.op, found.phase) == ("zero-times-inf", "prod", "backward")
    assert "2 zeros among 6 factors" in found.title
    assert any("clamp the factors" in title for title in verified(found))


def test_a_derivative_that_vmap_runs_out_of_sight_is_blamed_by_its_forward_line() -> None:
    w = nn.Parameter(torch.ones(2, 6))
    optimizer = torch.optim.SGD([w], lr=0.1)

    def step(i: int) -> None:
        w.grad = torch.func.vmap(torch.func.grad(gates))(w.detach())
        optimizer.step()

    found = culprit(step)
    assert (found.cause, found.op, found.phase) == ("zero-times-inf", "prod", "backward")
    assert "prod(-1)" in found.source


def test_equal_eigenvalues_of_a_matrix_that_is_not_symmetric_are_split() -> None:
    operator = nn.Parameter(torch.eye(3))

    def step(i: int) -> None:
        values, modes = torch.linalg.eig(operator)
        (modes @ torch.diag(values**2) @ torch.linalg.inv(modes)).real.square().sum().backward()

    found = culprit(step)
    assert (found.cause, found.op) == ("degenerate-matrix", "linalg_eig")
    assert any("split equal eigenvalues" in title for title in verified(found))


def test_a_fix_of_one_line_says_that_another_fails_as_well() -> None:
    w = nn.Parameter(torch.ones(2))

    def step(i: int) -> None:
        gap = torch.tensor([0.0, 1.0])
        left = torch.nan_to_num(w / gap, posinf=0.0)
        right = torch.nan_to_num((2 - w) / gap, posinf=0.0)
        (left + right).sum().backward()

    found = culprit(step)
    assert found.cause == "repair-forward-only"
    assert not verified(found)
    assert any("too" in fix.why for fix in found.fixes)


def test_a_value_below_the_support_of_a_gamma_is_kept_inside_it_from_below_alone() -> None:
    noise = nn.Parameter(torch.tensor(-0.01))
    prior = torch.distributions.Gamma(torch.tensor(1.1), torch.tensor(0.05), validate_args=False)

    def step(i: int) -> None:
        loss = -prior.log_prob(noise)
        loss.backward()

    found = culprit(step)
    assert found.cause == "log-of-negative"
    codes = [fix.code for fix in found.fixes]
    assert "loss = -prior.log_prob(noise.clamp_min(1e-6))" in codes


def test_what_a_derivative_made_of_its_saved_operand_is_not_taken_for_the_gradient_that_came_in() -> (
    None
):
    x = nn.Parameter(torch.tensor([1.0, 0.5]))

    def step(i: int) -> None:
        torch.acos(x * 1.0).square().sum().backward()

    found = culprit(step)
    assert found.cause == "inverse-function-at-edge"
    assert "incoming" not in found.explanation
    assert "incoming gradient" not in found.evidence.columns


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wi, self.wo = nn.Linear(4, 4, bias=False), nn.Linear(4, 2, bias=False)
        with torch.no_grad():
            self.wi.weight.copy_(torch.eye(4))
            self.wo.weight.fill_(70.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.wi(x) * 1400.0
        return self.wo(h * self.wi(x).detach())


@pytest.mark.parametrize(("weight", "held"), [(1e-3, True), (10.0, False)])
def test_gradients_of_the_steps_before_say_whether_a_layer_in_float32_is_enough(
    weight: float, held: bool
) -> None:
    model = Gated()
    with nanlab.watch(model, on_fault="record") as trace:
        for size in (0.1, 0.1, 1.0):
            with torch.autocast("cpu", dtype=torch.float16):
                out = model(torch.full((3, 4), size))
            loss = weight * torch.log_softmax(out.float(), 1)[:, 0].sum()
            loss.backward()
    assert trace.culprit is not None
    assert (trace.culprit.cause, trace.culprit.op) == ("dtype-overflow", "mm")
    (fix,) = [fix for fix in trace.culprit.fixes if "float32" in fix.title]
    assert holds(fix) or not held


def test_a_divisor_of_either_sign_is_pushed_away_from_zero_on_its_own_side() -> None:
    radius = nn.Parameter(torch.tensor(0.5))

    def step(i: int) -> None:
        margin = torch.tensor([0.0, 1.0, -1.0])
        guarded = margin + torch.sign(margin) * 1e-6
        loss = (torch.sigmoid(-radius / guarded) * guarded.abs()).sum()
        loss.backward()

    found = culprit(step)
    assert found.cause == "div-by-zero"
    assert "the sign of 0 is 0" in found.explanation
    sides = [
        code
        for title, code in verified(found).items()
        if "on the side of zero where it is" in title
    ]
    assert len(sides) == 1
    assert "(-radius) / (guarded + torch.where(guarded >= 0, 1e-6, -1e-6))" in sides[0]


@pytest.mark.parametrize(
    "squeezed", ["torch.linalg.vector_norm(y, dim=(2, 3))", "y.flatten(2).norm(dim=2)"]
)
def test_a_norm_over_pixels_that_overflows_half_precision_is_taken_in_float32(
    squeezed: str,
) -> None:
    x = nn.Parameter(torch.full((1, 2, 40, 40), 3e3))

    def step(i: int) -> None:
        y = x.half()
        if squeezed.startswith("torch"):
            size = torch.linalg.vector_norm(y, dim=(2, 3))
        else:
            size = y.flatten(2).norm(dim=2)
        size.float().log().mean().backward()

    found = culprit(step)
    assert found.cause == "dtype-overflow"
    code = next(iter(verified(found).values()))
    assert squeezed.replace("(y", "(y.float()").replace("flatten(2)", "flatten(2).float()") in code


def test_an_epsilon_of_a_norm_over_many_pixels_is_advised_by_its_vectors() -> None:
    x = nn.Parameter(torch.randn(3, 2, 30, 30))

    def step(i: int) -> None:
        y = x * torch.tensor([1.0, 0.0, 1.0]).reshape(3, 1, 1, 1)
        size = torch.linalg.vector_norm(y, dim=(2, 3), keepdim=True)
        (y / size).square().sum().backward()

    found = culprit(step)
    assert found.cause == "norm-at-zero"
    assert verified(found)


def test_a_gradient_of_zero_that_is_brought_to_unit_length_by_a_call_on_lists_is_a_norm_at_zero() -> (
    None
):
    used, silent = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))

    def step(i: int) -> None:
        loss = (used.square().sum() - 1) ** 2 + (silent * 0.0).sum()
        grads = list(torch.autograd.grad(loss, [used, silent]))
        torch._foreach_div_(grads, torch._foreach_norm(grads))
        with torch.no_grad():
            torch._foreach_add_([used, silent], grads, alpha=-0.1)
        silent.sum().backward()

    found = culprit(step)
    assert (found.cause, found.op) == ("norm-at-zero", "_foreach_div_")
    assert list(found.evidence["norm"]) == [0.0, 0.0]
    assert list(found.evidence["numerator"]) == [0.0, 0.0]


@pytest.mark.parametrize(
    ("floor", "code"), [(0.0, "initial=0.0"), (-9.0, 'nan_to_num(nan=float("nan"), neginf=0.0)')]
)
def test_the_maximum_of_a_segment_without_elements_is_0_and_no_other_is_changed(
    floor: float, code: str
) -> None:
    atoms, lengths, head = (
        nn.Parameter(torch.randn(9, 3)),
        torch.tensor([3, 0, 4, 2]),
        nn.Linear(3, 1),
    )

    def step(i: int) -> None:
        features = atoms.clamp_min(floor)
        pooled = torch.segment_reduce(features, "max", lengths=lengths, axis=0)
        head(pooled).square().mean().backward()

    found = culprit(step)
    assert (found.cause, found.op) == ("empty-reduction", "segment_reduce")
    fix = found.fixes[0]
    assert 'torch.segment_reduce(features, "max", lengths=lengths, axis=0' in fix.code
    assert fix.verified and code in fix.code
    assert all(each.distortion is not None for each in found.fixes if each.verified)
    assert not any(each.distortion > 1e-6 for each in found.fixes if each.verified)


def test_a_divisor_that_was_multiplied_by_a_python_zero_is_not_said_to_underflow() -> None:
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    with nanlab.watch() as trace:
        spread = x.std() * 0
        (x / spread).sum().backward()
    assert trace.culprit is not None
    assert trace.culprit.cause == "div-by-zero"
    assert "underflow" not in trace.culprit.explanation
