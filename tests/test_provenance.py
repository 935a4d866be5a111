"""From where a bad value was seen back to where it was born."""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import nanlab
from nanlab.capture import folding


def line_of(text: str) -> int:
    lines = inspect.getsource(inspect.getmodule(line_of)).splitlines()  # type: ignore[arg-type]
    return next(i for i, line in enumerate(lines, 1) if line.endswith(f"# {text}"))


def culprit(trace: nanlab.Trace) -> tuple[str, int, str, str]:
    found = trace.culprit
    assert found is not None
    return found.op, found.line, found.phase, found.symptom


def test_a_mask_from_outside_the_watch_that_covers_a_row_is_the_softmaxs_fault() -> None:
    mask = torch.zeros(3, 4)
    mask[1] = float("-inf")
    layer = nn.Linear(4, 4)
    with nanlab.watch(layer, on_fault="record") as trace:
        torch.softmax(layer(torch.randn(3, 4)) + mask, 1).sum().backward()  # masked out
    assert culprit(trace) == ("_softmax", line_of("masked out"), "forward", "loss-nan")


def test_an_infinite_input_is_data_even_where_only_the_gradient_suffers() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4)
    x[0, 0] = float("inf")
    layer = nn.Linear(4, 4)
    with nanlab.watch(layer, on_fault="record") as trace:
        torch.tanh(layer(x)).sum().backward()  # first use
    op, line, phase, symptom = culprit(trace)
    assert (op, line, phase, symptom) == ("addmm", line_of("first use"), "data", "grad-nan")


def test_an_infinity_behind_a_where_is_found_in_the_backward_pass() -> None:
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        y = 1 / x  # hidden
        torch.where(x > 0, y, torch.zeros(2)).sum().backward()
    assert culprit(trace)[1:3] == (line_of("hidden"), "backward")


def test_a_guilty_birth_is_found_although_harmless_ones_came_before_it() -> None:
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        with torch.no_grad():
            torch.log(x)  # only looked at
        best = torch.tensor(float("inf"))
        torch.minimum(best, torch.tensor(3.0))
        torch.log(x).sum().backward()  # guilty
    assert culprit(trace)[1] == line_of("guilty")


def test_a_poison_that_shows_many_steps_later_keeps_its_line() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with nanlab.watch(model, on_fault="record", keep=2) as trace:
        for i in range(30):
            x = torch.randn(4, 3)
            model.train(i < 25)
            optimizer.zero_grad()
            if i == 2:
                x = x / torch.zeros(1)  # poison
                model(x)
                continue
            model(x).square().mean().backward()
            optimizer.step()
    assert culprit(trace)[1] == line_of("poison")
    assert trace.culprit is not None
    assert trace.culprit.step == 25


def test_a_value_written_piece_by_piece_is_traced_to_its_piece() -> None:
    x = torch.tensor([4.0, -1.0], requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        out = torch.empty(2)
        out[0] = x[0].sqrt()
        out[1] = x[1].sqrt()  # bad piece
        out.sum().backward()
    assert culprit(trace)[1] == line_of("bad piece")


def test_memory_freed_and_used_again_is_not_taken_for_its_former_content() -> None:
    x = torch.ones(64, requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        for _ in range(50):
            bad = torch.log(torch.zeros(64))
            del bad
            (x * 2).sum().backward()
    assert trace.culprit is None


def test_the_path_counts_the_bad_elements_at_each_hop() -> None:
    x = torch.tensor([[0.0, 1.0], [1.0, 1.0]], requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        (torch.log(x) @ torch.ones(2, 2)).sum().backward()
    assert trace.culprit is not None
    path = [(hop["op"], hop["nonfinite"]) for hop in trace.culprit.path]
    assert path[0] == ("log", 1)
    assert ("mm", 2) in path
    assert path[-1] == ("sum", 1)


def _steps_with_a_fault(steps: int, keep: int) -> nanlab.Trace:
    """A run without an optimizer, in whose every step from the third on a logarithm of zero spoils
    the gradients."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    with nanlab.watch(model, on_fault="record", keep=keep) as trace:
        for i in range(steps):
            model.zero_grad()
            out = model(torch.randn(3, 4))
            (out * (i < 2)).square().add(float(i < 2)).log().sum().backward()
    return trace


def test_the_step_in_which_a_fault_began_is_kept_whole_however_many_steps_follow() -> None:
    first = [
        ops[ops["step"] == 2].reset_index(drop=True)
        for ops in (_steps_with_a_fault(9, k).ops for k in (1, 99))
    ]
    assert len(first[0]) > 20
    assert first[0]["op"].tolist() == first[1]["op"].tolist()
    assert first[0]["nan"].tolist() == first[1]["nan"].tolist()


def test_of_many_steps_with_a_fault_only_so_many_are_kept_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    every = _steps_with_a_fault(60, 99).ops
    rows = int((every["step"] == 2).sum())
    monkeypatch.setattr(folding, "WHOLE_ROWS", 5 * rows)
    counts = _steps_with_a_fault(60, 1).ops["step"].value_counts()
    assert (counts == rows).sum() == 5 + 1  # the first five with a fault, and the last step
    assert counts.get(0, 0) < rows and counts.get(40, 0) < rows


def test_a_number_read_from_a_tensor_is_followed_into_what_is_computed_with_it() -> None:
    x = torch.zeros(3)
    w = torch.ones(3, requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        level = x.log().mean().item()  # read
        (w * (2 * level)).sum().backward()
    assert culprit(trace) == ("log", line_of("read"), "forward", "loss-inf")
    assert trace.ops.loc[trace.ops.op == "mul", "status"].tolist() == ["carried", "carried"]


def test_a_literal_made_of_numbers_read_from_tensors_is_followed_to_them() -> None:
    w = torch.ones(2, requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        share = float(torch.zeros(2).sum() / 0)  # read into a literal
        (w * torch.tensor([1.0, share])).sum().backward()
    assert culprit(trace) == ("div", line_of("read into a literal"), "forward", "loss-nan")


def test_an_infinity_that_fills_or_masks_is_the_programs_own_whatever_was_read_before() -> None:
    w = torch.ones(4, requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        torch.zeros(1).log().item()
        masked = w.masked_fill(torch.tensor([True, False, False, True]), float("-inf"))
        masked.softmax(0)[1].backward()
    assert trace.culprit is None
    assert trace.ops.loc[trace.ops.op == "masked_fill", "status"].iloc[0] == "intended"


def test_a_running_number_carries_its_poison_into_the_next_step() -> None:
    layer = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    baseline = 0.0
    with nanlab.watch(layer, on_fault="record", keep=2) as trace:
        for step in range(6):
            rewards = torch.rand(8) * (step != 2)
            loss = (layer(torch.randn(8, 4)).squeeze(1) * (rewards - baseline)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            baseline = 0.9 * baseline + 0.1 * rewards.max().log().item()  # of no reward
    assert culprit(trace)[:2] == ("log", line_of("of no reward"))
    assert trace.culprit is not None and trace.culprit.step == 3  # in which the loss shows it


def test_where_is_left_by_the_bad_values_that_it_chose_and_not_by_the_others() -> None:
    layer = nn.Linear(2, 1)
    series = torch.tensor([[1.0, torch.nan], [2.0, torch.nan]])
    with nanlab.watch(layer, on_fault="record") as trace:
        level = torch.nanmean(series, 0)  # nothing to average
        layer(torch.where(series.isnan(), level, series)).sum().backward()
    assert trace.culprit is not None
    assert (trace.culprit.cause, trace.culprit.line) == (
        "empty-reduction",
        line_of("nothing to average"),
    )


def test_an_infinity_in_what_a_loader_reads_is_data_and_not_the_programs_own() -> None:
    layer = nn.Linear(1, 1)
    rows = [(np.float32([k]), np.float32(-np.inf if k == 2 else k)) for k in range(3)]
    with nanlab.watch(layer, on_fault="record") as trace:
        for x, y in DataLoader(rows, batch_size=3):  # type: ignore[arg-type]
            nn.functional.mse_loss(layer(x)[:, 0], y).backward()
    assert trace.culprit is not None
    assert (trace.culprit.cause, trace.culprit.phase) == ("nan-in-target", "data")


def test_a_buffer_that_is_multiplied_until_it_overflows_is_no_weight_driven_away() -> None:
    layer = nn.Linear(2, 1)
    layer.register_buffer("beta", torch.tensor(1.0))
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
    with nanlab.watch(layer, on_fault="record") as trace:
        for _ in range(9):
            optimizer.zero_grad()
            (layer.beta * layer(torch.ones(3, 2)).clamp(-1e-30, 1e-30).sum()).backward()
            optimizer.step()
            with torch.no_grad():
                layer.beta.mul_(1e5)  # raised
    assert trace.culprit is not None
    assert (trace.culprit.cause, trace.culprit.line) == ("dtype-overflow", line_of("raised"))


@pytest.mark.parametrize("kept", [True, False])
def test_a_state_that_spoils_every_later_batch_is_told_though_each_of_them_is_left_out(
    kept: bool,
) -> None:
    cell = nn.RNNCell(2, 3)
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.1)
    state = torch.zeros(4, 3)
    with nanlab.watch(cell, on_fault="record") as trace:
        for step in range(6):
            x = torch.ones(4, 2)
            if step == 1:
                x[0, 0] = torch.nan
            new = cell(x, state.detach())  # meets the gap
            loss = new.square().mean()
            if loss.isfinite():
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            if kept or loss.isfinite():
                state = new
    told = trace.culprit and (trace.culprit.cause, trace.culprit.line)
    assert told == (("nan-in-input", line_of("meets the gap")) if kept else None)


def test_a_derivative_that_met_a_hidden_infinity_names_the_line_that_made_it() -> None:
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        y = 1 / x  # the birth
        y.square().clamp(max=9.0).sum().backward()
    assert trace.culprit is not None
    assert f"born in reciprocal (test_provenance.py:{line_of('the birth')})" in (
        trace.culprit.explanation.replace("tests/", "")
    )


def test_a_written_infinity_that_reached_the_loss_names_the_line_that_wrote_it() -> None:
    weight = torch.ones(2, requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        border = torch.tensor([0.0, torch.inf])  # written here
        (weight + border).sum().backward()
    assert trace.culprit is not None
    assert trace.culprit.explanation.endswith(f"test_provenance.py:{line_of('written here')}.")


@pytest.mark.parametrize("kind", ["input", "target"])
def test_bad_data_names_its_elements_and_samples(kind: str) -> None:
    torch.manual_seed(0)
    model, x, y = nn.Linear(4, 1), torch.randn(6, 4), torch.randn(6)
    (x[3] if kind == "input" else y[3:])[0] = torch.nan
    with nanlab.watch(model, on_fault="record") as trace:
        for _ in range(2):
            torch.nn.functional.mse_loss(model(x)[:, 0], y).backward()
    found = trace.culprit
    assert found is not None and found.cause == f"nan-in-{kind}" and found.samples == [3]
    assert found.evidence["index"].tolist() == [(3, 0) if kind == "input" else 3]
    assert found.evidence["value"].isna().all()


def test_of_two_bad_buffers_that_which_made_nan_is_blamed() -> None:
    norm = nn.BatchNorm1d(4).eval()
    assert norm.running_var is not None and norm.running_mean is not None
    norm.running_var[2], norm.running_mean[1] = torch.inf, torch.nan
    with nanlab.watch(norm, on_fault="record") as trace:
        norm(torch.randn(6, 4)).mean().backward()
    assert trace.culprit is not None and "running_mean" in trace.culprit.title


@pytest.mark.parametrize("again", [True, False])
def test_gradients_that_are_cleared_and_computed_anew_at_a_smaller_scale_did_no_harm(
    again: bool,
) -> None:
    layer = nn.Linear(4, 4).half()
    scale = 2.0**15

    def backward(x: torch.Tensor, scale: float) -> None:
        layer.zero_grad()
        (layer(x).float().square().mean() * scale).backward()

    with nanlab.watch(layer, on_fault="record") as trace:
        for i in range(4):
            x = torch.ones(8, 4, dtype=torch.half) * (200.0 if i == 2 else 1.0)
            backward(x, scale)
            if again and not all(p.grad.isfinite().all() for p in layer.parameters()):
                scale = 2.0**-4
                backward(x, scale)
            with torch.no_grad():
                for p in layer.parameters():
                    assert p.grad is not None
                    p -= 1e-4 * p.grad / scale
    if again:
        assert trace.culprit is None
    else:
        assert trace.culprit is not None and trace.culprit.cause == "loss-scale-overflow"


@pytest.mark.parametrize("of_data", [True, False])
def test_a_singular_sample_that_the_program_leaves_out_by_hand_did_no_harm(of_data: bool) -> None:
    layer = nn.Linear(1, 1)
    with nanlab.watch(layer, on_fault="record") as trace:
        for i in range(6):
            x = torch.full((4, 1), 0.5)
            x[0] = float(i != 3)
            source = 0.5 / torch.sqrt(x if of_data else (x * layer.weight).abs())
            loss = (layer(x) - source).square().mean()
            layer.zero_grad()
            loss.backward()
            with torch.no_grad():
                if all(torch.isfinite(p.grad).all() for p in layer.parameters()):
                    for p in layer.parameters():
                        assert p.grad is not None
                        p.sub_(0.01 * p.grad)
    assert (trace.culprit is None) == of_data


def test_what_is_divided_in_place_by_a_view_of_itself_is_born_there() -> None:
    weight = nn.Parameter(torch.ones(2, 3))
    with nanlab.watch(on_fault="record") as trace:
        x = torch.tensor([[0.0, 1.0, 2.0], [1.0, 3.0, 0.5]])
        x /= x[:, :1]  # by itself
        (x * weight).sum().backward()
    assert trace.culprit is not None
    assert (trace.culprit.cause, trace.culprit.line) == ("div-by-zero", line_of("by itself"))


def test_what_an_operation_writes_elsewhere_is_none_of_its_operands() -> None:
    weight = nn.Parameter(torch.ones(3))
    with nanlab.watch(on_fault="record") as trace:
        made, x = torch.empty(3), torch.tensor([0.0, 1.0, 2.0])
        torch.log(x, out=made)
        (made * weight).sum().backward()
    found = trace.culprit
    assert found is not None and found.cause == "log-of-zero"
    assert found.evidence["x"].tolist() == [0.0]


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("later", [0, 2])
def test_the_step_in_which_a_buffer_was_poisoned_is_named(made: bool, later: int) -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(2)
    optimizer = torch.optim.SGD(norm.parameters(), 0.1)
    with nanlab.watch(norm, on_fault="record") as trace:
        for i in range(2 + later):
            x = torch.randn(4, 2)
            if i == 1:
                x[0, 0] = 0.0 if made else math.inf
                with torch.no_grad():
                    norm(1 / x if made else x)
                continue
            optimizer.zero_grad()
            norm(x).pow(3).mean().backward()
            optimizer.step()
        norm.eval()
        norm(torch.randn(4, 2)).sum().backward()
    found = trace.culprit
    assert found is not None
    assert found.step == 1 + later
    told = "step 1, showed in step 3" if later else "step 1"
    assert str(found).endswith(f"{told})")
    assert "arrived in step" not in found.explanation or "arrived in step 1" in found.explanation
