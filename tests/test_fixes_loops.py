"""A loop in logarithms computes what it computed, where that is in range."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import torch

from nanlab.fixes.loops import in_logarithms

PRODUCT = """
def loss(x):
    p, count = torch.softmax(x, 0), 0
    likelihood = 1.0
    for i in range(len(x)):
        likelihood *= p[i]
        count += 1
    return -torch.log(likelihood) / count
"""
KEPT = """
def loss(x):
    step = torch.softmax(x, 1)
    alphas = [torch.softmax(x[0], 0) / 2]
    for i in range(4):
        alphas.append(
            torch.einsum("i,ij->j", alphas[-1], step)
            * torch.exp(x[i % 2])
        )
    return -torch.log(alphas[-1].sum())
"""
CHAIN = """
def loss(x):
    step = torch.softmax(x, 1)
    alpha = torch.softmax(x[0], 0)
    for i in range(4):
        alpha = (alpha @ step) * torch.exp(x[i % 2])
    total = alpha.sum()
    return -torch.log(total)
"""
TRANSPORT = """
def loss(x):
    kernel = torch.exp(-(x**2))
    u = torch.ones(3, dtype=x.dtype)
    v = torch.ones_like(u)
    for _ in range(3):
        u = 0.3 / (kernel @ v)
        v = 0.2 / (kernel.T @ u)
    plan = u[:, None] * kernel * v
    return record(plan) * (plan * x).sum()
"""
COST = """
def loss(x):
    cost = torch.cdist(x, x + 1) ** 2
    kernel = torch.exp(-cost / 0.05)
    u = torch.ones(3, dtype=x.dtype)
    for _ in range(3):
        v = 0.2 / (kernel.T @ u)
        u = 0.3 / (kernel @ v)
    return (u[:, None] * kernel * v[None] * cost).sum()
"""
RAYS = """
def loss(x):
    light = torch.ones(())
    seen = 0.0
    for a in torch.sigmoid(x).flatten():
        seen = seen + light * a
        light = light * (1 - a)
    return seen + torch.log(light)
"""


STATES = """
def loss(x):
    p = torch.softmax(x, 1)
    state = torch.zeros(3, dtype=x.dtype)
    state[0] = p[0, 0]
    for t in range(1, 4):
        moved = torch.cat([torch.zeros(1, dtype=x.dtype), state[:-1]])
        state = (state + moved) * p[t]
    return -torch.log(state[-1])
"""
STACKED = """
def loss(x):
    p = torch.sigmoid(x)
    state = torch.stack([p[0, 0], p[0, 1]])
    for t in range(1, 4):
        into = state[1] * p[t, 0] + state[0] * (1 - p[t, 0])
        state = torch.stack([state[0] * p[t, 1], into])
    return -torch.log(state[1])
"""

MIXTURE = """
def loss(x):
    weights = torch.softmax(x[:, 0], 0)
    density = 0.0
    for i in range(3):
        density = density + weights[i] * torch.exp(-((x[:, 1] - x[i, 0]) ** 2))
    return -torch.log(density).mean()
"""


def rewritten(code: str, word: str) -> list[str]:
    """The code in each form that in_logarithms gives for the first line with a word."""
    rows = code.splitlines()
    line = next(i for i, row in enumerate(rows, 1) if word in row)
    found = []
    for lines in in_logarithms(code, line):
        made = list(rows)
        for first, last, text in sorted(lines, reverse=True):
            indent = rows[first - 1][: len(rows[first - 1]) - len(rows[first - 1].lstrip())]
            made[first - 1 : last] = textwrap.indent(text, indent).splitlines()
        found.append("\n".join(made))
    return found


def run(code: str, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    names: dict[str, Any] = {"torch": torch, "record": lambda plan: plan.amax()}
    exec(code, names)
    x = x.clone().requires_grad_(True)
    loss = names["loss"](x)
    return loss.detach(), torch.autograd.grad(loss, x)[0]


def test_exponentials_that_cancel_out_meet_in_one() -> None:
    """torch.exp(u) alone is infinite where the kernel is 0."""
    assert any("torch.exp(u[:, None] + v[None] - 20 * cost)" in r for r in rewritten(COST, "u ="))


@pytest.mark.parametrize(
    ("code", "word", "shape"),
    [
        (PRODUCT, "torch.log", (5,)),
        (KEPT, "torch.log", (2, 2)),
        (CHAIN, "torch.log", (2, 2)),
        (TRANSPORT, "u = 0.3", (3, 3)),
        (COST, "u = 0.3", (3, 2)),
        (RAYS, "torch.log", (2, 2)),
        (STATES, "torch.log", (4, 3)),
        (STACKED, "torch.log", (4, 2)),
        (MIXTURE, "torch.log", (3, 2)),
    ],
)
def test_a_loop_in_logarithms_computes_the_same(
    code: str, word: str, shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    x = torch.rand(shape, dtype=torch.float64)
    true = run(code, x)
    forms = rewritten(code, word)
    assert forms
    assert any(
        all(torch.allclose(a, b) for a, b in zip(run(form, x), true, strict=True)) for form in forms
    )


def test_a_list_of_which_more_than_the_last_is_read_stays() -> None:
    assert not rewritten(KEPT.replace("alphas[-1].sum()", "sum(alphas).sum()"), "torch.log")


@pytest.mark.parametrize(
    "line",
    [
        "if likelihood < 1e-30:\n            break",  # what decides is another number then
        "likelihood[0] += p[i]",
        "likelihood = likelihood - p[i]",
        "likelihood = other(likelihood)",
    ],
)
def test_a_loop_that_does_more_than_multiply_stays(line: str) -> None:
    code = PRODUCT.replace("count += 1", line)
    assert not rewritten(code, "torch.log")
