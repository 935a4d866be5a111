"""Faults inside installed libraries and inside torch: both lines are named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import nanlab
from nanlab.analysis.libraries import function_at


def culprit(parameter: torch.Tensor, loss: Callable[[], torch.Tensor]) -> nanlab.Finding:
    with nanlab.watch(on_fault="record") as trace:
        for _ in range(2):
            parameter.grad = None
            loss().backward()
    assert trace.culprit is not None
    assert trace.culprit.file == __file__
    return trace.culprit


def library_of(found: nanlab.Finding) -> tuple[str, str]:
    """(file within its package, function)"""
    assert found.library is not None
    file, line, function = found.library
    assert function_at(file, line) == function
    return file.rsplit("site-packages/", 1)[-1], function


def test_line_inside_torch_is_named_beside_that_of_the_user() -> None:
    mean = nn.Parameter(torch.tensor([0.5, 1.0]))
    density = torch.distributions.LogNormal(mean, 1.0, validate_args=False)
    found = culprit(mean, lambda: -density.log_prob(torch.tensor([0.0, 1.0])).sum())
    assert library_of(found) == ("torch/distributions/transforms.py", "ExpTransform._inverse")


def test_what_the_user_computes_is_in_no_library() -> None:
    x = nn.Parameter(torch.tensor([0.0, 1.0]))
    assert culprit(x, lambda: torch.log(x).sum()).library is None
    assert culprit(x, lambda: x.sqrt().sum()).library is None


def test_derivative_of_a_librarys_operation_is_told_inside_the_library() -> None:
    losses = pytest.importorskip(
        "pytorch_metric_learning.losses", reason="wants pytorch-metric-learning"
    )
    head = losses.ArcFaceLoss(3, 4)
    x = nn.Parameter(head.W.detach().T[:3].clone())
    found = culprit(x, lambda: head(x, torch.tensor([0, 1, 2])))
    assert found.cause == "inverse-function-at-edge"
    assert library_of(found)[1].endswith("get_angles")


def _normalised_by_kornia(x: torch.Tensor) -> torch.Tensor:
    return pytest.importorskip("kornia", reason="wants kornia").enhance.normalize_min_max(
        x, eps=0.0
    )


def _normalised_by_graph(x: torch.Tensor) -> torch.Tensor:
    return pytest.importorskip("torch_geometric.nn", reason="wants torch_geometric").PairNorm(
        eps=0.0
    )(x[0, 0])


def _compared(x: torch.Tensor) -> torch.Tensor:
    functional: Any = pytest.importorskip("torchmetrics.functional", reason="wants torchmetrics")
    return functional.cosine_similarity(x[0, 0] * 0, torch.ones(4, 4))


@pytest.mark.parametrize(
    ("call", "package"),
    [
        (_normalised_by_kornia, "kornia"),
        (_normalised_by_graph, "torch_geometric"),
        (_compared, "torchmetrics"),
    ],
)
def test_line_of_an_installed_package_is_named(
    call: Callable[[torch.Tensor], torch.Tensor], package: str
) -> None:
    x = nn.Parameter(torch.ones(1, 1, 4, 4))
    found = culprit(x, lambda: call(x).sum())
    assert library_of(found)[0].startswith(package)
