"""The map of steps by operations: what its pixels stand for, a part of it, the point of a click."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
import pytest
import torch
from PIL import Image

import nanlab
from nanlab.notebook.cell import picture
from nanlab.views.charts import BAD, FINE, FLUSHED, cells, minimap, position_at
from nanlab.views.report_widget import ReportView

BROKEN, EMPTY = 4, 2  # steps


@pytest.fixture(scope="module")
def trace() -> nanlab.Trace:
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], 0.1)
    with nanlab.watch(on_fault="stop") as made:
        for step in range(8):
            optimizer.zero_grad()
            x = torch.rand(3) + 1
            if step == EMPTY:
                x = x * 0
            y = x * weight
            if step == BROKEN:
                y = y - y
            (y.log().sum() if step == BROKEN else y.sum()).backward()
            optimizer.step()
    return made


def pixels_of(html: str) -> list[list[int]]:
    """The palette numbers of the picture in a page."""
    found = re.search(r"base64,([^\"]+)", html)
    assert found is not None
    picture = Image.open(io.BytesIO(base64.b64decode(found[1])))
    assert picture.mode == "P"
    rows: list[list[int]] = np.asarray(picture).tolist()
    return rows


def test_a_row_is_a_step_and_what_was_flushed_or_bad_there_has_its_colour(
    trace: nanlab.Trace,
) -> None:
    drawn = pixels_of(minimap(trace))
    assert len(drawn) == BROKEN + 1
    assert [FLUSHED in row for row in drawn[:BROKEN]] == [False, False, True, False]
    assert [BAD in row for row in drawn] == [False, False, False, False, True]
    assert FINE in drawn[0]


def test_a_window_shows_that_part_pixel_by_pixel_and_names_its_steps(trace: nanlab.Trace) -> None:
    whole, columns = pixels_of(minimap(trace)), cells(trace)[0].shape[1]
    part = minimap(trace, (0.5, 1.0, 0.4, 0.8))
    assert pixels_of(part) == [row[columns // 2 :] for row in whole[2:4]]
    assert "Steps 2 to 3" in part


def test_a_point_is_the_operation_at_that_place_of_that_step(trace: nanlab.Trace) -> None:
    ops = trace.ops
    place = position_at(trace, 0.0, 0.99)
    assert place is not None
    assert ops.loc[place, "step"] == BROKEN
    far = position_at(trace, 0.0, 0.0)
    assert far is not None, "of a step that was not kept: the same operation of the last"
    assert ops.loc[far, "op"] == ops.loc[place, "op"]


def test_the_page_asks_for_a_part_and_a_click_selects(trace: nanlab.Trace) -> None:
    view = ReportView(trace.report())
    view.window = [0.0, 0.5, 0.0, 1.0]
    assert 'data-window="0,0.5,0,1"' in view.minimap
    view.pointed = [0.0, 0.99, 1]
    assert trace.at == position_at(trace, 0.0, 0.99)


def test_a_cell_that_runs_draws_the_steps_that_have_ended(trace: nanlab.Trace) -> None:
    drawn = pixels_of(picture(trace.recording))
    assert [FLUSHED in row for row in drawn[:BROKEN]] == [False, False, True, False]
