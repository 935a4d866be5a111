"""Figures draw the numbers they are given, on the axes they are given."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from fake_trace import fake_trace
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from nanlab.views.plots import plot_epsilon, plot_exponents, plot_gain, plot_steps


@pytest.fixture(autouse=True)
def no_window() -> Iterator[None]:
    with mpl.rc_context({"backend": "agg"}):
        yield
    plt.close("all")


def test_exponents_draws_a_bar_for_each_bin_on_the_given_axes() -> None:
    given = plt.subplots()[1]
    exponents = pd.Series([3, 5, 7], index=[-30, -20, 0])
    assert plot_exponents(exponents, torch.float16, ax=given) is given
    assert [bar.get_height() for bar in given.patches] == [3, 5, 7]
    assert len({bar.get_facecolor() for bar in given.patches}) == 3  # flushed, subnormal, normal
    assert "3 of 15 flushed" in given.get_xlabel()


def test_a_loss_scale_moves_the_limits_and_not_the_bars() -> None:
    exponents = pd.Series([3, 5], index=[-30, -20])
    ax = plot_exponents(exponents, torch.float16, log2_scale=10)
    assert "0 of 8 flushed" in ax.get_xlabel()
    assert [round(bar.get_x() + bar.get_width() / 2, 1) for bar in ax.patches] == [-29.5, -19.5]


def test_steps_marks_what_is_not_finite_and_what_was_skipped() -> None:
    steps = fake_trace().steps
    steps["skipped"] = [False, True, False]
    ax = plot_steps(steps)
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert names == [
        "loss",
        "gradient norm",
        "gradient norm: not finite",
        "skipped",
        "loss scale (right)",
    ]
    line = next(line for line in ax.lines if line.get_label() == "loss")
    assert line.get_ydata().tolist() == pytest.approx([1, 1 / 2, 1 / 3])


def test_every_entry_of_the_legend_lies_inside_the_figure() -> None:
    steps = fake_trace().steps
    steps["skipped"], steps.loc[2, "loss"] = [False, True, False], np.inf
    figure = Figure(figsize=(7.2, 2.3), layout="constrained")
    ax = plot_steps(steps, figure.add_subplot())
    FigureCanvasAgg(figure).draw()
    boxes = [text.get_window_extent() for text in ax.get_legend().get_texts()]
    assert len(boxes) == 6
    assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in boxes)


def test_crosses_of_loss_and_gradient_norm_lie_apart_in_the_colours_of_their_lines() -> None:
    steps = pd.DataFrame({"step": [0, 1], "loss": [1.0, np.inf], "gradient_norm": [2.0, np.inf]})
    lines = {line.get_label(): line for line in plot_steps(steps).lines}
    for name in ("loss", "gradient norm"):
        assert lines[name].get_color() == lines[f"{name}: not finite"].get_color()
    assert (
        lines["loss: not finite"].get_ydata()[0] > lines["gradient norm: not finite"].get_ydata()[0]
    )


@pytest.mark.parametrize("losses", [[2.31, 2.29, 2.3], [0.2, 2.0, 9.0], [1e-6, 3.0, 4e5]])
def test_the_axis_of_the_loss_has_some_plain_numbers(losses: list[float]) -> None:
    ax = plot_steps(pd.DataFrame({"step": [0, 1, 2], "loss": losses}))
    ax.figure.canvas.draw()
    low, high = ax.get_ylim()
    ticks = [
        label.get_text() for label in ax.get_yticklabels() if low <= label.get_position()[1] <= high
    ]
    assert 2 <= len([tick for tick in ticks if tick]) <= 12
    assert all(low <= float(tick) <= high for tick in ticks if tick)


@pytest.mark.parametrize(
    ("losses", "scale"),
    [
        ([-0.4, 0.1, -0.9], "linear"),
        ([0.0, 2.0, 3.0], "linear"),
        ([-500.0, 0.02, 3.0], "symlog"),
        ([1.0, 2.0], "log"),
    ],
)
def test_losses_of_zero_and_below_are_drawn_too(losses: list[float], scale: str) -> None:
    ax = plot_steps(pd.DataFrame({"step": range(len(losses)), "loss": losses}))
    assert ax.get_yscale() == scale
    assert ax.lines[0].get_ydata().tolist() == losses


def test_a_single_training_step_is_drawn_as_points() -> None:
    steps = fake_trace().steps.iloc[:1]
    ax = plot_steps(steps)
    lines = [line for each in ax.figure.axes for line in each.lines]
    assert [line.get_label() for line in lines] == ["loss", "gradient norm", "loss scale (right)"]
    assert all(line.get_marker() == "o" and len(line.get_xdata()) == 1 for line in lines)


def test_gain_follows_the_gradient_and_names_the_first_bad_node() -> None:
    rows = fake_trace().backward.query("step == 2")
    ax = plot_gain(rows)
    line = ax.lines[0]
    assert line.get_ydata().tolist() == pytest.approx(rows["grad_out_rms"].tolist())
    assert [text.get_text() for text in ax.texts] == ["SqrtBackward0"]


def test_epsilon_draws_the_curves_and_the_recommendation() -> None:
    eps = np.array([1e-12, 1e-8, 1e-4])
    flags = {"representable": True, "vanishes": [True, False, False], "finite_value": True}
    table = pd.DataFrame({"eps": eps, "finite_gradient": True, "value_distortion": eps, **flags})
    table = table.assign(gradient_distortion=eps, gradient_max=1 / eps)
    ax = plot_epsilon(SimpleNamespace(table=table, recommended=1e-8))
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert names[-1] == "recommended: 1e-08"
    assert "vanishes or not finite" in names


def test_empty_numbers_still_draw() -> None:
    trace = fake_trace()
    assert plot_gain(trace.backward.iloc[:0]).lines
    assert plot_steps(trace.steps.iloc[:0]).get_xlabel() == "training step"
    assert plot_exponents(pd.Series([], index=pd.Index([], dtype="int64"), dtype="int64")).lines


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
)
@pytest.mark.parametrize("middle", [-130, -20, 0, 40])
@pytest.mark.parametrize("width", [3, 7])
def test_names_of_zones_never_overlap_nor_leave_the_figure(
    dtype: torch.dtype, middle: int, width: int
) -> None:
    exponents = pd.Series([5] * 12, index=pd.RangeIndex(middle - 6, middle + 6))
    figure, ax = plt.subplots(figsize=(width, 2.3), layout="constrained")
    plot_exponents(exponents, dtype, ax=ax)
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in ax.texts]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.width for box in boxes)
    plt.close(figure)


def test_an_empty_histogram_says_so() -> None:
    nothing = pd.Series([], dtype="int64", index=pd.Index([], dtype="int64"))
    ax = plot_exponents(nothing)
    assert "no non-zero finite value" in [text.get_text() for text in ax.texts]
    plt.close(ax.figure)


def test_zeros_and_infinities_are_bars_and_flushed_zeros_their_red_part() -> None:
    exponents = pd.Series([5, 7], index=[-20, -19])
    ax = plot_exponents(
        exponents, others={"zero": 9, "flushed": 6, "posinf": 2, "nan": 0, "neginf": 0}
    )
    assert sorted(bar.get_height() for bar in ax.patches) == [0, 2, 3, 5, 6, 7]
    told = [text.get_text() for text in ax.texts]
    assert "zero\n9\n6 flushed" in told
    assert "+inf\n2" in told
    assert not any("NaN" in text for text in told)


def test_heights_are_linear_unless_asked_otherwise() -> None:
    exponents = pd.Series([1, 1000], index=[-3, 2])
    assert plot_exponents(exponents).get_yscale() == "linear"
    assert plot_exponents(exponents, log=True).get_yscale() == "symlog"


@pytest.mark.parametrize(
    ("losses", "since"), [([np.nan, np.inf, np.nan], 0), ([1.0, np.inf, 1.0, np.nan, np.nan], 3)]
)
def test_steps_from_which_on_the_loss_is_never_finite_are_a_band_with_words(
    losses: list[float], since: int
) -> None:
    loss = pd.Series(pd.arrays.FloatingArray(np.array(losses), np.zeros(len(losses), dtype=bool)))
    ax = plot_steps(pd.DataFrame({"step": range(len(losses)), "loss": loss}))
    (band,) = ax.patches
    assert (band.get_x(), band.get_x() + band.get_width()) == (since - 0.5, len(losses) - 0.5)
    assert ax.get_xlim()[0] == -0.5
    assert f"loss not finite from step {since} on" in [text.get_text() for text in ax.texts]
