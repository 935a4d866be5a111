"""The backward stepper, as the kernel holds it."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch
from fake_trace import big_trace, fake_trace

import nanlab
from nanlab.errors import UsageError
from nanlab.views.stepper import stepper, story


def test_it_opens_on_the_first_bad_node_of_the_first_bad_pass() -> None:
    trace = fake_trace()
    made = stepper(trace)
    assert made.row is not None
    assert (made.row["name"], made.row["status"], made.row["step"]) == ("SqrtBackward0", "born", 2)
    assert (
        made.node
        == int(made.row["node"])
        == trace.backward[trace.backward["status"] == "born"]["node"].item()
    )


def test_a_healthy_pass_opens_on_its_first_node() -> None:
    made = stepper(fake_trace(faulty=False))
    assert made.position == 0
    assert made.passes[made.chosen] == {"step": 2, "backward_pass": 0, "nodes": 18, "worst": "ok"}


def test_position_moves_the_row_and_its_detail() -> None:
    made = stepper(fake_trace())
    made.position = 5
    assert made.row is not None
    assert made.row["name"] == "MmBackward0"
    assert made.detail["position"] == 5
    assert [n for n, _ in made.detail["source"]] == [3, 4, 5, 6, 7]


def test_a_position_outside_the_pass_is_refused_with_the_range() -> None:
    made = stepper(fake_trace())
    with pytest.raises(UsageError, match="0 to 17, got 18"):
        made.position = 18
    assert made.position == 1


def test_another_pass_brings_its_own_nodes() -> None:
    made = stepper(fake_trace())
    made.chosen = 0
    assert made.row is not None
    assert int(made.row["step"]) == 1
    assert set(made.graph["status"]) == {5}
    with pytest.raises(UsageError, match="expected a pass from 0 to 1"):
        made.chosen = 2


def test_edges_join_rows_of_the_pass_from_earlier_to_later() -> None:
    made = stepper(fake_trace())
    pairs = np.frombuffer(made.edges, dtype="<i4").reshape(-1, 2)
    assert len(pairs) == 17
    assert (pairs[:, 0] < pairs[:, 1]).all()
    assert pairs.max() == len(made.graph["node"]) - 1
    sequence = np.array(made.graph["node"])
    trace_pairs = (
        fake_trace().edges.query("step == 2")[["source", "target"]].to_numpy(dtype="int64")
    )
    assert {tuple(p) for p in sequence[pairs].tolist()} == {tuple(p) for p in trace_pairs.tolist()}


def test_the_state_is_json_without_nan() -> None:
    made = stepper(fake_trace())
    json.dumps(
        {name: getattr(made, name) for name in ("graph", "passes", "detail", "half")},
        allow_nan=False,
    )


def test_histograms_of_a_node_add_up_to_numel() -> None:
    made = stepper(fake_trace())
    for side in ("grad_in", "grad_out"):
        parts = made.detail[side]
        assert (
            sum(parts["counts"]) + parts["zero"] + parts["nan"] + parts["neginf"] + parts["posinf"]
            == parts["numel"]
        )


def test_a_trace_without_backward_says_so() -> None:
    trace = fake_trace()
    trace.backward = trace.backward.iloc[:0]
    made = stepper(trace)
    assert made.node is None
    assert made.row is None
    assert "no backward pass" in made.static_html()


def test_ten_thousand_nodes_stay_under_three_megabytes() -> None:
    made = stepper(big_trace())
    state = made.get_state()
    binary = len(state.pop("edges"))
    assert len(json.dumps(state, default=str)) + binary < 3_000_000


def test_static_stand_in_names_the_node_its_line_and_survives_a_sanitiser() -> None:
    html = stepper(fake_trace()).static_html()
    assert "SqrtBackward0" in html
    assert "distance = torch.sqrt" in html
    assert "data:image/svg+xml," in html
    assert not any(tag in html for tag in ("<style", "<svg", "<script", "var(--"))


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"in_zero": 3, "out_nan": 3}, "incoming 0, local derivative inf, product NaN"),
        ({"out_inf": 2}, "a finite gradient came in"),
        ({"in_zero": 1, "out_nan": 1, "out_inf": 2}, "Times an incoming 0 it is NaN"),
        ({"in_nan": 1, "out_nan": 4}, "Carried: 1 NaN came in, 4 NaN went on"),
        ({"in_inf": 1, "out_nan": 1}, "Turned"),
        ({"in_nan": 1}, "Healed"),
        ({"out_zero": 8}, "no signal passes"),
        ({}, "Finite in, finite out; rms × 0.5"),
    ],
)
def test_the_local_story_follows_from_the_counts(numbers: dict[str, int], words: str) -> None:
    names = [f"grad_{side}_{what}" for side in ("in", "out") for what in ("nan", "inf", "zero")]
    row = (
        dict.fromkeys(names, 0)
        | {"gain": 0.5, "fp16_zero": 0}
        | {f"grad_{k}": v for k, v in numbers.items()}
    )
    assert words in story(pd.Series(row), numel=8)


def test_a_nan_from_forward_is_not_called_born_in_backward() -> None:
    row = {"grad_in_nan": 0, "grad_in_inf": 0, "grad_out_nan": 2, "grad_out_inf": 0}
    assert story(pd.Series(row), 8, forward_bad=2).startswith("Carried from forward")


def test_a_leaf_receives_what_the_optimizer_would_write() -> None:
    names = [f"grad_{side}_{what}" for side in ("in", "out") for what in ("nan", "inf", "zero")]
    row = dict.fromkeys(names, 0) | {
        "name": "AccumulateGrad",
        "parameter": "0.weight",
        "grad_in_nan": 256,
    }
    assert story(pd.Series(row)) == "0.weight receives 256 NaN: the optimizer would write them."
    row |= {"grad_in_nan": 0, "grad_in_rms": 0.5}
    assert (
        story(pd.Series(row)) == "0.weight receives its gradient: every value is finite, rms 0.5."
    )


def test_it_opens_on_the_culprit_that_the_report_names() -> None:
    weight = torch.full((3,), 100.0, requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        loss = (weight * 1.0).exp()
        (loss - loss.detach()).sum().backward()
    made = stepper(trace)
    found = trace.culprit
    assert found is not None and made.row is not None
    assert (found.phase, made.row["name"], made.row["line"]) == (
        "forward",
        "ExpBackward0",
        found.line,
    )
    assert (
        "born forward in" in made.culprit["text"]
        and "backward meets it here" in made.culprit["text"]
    )


def test_a_culprit_without_a_node_is_said_to_be_outside_of_the_pass() -> None:
    layer = torch.nn.Linear(2, 1)
    with nanlab.watch(layer, on_fault="record") as trace:
        layer(torch.full((1, 2), float("nan"))).sum().backward()
    assert (
        "outside of the backward pass" in stepper(trace).culprit["text"]
        or "position" in stepper(trace).culprit
    )


def test_a_culprit_in_a_pass_that_is_gone_is_said_to_be_there() -> None:
    net = torch.nn.Linear(4, 1).half()
    with nanlab.watch(net, on_fault="record") as trace:
        for _ in range(5):
            net.zero_grad()
            (net(torch.ones(8, 4).half()).square().mean() * 1e-8).backward()
    assert trace.culprit is not None
    assert (trace.culprit.phase, trace.culprit.step) == ("backward", 0)
    told = stepper(trace).culprit["text"]
    assert told.endswith("step 0, whose backward pass is no longer kept.")


def test_a_node_that_reads_a_bad_forward_result_carries_it() -> None:
    x = torch.full((3,), 100.0, requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        x.exp().sum().backward()
    row = trace.backward.set_index("name").loc["ExpBackward0"]
    assert (row["grad_in_inf"], row["grad_out_inf"], row["status"]) == (0, 3, "carried")
    assert "born" not in set(trace.backward["status"])
