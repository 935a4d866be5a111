"""Fixes for what a distribution is asked, and for decompositions whose gradient may be cut only
where there is another."""

from __future__ import annotations

from collections.abc import Callable

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
