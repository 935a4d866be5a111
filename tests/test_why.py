"""``trace.why``: which elements made one, back to where it was born."""

from __future__ import annotations

import pytest
import torch

import nanlab
from nanlab.errors import TypeMismatchError, UsageError
from nanlab.trace import Trace


def row_of(trace: Trace, op: str, phase: str = "forward") -> int:
    ops = trace.ops
    return int(ops[(ops["op"] == op) & (ops["phase"] == phase)]["position"].iloc[-1])


def test_a_nan_leads_through_views_to_the_element_that_was_born() -> None:
    weight = torch.tensor([[0.1, 0.2], [0.3, 0.4], [0.5, 90.0]], requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        p = torch.exp(weight * 1.0)
        q = p.t().reshape(-1)[1:]
        (q / q.sum()).log().mean().backward()
    found = trace.why(row_of(trace, "mean"), 0)
    assert (found[-1].name, found[-1].index, found[-1].value) == ("exp", (2, 1), float("inf"))
    assert [(each.name, each.index, each.value) for each in found[-1].made_of] == [
        ("mul", (2, 1), 90.0)
    ]
    assert all(
        name not in [each.name for each in found]
        for name in ("t", "slice", "clone", "_unsafe_view")
    )


def test_a_finite_element_leads_to_what_computed_it() -> None:
    a = torch.arange(6.0).reshape(2, 3)
    with nanlab.watch() as trace:
        (a @ a.t()).clone()
    found = trace.why(row_of(trace, "clone"), (1, 0))
    assert [each.name for each in found] == ["clone", "mm"]
    assert found[-1].value == float((a @ a.t())[1, 0])
    assert sorted(each.value for each in found[-1].made_of) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_a_gradient_leads_to_the_backward_operation_that_was_infinite() -> None:
    layer = torch.nn.Linear(3, 2)
    with nanlab.watch(layer, on_fault="record") as trace:
        h = layer(torch.ones(4, 3))
        ((h - h.detach()) ** 2).sum(-1).sqrt().sum().backward()
    assert trace.culprit is not None
    found = trace.why(row_of(trace, "mm", "backward"), (0, 0))
    assert found[0].value != found[0].value
    assert found[-1].position == trace.culprit.position
    assert "test_why.py" in repr(found)


def test_only_elements_of_its_own_row_make_a_softmax() -> None:
    scores = torch.zeros(3, 4)
    scores[1] = -torch.inf
    with nanlab.watch() as trace:
        torch.softmax(scores * 1.0, -1)
    found = trace.why(row_of(trace, "_softmax"), (1, 2))
    assert {each.index[0] for each in found[0].made_of} == {1}
    assert len(found[0].made_of) == 4


@pytest.mark.parametrize(
    ("index", "error"), [((9, 0), UsageError), (99, UsageError), ("a", TypeMismatchError)]
)
def test_an_index_outside_is_refused(index: object, error: type[Exception]) -> None:
    with nanlab.watch() as trace:
        torch.ones(2, 3).exp()
    with pytest.raises(error, match="expected"):
        trace.why(row_of(trace, "exp"), index)


def test_without_an_index_the_first_bad_element_is_asked_for_else_the_largest() -> None:
    with nanlab.watch() as trace:
        scale = torch.tensor([1.0, -3.0, 2.0], requires_grad=True)
        (scale * 2).sum().backward()
        torch.log(scale).sum()
    assert trace.why(row_of(trace, "log"))[0].index == (1,)
    assert trace.why(row_of(trace, "mul"))[0].index == (1,)
    assert trace.why(row_of(trace, "sum"))[0].index == ()
