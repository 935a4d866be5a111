"""The lens: a function around the values that it failed on, with the fixes as curves."""

from __future__ import annotations

import math
from urllib.parse import unquote

import torch

import nanlab
from nanlab.trace import Trace
from nanlab.views.evidence import curve, lens, operand, quotient


def overflowing() -> Trace:
    rate = torch.linspace(80.0, 100.0, 40).requires_grad_()
    with nanlab.watch(on_fault="record") as trace:
        torch.exp(rate).mean().backward()
    return trace


def test_the_function_is_drawn_with_the_limit_of_its_dtype() -> None:
    trace = overflowing()
    assert trace.culprit is not None
    html = unquote(lens(trace, trace.culprit))
    assert "limit 88.72" in html and ">rate</text>" in html
    assert "exp around" in html.split('alt="')[1]


def test_the_values_are_those_of_the_evidence() -> None:
    trace = overflowing()
    assert trace.culprit is not None
    values = operand(trace, trace.culprit)
    assert values is not None and values.min() > math.log(torch.finfo(torch.float32).max)


def test_a_fix_is_a_curve_of_the_operand_alone() -> None:
    grid = torch.tensor([0.0, 1.0, 4.0])
    assert curve("y = torch.sqrt(square + 1.0)", "square", grid) == torch.sqrt(grid + 1).tolist()
    assert curve("y = a * torch.sqrt(p.clamp_min(4))", "p", grid) == [
        2.0,
        2.0,
        2.0,
    ]
    assert curve("y = other", "p", grid) is None
    assert curve("not python (", "p", grid) is None


def test_a_quotient_of_functions_of_one_variable_is_drawn_with_both() -> None:
    with nanlab.watch(on_fault="record") as trace:
        r = torch.tensor([0.0, 1.0]).requires_grad_()
        sinc = torch.sin(r) / r
        sinc.sum().backward()
    assert trace.culprit is not None
    subject = quotient(trace, trace.culprit)
    assert subject is not None and subject.held == ""
    grid = torch.tensor([-1.0, 2.0])
    assert subject.function(grid).tolist() == (torch.sin(grid) / grid).tolist()


def test_a_quotient_is_drawn_over_its_divisor_with_the_numerator_held() -> None:
    with nanlab.watch(on_fault="record") as trace:
        above = torch.tensor([1.0, 2.0, 4.0]).requires_grad_()
        below = torch.tensor([2.0, 0.5, 0.0])
        ratio = above / below
        ratio.sum().backward()
    assert trace.culprit is not None and trace.culprit.cause == "div-by-zero"
    html = unquote(lens(trace, trace.culprit))
    assert "div around 1 value of below (red), above held at 4" in html
    assert ">below</text>" in html
    subject = quotient(trace, trace.culprit)
    assert subject is not None and subject.values.tolist() == [0.0]
    assert subject.function(torch.tensor([2.0, 8.0])).tolist() == [2.0, 0.5]


def test_what_is_no_such_function_has_no_lens() -> None:
    with nanlab.watch(on_fault="record") as trace:
        scores = torch.full((2, 3), -torch.inf).requires_grad_()
        scores.softmax(-1).sum().backward()
    assert trace.culprit is not None
    assert lens(trace, trace.culprit) == ""


def test_a_pole_bears_its_value_and_the_axis_has_fractions() -> None:
    with nanlab.watch(on_fault="record") as trace:
        p = torch.tensor([0.0, 0.2, 0.4]).requires_grad_()
        (p.log() * p).sum().backward()
    assert trace.culprit is not None and trace.culprit.op == "log"
    html = unquote(lens(trace, trace.culprit))
    assert ">-inf</text>" in html
    assert ">0.1</text>" in html or ">0.2</text>" in html
