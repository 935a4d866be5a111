"""The guilty samples are shown: as images, or by their tokens."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import nanlab
from nanlab.trace import Trace
from nanlab.views import card
from nanlab.views.card import as_images, guilty_samples

GUILTY = [1, 4]


def trained(model: nn.Module, batch: torch.Tensor) -> Trace:
    with nanlab.watch(model, on_fault="record") as trace:
        h = model(batch).flatten(1).mean(1)
        away = h - torch.where(torch.isin(torch.arange(6), torch.tensor(GUILTY)), h.detach(), 0.0)
        away.square().sqrt().sum().backward()
    assert trace.culprit is not None and trace.culprit.samples == GUILTY
    return trace


def pixels(png: bytes) -> list[list[int]]:
    """The rows of a grey PNG."""
    rows: list[list[int]] = np.asarray(Image.open(io.BytesIO(png))).tolist()
    return rows


def test_the_images_of_the_batch_are_those_of_the_guilty_samples() -> None:
    torch.manual_seed(0)
    batch = torch.randint(0, 256, (6, 1, 8, 8)).float()
    batch[0, 0, 0, 0], batch[0, 0, 0, 1] = 0.0, 255.0
    trace = trained(nn.Conv2d(1, 2, 3), batch)
    assert trace.culprit is not None
    html = guilty_samples(trace, trace.culprit)
    assert re.findall(r"<figcaption[^>]*>(\d+)<", html) == ["1", "4"]
    pictures = [pixels(base64.b64decode(each)) for each in re.findall(r"base64,([^\"]+)\"", html)]
    assert pictures == [batch[i, 0].int().tolist() for i in GUILTY]
    assert html in trace.report()._repr_html_()


def test_the_tokens_of_a_batch_of_text_are_shown() -> None:
    torch.manual_seed(0)
    text = torch.randint(0, 50, (6, 5))
    trace = trained(nn.Embedding(50, 3), text)
    assert trace.culprit is not None
    shown = re.sub(r"<[^>]+>", "", guilty_samples(trace, trace.culprit)).splitlines()
    assert [line.split() for line in shown] == [
        [str(i), *map(str, text[i].tolist())] for i in GUILTY
    ]


def test_a_batch_of_plain_numbers_shows_none() -> None:
    torch.manual_seed(0)
    trace = trained(nn.Linear(4, 3), torch.randn(6, 4))
    assert trace.culprit is not None
    assert guilty_samples(trace, trace.culprit) == ""


def test_what_is_no_image_is_not_drawn() -> None:
    assert as_images(torch.zeros(2, 5, 8, 8)) is None
    assert as_images(torch.zeros(2, 8)) is None
    assert as_images(torch.zeros(2, 1, 2, 2000)) is None
    made = as_images(
        torch.tensor([[0.0, torch.nan], [1.0, torch.inf]]).expand(1, 3, 2, 2).repeat(1, 1, 4, 4)
    )
    assert made is not None and made.shape == (1, 8, 8, 3)
    assert made[0, :2, :2, 0].tolist() == [[0, 0], [255, 255]]


@pytest.mark.parametrize("weight", [1.0, torch.ones(3)], ids=["number", "tensor"])
def test_pairs_of_samples_are_no_samples(weight: torch.Tensor | float) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    with nanlab.watch(model, on_fault="record") as trace:
        points = model(torch.zeros(6, 4))
        apart = points[:3] - points[3:]
        square = (apart * 1.0 * 2.0 * 0.5).pow(2).sum(1)
        (square.sqrt() * weight).mean().backward()
    assert trace.culprit is not None and trace.culprit.samples == []
    assert card.samples(trace.culprit, trace) == ""
