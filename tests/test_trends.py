"""Trends: an overflow is told before it comes, a healthy run is left in peace."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from torch import nn

import nanlab
from nanlab.analysis.trends import FARTHEST, fit, forecasts, growing_origins, outlook
from nanlab.history import MOST_STEPS, Place, Series
from nanlab.trace import Trace

torch.set_num_threads(1)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(200, 48)
        self.mix = nn.Sequential(nn.Linear(48, 48), nn.GELU(), nn.Dropout(0.4), nn.Linear(48, 48))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.mix(self.emb(ids)).mean(1)  # type: ignore[no-any-return]


def contrastive(temperature: float, steps: int, normalised: bool = False, dropout: float = 0.4) -> Trace:
    """The write-up S3: embeddings without L2 normalisation, scores under float16 autocast, cross-entropy over the batch."""
    torch.manual_seed(405)
    net = Encoder()
    net.mix[2].p = dropout
    opt = torch.optim.Adam(net.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(505)
    with nanlab.watch(net, on_fault="record") as trace:
        for _ in range(steps):
            ids = torch.randint(0, 200, (16, 8), generator=gen)
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                a, b = net(ids), net(ids)
                if normalised:
                    a, b = (nn.functional.normalize(v.float(), dim=-1) for v in (a, b))
                scores = a @ b.T / temperature  # SCORES
            loss = nn.functional.cross_entropy(scores.float(), torch.arange(16))
            loss.backward()
            opt.step()
            if not math.isfinite(float(loss.detach())):
                break
    return trace


def scores_line() -> int:
    with open(__file__) as file:
        return next(i for i, line in enumerate(file, 1) if line.rstrip().endswith("# SCORES"))


@pytest.fixture(scope="module")
def grown() -> Trace:
    return contrastive(0.05, 60)


def test_growing_norms_are_told_five_steps_before_the_scores_overflow(grown: Trace) -> None:
    found = next(f for f in forecasts(grown.recording) if f.overflowed is not None)
    assert found.lead is not None and found.lead >= 5
    assert found.place.dtype == "float16" and found.interval[0] <= found.steps <= found.interval[1]
    warning = next(f for f in grown.findings if f.severity == "warning" and f.symptom == "trend-overflow")
    assert warning.line == scores_line() and warning.step == found.step
    assert "steps" in warning.title


def test_cause_is_the_missing_normalisation_and_not_the_false_trails(grown: Trace) -> None:
    culprit = grown.culprit
    assert culprit is not None and (culprit.cause, culprit.line) == ("dtype-overflow", scores_line())
    assert "nothing normalises" in culprit.explanation.lower()
    assert any("normalize" in fix.code for fix in culprit.fixes)
    words = " ".join([culprit.title, culprit.explanation, *(f.title for f in culprit.fixes)]).lower()
    assert not any(re.search(rf"\b{trail}\b", words) for trail in ("batch size", "dropout", "eps", "learning rate"))


def test_normalised_embeddings_are_not_warned_of() -> None:
    trace = contrastive(0.05, 60, normalised=True)
    assert trace.findings == [] and forecasts(trace.recording) == []


def test_growth_is_followed_back_to_the_embeddings(grown: Trace) -> None:
    series = grown.recording.training.series
    found = next(f for f in forecasts(grown.recording) if f.overflowed is not None)
    ops = {series.places[c].op for c in growing_origins(series, found.column)}
    assert ops & {"mm", "addmm"} and "mean" in ops


@pytest.mark.parametrize("slope", [0.2, 0.5, 2.0])
def test_steady_growth_is_extrapolated_exactly(slope: float) -> None:
    values = 10.0 + slope * np.arange(12)
    found = fit(values, 16.0 + 11 * slope)
    assert found is not None
    assert found[0] == pytest.approx(slope) and found[1] == pytest.approx(6.0 / slope)
    assert found[2] == pytest.approx(found[1]) == found[3]


def test_interval_holds_the_true_step_in_nine_of_ten_noisy_runs() -> None:
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(200):
        values = 10.0 + 0.25 * np.arange(16) + rng.normal(0, 0.15, 16)
        found = fit(values, 16.0)
        assert found is not None
        true = (16.0 - (10.0 + 0.25 * 15)) / 0.25
        inside += found[2] - 1.0 <= true <= found[3] + 1.0
    assert inside >= 180


@pytest.mark.parametrize(
    "values",
    [
        np.full(40, 14.0),
        16.0 - 6.0 * np.exp(-np.arange(40) / 6.0) - 0.5,
        14.0 + np.sin(np.arange(40)),
        np.concatenate([np.linspace(4, 14, 20), np.linspace(14, 4, 20)]),
    ],
    ids=["constant", "levels off", "swings", "falls again"],
)
def test_what_does_not_keep_climbing_is_not_told(values: np.ndarray) -> None:
    assert outlook(values, 16.0, wide=False) is None


def test_what_is_far_ahead_is_not_told() -> None:
    assert outlook(10.0 + 0.01 * np.arange(24) + np.array([0.0] * 23 + [3.0]), 16.0, wide=False) is None
    assert outlook(np.linspace(0, 11, 24), 128.0, wide=True) is None
    assert FARTHEST < 100


def test_series_forgets_the_oldest_steps_and_stays_small() -> None:
    series = Series()
    place = Place(0, "mm", 0, 0, -1, 1, 1, "float16")
    keys = np.arange(5, dtype=np.uint64)
    for step in range(3 * MOST_STEPS):
        columns, new = series.columns_of(keys)
        for _ in new:
            series.places.append(place)
            series.parents.append(())
        series.add(step, columns, np.full(5, float(step), np.float32))
    assert len(series) <= MOST_STEPS and series.values.size <= 2 * MOST_STEPS * 256
    assert series.steps[-1] == 3 * MOST_STEPS - 1
    assert np.array_equal(series.table[:, 0], np.array(series.steps, np.float32))
