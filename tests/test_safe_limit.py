"""`nanlab.safe.limit`: a function has its limit where torch's numbers give none."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import nanlab
from nanlab.errors import TypeMismatchError
from nanlab.safe import limit


@limit
def quotient(x: Tensor) -> Tensor:
    return torch.sin(x / 2) / x


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_counts_nothing_of_what_finds_the_limits(reentrant: bool) -> None:
    def ratio(x: Tensor, w: Tensor) -> Tensor:
        return torch.sin(x * w) / x

    found = []
    for through in (partial(checkpoint, use_reentrant=reentrant), lambda f, *given: f(*given)):
        x = torch.tensor([0.0, 1.0], requires_grad=True)
        w = torch.tensor(0.7, requires_grad=True)
        through(limit(ratio), x, w).sum().backward()
        found.append((x.grad, w.grad))
    assert all(map(torch.equal, *found)) and torch.stack([found[0][1]]).isfinite()


def test_value_and_two_derivatives_at_a_removable_singularity() -> None:
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    y = quotient(x)
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    one = math.cos(0.5) / 2 - math.sin(0.5)
    assert y.tolist() == pytest.approx([0.5, math.sin(0.5)])
    assert first.tolist() == pytest.approx([0.0, one])
    assert second[0].item() == pytest.approx(-1 / 24, rel=1e-5)


def test_where_all_is_finite_it_has_the_bits_of_the_function() -> None:
    def plain(x: Tensor) -> Tensor:
        return torch.sin(x / 2) / x

    a, b = (torch.linspace(0.1, 3, 50).requires_grad_() for _ in range(2))
    made, known = quotient(a), plain(b)
    made.sum().backward()
    known.sum().backward()
    assert torch.equal(made, known)
    assert a.grad is not None
    assert b.grad is not None
    assert torch.equal(a.grad, b.grad)


def test_a_softmax_by_hand_that_overflows() -> None:
    @limit
    def softmax(x: Tensor) -> Tensor:
        e = torch.exp(x)
        return e / e.sum(-1, keepdim=True)

    x = torch.tensor([[1000.0, 999.0], [1.0, 2.0]], requires_grad=True)
    weight = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    (made,) = torch.autograd.grad((softmax(x) * weight).sum(), x)
    (known,) = torch.autograd.grad((F.softmax(x, -1) * weight).sum(), x)
    assert torch.allclose(softmax(x), F.softmax(x, -1))
    assert torch.allclose(made, known)


class Amplitude(nn.Module):
    """Reads a parameter and a buffer that are no arguments of its method."""

    def __init__(self) -> None:
        super().__init__()
        self.r = nn.Parameter(torch.tensor([1.0, 2.0]))
        self.register_buffer("q", torch.tensor([0.0, 0.8]))

    @limit
    def forward(self, power: int, *, scale: Tensor) -> dict[str, Tensor]:
        x = self.q * self.r  # 0 however the parameter moves
        return {"wave": scale * (torch.sin(x) / x) ** power, "r": self.r, "n": torch.ones(2).long()}


def test_parameters_buffers_and_structures() -> None:
    net, scale = Amplitude(), torch.tensor(3.0, requires_grad=True)
    found = net(2, scale=scale)
    found["wave"].sum().backward()
    x = torch.tensor(1.6)
    assert found["wave"].tolist() == pytest.approx([3.0, 3 * float(torch.sin(x) / x) ** 2])
    assert net.r.grad is not None
    assert net.r.grad[0].item() == 0.0
    assert bool(net.r.grad.isfinite().all())
    assert scale.grad is not None
    assert scale.grad.item() == pytest.approx(1 + float(torch.sin(x) / x) ** 2)
    assert found["n"].dtype == torch.int64


def test_what_it_writes_itself_may_be_written_again() -> None:
    @limit
    def filled(x: Tensor) -> Tensor:
        out = torch.zeros(2)
        out[0] = torch.sin(x) / x
        out[1] = x
        return out

    x = torch.tensor(0.0, requires_grad=True)
    y = filled(x)
    (y * torch.tensor([1.0, 2.0])).sum().backward()
    assert y.tolist() == [1.0, 0.0]
    assert x.grad is not None
    assert x.grad.item() == 2.0


def test_without_a_limit_it_stays_what_it_is() -> None:
    x = torch.tensor([0.0, 2.0], requires_grad=True)
    y = limit(torch.reciprocal)(x)
    y.sum().backward()
    assert y.tolist() == [math.inf, 0.5]
    assert x.grad is not None
    assert x.grad[1].item() == -0.25


def test_a_nan_that_came_in_stays() -> None:
    assert quotient(torch.tensor([math.nan, 1.0])).isnan().tolist() == [True, False]


def test_what_gives_other_numbers_when_called_again_is_left_alone() -> None:
    @limit
    def noisy(x: Tensor) -> Tensor:
        return torch.sin(x) / x + torch.randn(2)

    torch.manual_seed(0)
    before = torch.get_rng_state()
    found = noisy(torch.zeros(2))
    assert bool(found.isnan().all())
    after = torch.get_rng_state()
    torch.set_rng_state(before)
    torch.randn(2)
    assert torch.equal(after, torch.get_rng_state())  # the generator has moved on by one call


def test_under_vmap_it_is_the_function_itself() -> None:
    found = torch.vmap(quotient)(torch.tensor([0.0, 1.0]))
    assert found.isnan().tolist() == [True, False]


def test_without_gradients() -> None:
    with torch.no_grad():
        found = quotient(torch.tensor(0.0))
    assert found.item() == 0.5
    assert not found.requires_grad


def test_what_cannot_be_called_is_told() -> None:
    with pytest.raises(TypeMismatchError, match="expected a function of tensors, got int"):
        limit(3)  # type: ignore[type-var]


def test_a_watched_program_with_it_is_replayed_and_accused_of_nothing(tmp_path: Path) -> None:
    def run() -> tuple[list[float], nanlab.Trace]:
        net = nn.ParameterList([nn.Parameter(torch.tensor([0.5, 1.0]))])
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        losses = []
        with nanlab.watch(net, on_fault="record") as trace:
            for _ in range(2):
                opt.zero_grad()
                loss = (quotient(torch.tensor([0.0, 1.0]) * net[0]) ** 2).sum()
                loss.backward()
                opt.step()
                losses.append(loss.item())
        return losses, trace

    _, trace = run()
    assert trace.culprit is None
    assert trace.replay().identical
    trace.save(tmp_path / "run.nanlab")
    assert nanlab.load(tmp_path / "run.nanlab").replay().identical


def test_an_operand_that_is_written_later_stops_no_backward_pass() -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    a = x * 1
    y = limit(lambda t: t + 1)(a)
    a.mul_(2)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1.0, 1.0]


def test_where_nothing_can_be_found_out_gradients_stay_what_they_are() -> None:
    @limit
    def root(x: Tensor, y: Tensor) -> Tensor:
        return torch.linalg.eigvalsh(torch.diag(x)).sqrt().sum() + y.sum()

    x = torch.zeros(2, requires_grad=True)
    y, label = torch.ones(2, requires_grad=True), torch.arange(2)
    root(x, y[label]).backward()
    assert x.grad is not None
    assert not bool(x.grad.isfinite().any())
    assert y.grad is not None
    assert y.grad.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    "x", [torch.ones(2, device="meta"), torch.eye(2).to_sparse(), torch.ones(2, dtype=torch.cfloat)]
)
def test_tensors_that_cannot_be_looked_at_are_left_to_the_function(x: Tensor) -> None:
    made = limit(lambda t: t * 2)(x)
    assert made.shape == x.shape
    assert made.device == x.device
    assert made.layout == x.layout


@pytest.mark.parametrize("tiny", [1e-4, 3e-5, 0.3])
@pytest.mark.parametrize(
    "mend",
    [
        lambda t: torch.nan_to_num(t, posinf=0.0),
        lambda t: t.nan_to_num(nan=50.0, posinf=0.0),
        lambda t: torch.where(t.isfinite(), t, 0.0),
    ],
)
def test_what_is_taken_out_since_it_is_infinite_is_a_constant(tiny: float, mend: Any) -> None:
    def divergence(mean: Tensor, sigma: Tensor) -> Tensor:
        each = -0.5 * (1 + 2 * torch.log(sigma) - mean.pow(2) - sigma.pow(2))
        return mend(each).sum(-1).mean()

    sigma = torch.tensor([[0.0, tiny, 0.5], [0.7, 1.0, 0.0]], requires_grad=True)
    limit(divergence)(torch.ones(2, 3), sigma).backward()
    expected = torch.where(sigma > 0, (sigma - 1 / sigma) / 2, 0.0)
    assert sigma.grad is not None
    assert torch.allclose(sigma.grad, expected)


def test_the_fault_of_a_function_under_limits_is_tried() -> None:
    @limit
    def root(sigma: Tensor) -> Tensor:
        return torch.sqrt(sigma).sum(-1).mean()

    torch.manual_seed(0)
    layer = nn.Linear(6, 4)
    with nanlab.watch(layer, on_fault="record") as trace:
        h = layer(torch.randn(8, 6))
        root(h.relu() * 0 + h.abs() * (h > 0)).backward()
    assert trace.culprit is not None and trace.culprit.cause == "sqrt-at-zero"
    assert trace.culprit.fixes[0].verified


def test_gradients_by_a_place_in_the_graph_are_told_apart() -> None:
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        y = x * 1
        edge = torch.autograd.graph.get_gradient_edge(y)
        y.backward(*torch.autograd.grad(y.sqrt().sum(), [edge]))
    assert trace.culprit is not None and trace.culprit.fixes
    assert all("cannot be empty" not in fix.why for fix in trace.culprit.fixes)
