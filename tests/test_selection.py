"""One selection: what is chosen in a view or from Python is chosen in every view of the trace."""

from __future__ import annotations

import gc

import pytest
import torch

import nanlab
from nanlab.errors import TypeMismatchError, UsageError
from nanlab.trace import Trace
from nanlab.views.tables import browse


def faulty() -> Trace:
    layer = torch.nn.Linear(3, 2)
    with nanlab.watch(layer, on_fault="record") as trace:
        h = layer(torch.ones(4, 3))
        (h - h).sqrt().sum().backward()
    return trace


def test_at_first_the_culprit_is_selected() -> None:
    trace = faulty()
    assert trace.culprit is not None and trace.at is not None
    assert trace.at == trace.culprit.position
    assert (trace.at.file, trace.at.line) == (trace.culprit.file, trace.culprit.line)


def test_a_healthy_run_has_nothing_selected() -> None:
    with nanlab.watch() as trace:
        torch.ones(3).exp()
    assert trace.at is None


def test_the_selection_is_a_position_that_says_what_stands_there() -> None:
    trace = faulty()
    trace.at = 1
    row = trace.ops.loc[trace.at]
    assert (trace.at, trace.at.op, trace.at.phase) == (1, row["op"], row["phase"])
    assert repr(trace.at).startswith("1 (")


def test_a_row_a_finding_a_node_and_a_widget_can_be_selected() -> None:
    trace = faulty()
    trace.at = trace.ops.iloc[2]
    assert trace.at == 2
    trace.at = trace.culprit
    assert trace.culprit is not None and trace.at == trace.culprit.position
    node = trace.backward.iloc[0]
    trace.at = node
    assert trace.at == node["position_out"]
    stepper = trace.stepper()
    trace.at = 0
    trace.at = stepper
    assert stepper.row is not None and trace.at == stepper.row["position_out"]
    stepper.position = 2
    assert (stepper.position, trace.at.op) == (2, "sub"), (
        "a node that only hands on is its forward operation"
    )


def test_what_is_no_row_is_refused_with_what_to_type() -> None:
    trace = faulty()
    with pytest.raises(UsageError, match="no row at position 9999"):
        trace.at = 9999
    with pytest.raises(TypeMismatchError, match=r"trace\.at = trace\.culprit"):
        trace.at = 1.5
    with pytest.raises(TypeMismatchError, match="got 'sqrt'"):
        trace.at = "sqrt"


def test_every_view_shows_what_one_of_them_selects() -> None:
    trace = faulty()
    stepper, explorer, table = trace.stepper(), trace.underflow(), browse(trace.ops)
    stepper.position = 3
    assert stepper.row is not None
    assert trace.at == stepper.row["position_out"]
    assert table.frame.iloc[table.selected]["position"] == trace.at
    assert explorer.row is not None and explorer.row["position"] == trace.at
    table.selected = int((table.frame["op"] == "sqrt").to_numpy().argmax())
    forward = trace.at
    assert forward is not None and forward.op == "sqrt" and stepper.node == forward.node
    assert trace.at == forward, "the stepper shows the node and leaves the forward row selected"
    trace.at = trace.ops.iloc[0]
    assert explorer.row["position"] == 0 and table.frame.iloc[table.selected]["position"] == 0


def test_a_view_that_is_gone_is_followed_no_more() -> None:
    class View:
        def follow(self, place: object) -> None:
            seen.append(place)

    trace, seen = faulty(), []
    view = View()
    trace.selection.follow(view.follow)
    trace.at = 1
    del view
    gc.collect()
    trace.at = 2
    assert seen == [1]
