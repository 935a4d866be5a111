"""`nanlab.safe.limit`: a function has its limit where torch's numbers give none."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

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
