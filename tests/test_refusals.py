"""Programs that end because somebody looked at a bad value: its origin is told, and what the
exception means."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import nanlab
from nanlab.trace import Trace

Tensor = torch.Tensor
D = torch.distributions


@pytest.fixture(autouse=True)
def distributions_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile switches their checks off for the whole process, whoever used it before."""
    monkeypatch.setattr(D.Distribution, "_validate_args", True)


def asserted(out: Tensor) -> Tensor:
    loss = out.square().mean()
    assert torch.isfinite(loss)
    return loss


def raised(out: Tensor) -> Tensor:
    loss = out.square().mean()
    if torch.isnan(loss):
        raise ValueError(f"loss is {loss.item()}")
    return loss


def left(out: Tensor) -> Tensor:
    loss = out.square().mean()
    if not math.isfinite(loss.item()):
        sys.exit(1)
    return loss


def left_without_gradient(out: Tensor) -> Tensor:
    loss = out.square().mean()
    with torch.no_grad():
        reduced = loss.detach() / 2
    if not math.isfinite(reduced.item()):
        sys.exit(1)
    return loss


def through_numpy(out: Tensor) -> Tensor:
    loss = out.square().mean()
    if not math.isfinite(float(loss.detach().numpy())):
        raise FloatingPointError("the loss is not finite")
    return loss


REFUSALS: dict[str, Callable[[Tensor], Tensor]] = {
    "categorical": lambda out: -D.Categorical(logits=out).log_prob(torch.zeros(5)).mean(),
    "normal": lambda out: -D.Normal(out, 1.0).log_prob(torch.zeros(5, 2)).mean(),
    "multinomial": lambda out: F.cross_entropy(
        out, torch.multinomial(torch.softmax(out, -1), 1).squeeze(1)
    ),
    "binary_cross_entropy": lambda out: F.binary_cross_entropy(
        torch.sigmoid(out), torch.zeros(5, 2)
    ),
    "cholesky": lambda out: torch.linalg.cholesky(out.T @ out + torch.eye(2)).sum(),
    "svd": lambda out: torch.linalg.svdvals(out).sum(),
    "assert": asserted,
    "raise": raised,
    "exit": left,
    "exit, of a detached loss": left_without_gradient,
    "numpy": through_numpy,
}


def trained(
    loss_of: Callable[[Tensor], Tensor], mode: Any, bad: bool = True
) -> tuple[Trace, BaseException | None]:
    """Four steps, in the third of which a logarithm of zero meets a mask."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    trace, error = None, None
    try:
        with nanlab.watch(model, on_fault=mode) as trace:
            for i in range(4):
                x = torch.rand(5, 3) * (0.0 if bad and i == 2 else 1.0)
                out = model(torch.log(x) * (x > 0) if i == 2 else x)
                loss = loss_of(out)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    except BaseException as found:
        error = found
    assert trace is not None
    return trace, error


@pytest.mark.parametrize("mode", ["stop", "record"])
@pytest.mark.parametrize("name", REFUSALS)
def test_what_was_refused_is_followed_to_its_birth(name: str, mode: str) -> None:
    trace, error = trained(REFUSALS[name], mode)
    assert error is not None
    found = trace.culprit
    assert found is not None
    assert (found.cause, found.op, found.step, found.symptom) == (
        "log-of-zero",
        "log",
        2,
        "output-nan",
    )


@pytest.mark.parametrize("name", REFUSALS)
def test_the_same_program_without_the_fault_is_silent(name: str) -> None:
    trace, error = trained(REFUSALS[name], "stop", bad=False)
    assert error is None
    assert trace.culprit is None


def test_an_exception_about_something_else_accuses_nobody() -> None:
    def unrelated(out: Tensor) -> Tensor:
        loss = out.square().mean()
        if loss.isnan():
            raise KeyError("config")
        return loss

    trace, error = trained(unrelated, "stop")
    assert isinstance(error, KeyError)
    assert trace.culprit is None


def test_an_assertion_about_something_else_accuses_no_mask() -> None:
    scores = torch.randn(4, 4, requires_grad=True)
    watch = nanlab.watch()

    def step() -> None:
        with watch:
            masked = scores.masked_fill(torch.eye(4, dtype=torch.bool), -torch.inf)
            best = masked.max(1).values * 2.0
            assert best.shape == (3,)

    with pytest.raises(AssertionError):
        step()
    assert watch.trace.culprit is None


def test_an_error_about_inference_accuses_nobody() -> None:
    def confused(out: Tensor) -> Tensor:
        loss = out.square().mean()
        if loss.isnan():
            raise RuntimeError("Inference tensors cannot be saved for backward; see nanlab")
        return loss

    trace, error = trained(confused, "stop")
    assert isinstance(error, RuntimeError)
    assert trace.culprit is None


def test_a_successful_exit_accuses_nobody() -> None:
    def done(out: Tensor) -> Tensor:
        if not math.isfinite(out.square().mean().item()):
            sys.exit(0)
        return out.square().mean()

    trace, error = trained(done, "stop")
    assert isinstance(error, SystemExit)
    assert trace.culprit is None


@pytest.mark.parametrize("name", ["categorical", "normal", "multinomial", "cholesky"])
def test_the_explanation_says_where_the_refused_value_was_born(name: str) -> None:
    trace, error = trained(REFUSALS[name], "stop")
    found = nanlab.explain(error)
    assert found is not None
    assert "log of" in found.explanation
    assert trace.culprit is not None
    assert str(trace.culprit) in found.explanation


MEANT: dict[str, tuple[Callable[[], Any], str]] = {
    "reshape": (lambda: torch.zeros(10).view(3, -1), "no multiple of 3"),
    "other size": (lambda: torch.zeros(10).reshape(3, 4), "has 12 elements"),
    "view": (lambda: torch.zeros(4, 3).t().view(12), "next to each other"),
    "one sample": (lambda: nn.BatchNorm1d(4)(torch.zeros(1, 4)), "one value per channel"),
    "target": (
        lambda: F.binary_cross_entropy(torch.rand(4, 1), torch.zeros(4)),
        "the predictions have (4, 1)",
    ),
    "logits": (
        lambda: F.binary_cross_entropy_with_logits(torch.rand(4, 1), torch.zeros(4)),
        "the predictions have (4, 1)",
    ),
    "singular": (lambda: torch.linalg.inv(torch.zeros(3, 3)), "the matrix is singular"),
    "solve": (
        lambda: torch.linalg.solve(torch.ones(3, 3), torch.ones(3)),
        "the matrix is singular",
    ),
    "indefinite": (lambda: torch.linalg.cholesky(-torch.eye(3)), "not positive-definite"),
    "no scale": (lambda: D.Normal(torch.zeros(2), torch.zeros(2)), "outside of its domain"),
    "no choice": (lambda: torch.multinomial(torch.zeros(1, 3), 1), "add up to zero"),
    "support": (
        lambda: D.Beta(torch.ones(1), torch.ones(1)).log_prob(torch.tensor([1.5])),
        "outside of the support",
    ),
}


@pytest.mark.parametrize("name", MEANT)
def test_an_exception_about_shapes_and_values_is_explained(name: str) -> None:
    program, part = MEANT[name]
    with pytest.raises(Exception) as caught:  # noqa: PT011
        program()
    found = nanlab.explain(caught.value)
    assert found is not None
    assert part in found.title
    assert found.fixes
