"""Fixes for what a distribution is asked, and for decompositions whose gradient may be cut only
where there is another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fixing import holds
from torch import Tensor, nn
from torch.distributions import Distribution, Exponential, Laplace, LogNormal, Normal

import nanlab
from nanlab.rules import Fix

U = torch.tensor([0.25, 0.5, 0.0, 1.0])


def fixes(loss: Callable[[nn.Parameter], Tensor]) -> list[Fix]:
    weight = nn.Parameter(torch.ones(()))
    with nanlab.watch(on_fault="record") as trace:
        loss(weight).backward()
    assert trace.culprit is not None
    return trace.culprit.fixes


FAMILIES: dict[str, Callable[[Tensor], Distribution]] = {
    "normal": lambda w: Normal(w - 1, w),
    "log-normal": lambda w: LogNormal(w - 1, w),
    "laplace": lambda w: Laplace(w - 1, w),
    "exponential": lambda w: Exponential(w),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_probability_is_kept_away_from_0_and_1_where_a_quantile_is_asked_for(family: str) -> None:
    def loss(weight: nn.Parameter) -> Tensor:
        q = FAMILIES[family](weight).icdf(U)
        return q.square().mean()

    found = [fix.code for fix in fixes(loss)]
    assert found[0] == "q = FAMILIES[family](weight).icdf(U.clamp(1e-6, 1 - 1e-6))"
    assert bool(
        torch.isfinite(FAMILIES[family](torch.ones(())).icdf(U.clamp(1e-6, 1 - 1e-6))).all()
    )


def embedding(weight: Tensor) -> Tensor:
    _, vectors = torch.linalg.eigh(weight * torch.eye(3))
    return vectors[:, 1:].sum()


def test_a_decomposition_keeps_its_gradient() -> None:
    found = [fix.code for fix in fixes(lambda w: embedding(w) + w.square()) if holds(fix)]
    assert ["safe.eigh" in found[0], "linspace" in found[1]] == [True, True]
    assert not any("detach" in fix.code for fix in fixes(embedding) if fix.verified)


@pytest.mark.parametrize("edge", [0.0, 1.0])
def test_a_value_at_the_edge_of_its_support_is_counted_by_its_sample_and_moved_by_its_own(
    edge: float, tmp_path: Path
) -> None:
    path = tmp_path / "shares.py"
    path.write_text(
        "from torch.distributions import Beta\n"
        "def step(net, x, y):\n"
        "    a, b = net(x).exp().unbind(-1)\n"
        "    return -Beta(a + 1, b + 1).log_prob(y).mean()\n"
    )
    names: dict[str, Any] = {"__name__": "shares"}
    exec(compile(path.read_text(), str(path), "exec"), names)
    torch.manual_seed(0)
    net, x = nn.Linear(3, 2), torch.randn(10, 3)
    y = torch.sigmoid(2 * x[:, 0])
    y[6] = edge
    with nanlab.watch(net, on_fault="record") as trace:
        names["step"](net, x, y).backward()
    found = trace.culprit
    assert found is not None and found.cause == "infeasible-likelihood"
    assert found.title.startswith("log_prob gives 1 sample of 10 a density of 0")
    assert found.evidence["observed"].tolist() == [0.0]
    assert [fix.code for fix in found.fixes] == [
        "return -Beta(a + 1, b + 1).log_prob(y.clamp(1e-6, 1 - 1e-6)).mean()"
    ]
    assert "the value is inf" not in found.fixes[0].why


class _Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Distribution:
        one, other = (1.05 + nn.functional.softplus(part(x)) for part in (self.one, self.other))
        return torch.distributions.Beta(one, other, validate_args=False)


def test_value_under_a_name_is_that_of_the_step_that_failed_first() -> None:
    torch.manual_seed(0)
    net, x, actions = _Policy(), torch.rand(25, 3), torch.rand(25, 2) * 0.9 + 0.05
    actions[11, 0] = actions[17, 0] = 1.0

    def batch(i: int) -> tuple[Tensor, Tensor]:
        return x[5 * i : 5 * i + 5], actions[5 * i : 5 * i + 5]

    def step(i: int) -> None:
        seen, given = batch(i)
        density = net(seen)
        loss = -density.log_prob(given).mean()
        net.zero_grad()
        loss.backward()

    with nanlab.watch(net, on_fault="record") as trace:
        for i in range(5):
            step(i)
    assert trace.culprit is not None and trace.culprit.step == 2
    fixes = {fix.title: fix for fix in trace.culprit.fixes}
    assert fixes["pass given.clamp(1e-6, 1 - 1e-6)"].verified
