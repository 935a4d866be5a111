"""The row of every result tells its very elements: taken over from a view's base, worked out, or
counted, it is the same."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import nanlab
from nanlab.capture.dispatch import OpRecorder
from nanlab.stats import TensorStats, summarize
from nanlab.stats.memory import unobserved

SAMPLES = 12  # of each operator; a plain run takes a third of them
DTYPES = [torch.float32, torch.complex64, torch.float16, torch.bfloat16, torch.float64, torch.int64]


def differing(row: TensorStats, wanted: TensorStats) -> str:
    """The first number that differs; means and roots of means may be sums in another order."""
    for field in dataclasses.fields(row):
        found, right = getattr(row, field.name), getattr(wanted, field.name)
        close = field.name in ("mean", "rms") and None not in (found, right)
        if found != right and not (
            close and math.isclose(found, right, rel_tol=1e-9, abs_tol=1e-12 * wanted.rms)
        ):
            return field.name
    return ""


class Wrong:
    """Looks at each row when it has been written."""

    def __init__(self) -> None:
        self.rows = 0
        self.found: Counter[str] = Counter()

    def look(self, recorder: Any, position: int, target: torch.Tensor) -> None:
        stats = recorder.recording.stats(position)
        if stats is None:
            return
        self.rows += 1
        with unobserved():
            name = differing(stats, summarize(target))
        if name:
            row = recorder.recording.row(position)
            self.found[f"{recorder.recording.ops.items[row[0]]} {target.dtype}: {name}"] += 1


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch) -> Wrong:
    found, original = Wrong(), OpRecorder.add_row

    def row(
        self: Any, plan: Any, place: Any, output: int, call: int, target: Any, *rest: Any
    ) -> int:
        bad = original(self, plan, place, output, call, target, *rest)
        found.look(self, call + output, target)
        return bad

    monkeypatch.setattr(OpRecorder, "add_row", row)
    return found


def samples(op: Any, dtype: torch.dtype, most: int) -> Iterator[Any]:
    differentiable = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    try:
        yield from list(op.sample_inputs("cpu", dtype, requires_grad=differentiable))[:most]
    except Exception:  # torch's own samples do not exist for every dtype
        return


def run(op: Any, sample: Any) -> None:
    """Forward, and backward where there is one; what an operator refuses is its own business."""
    try:
        with nanlab.watch(on_fault="record"):
            out = op(sample.input, *sample.args, **sample.kwargs)
            outs = [
                o
                for o in (out if isinstance(out, (tuple, list)) else [out])
                if isinstance(o, torch.Tensor)
            ]
            outs = [o for o in outs if o.requires_grad]
            if outs:
                sum((o.abs() if o.is_complex() else o).sum() for o in outs).backward()
    except Exception:
        return


def check(wrong: Wrong, dtype: torch.dtype, every: int, most: int = SAMPLES) -> None:
    # which takes seconds to import
    from torch.testing._internal.common_methods_invocations import op_db

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in op_db[::every]:
            if op.supports_dtype(dtype, "cpu"):
                for sample in samples(op, dtype, most):
                    run(op, sample)
    print(f"{dtype}: {wrong.rows} rows compared, {sum(wrong.found.values())} wrong")
    assert wrong.rows > 500 / every
    assert not wrong.found


@pytest.mark.examples(every=2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_the_rows_of_some_operators_tell_their_results(wrong: Wrong, dtype: torch.dtype) -> None:
    check(wrong, dtype, every=15, most=SAMPLES // 3)


@pytest.mark.slow
@pytest.mark.conformance
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_rows_of_every_operator_tell_its_results(wrong: Wrong, dtype: torch.dtype) -> None:
    check(wrong, dtype, every=1)


def test_views_that_show_other_numbers_than_their_base_have_rows_of_their_own(wrong: Wrong) -> None:
    x = torch.randn(4, 3)
    with nanlab.watch(on_fault="record") as trace:
        y = x * 2
        y.view(torch.int32).abs()
        y.view(torch.bfloat16).neg()
        z = torch.view_as_complex(y[:, :2].contiguous())
        z.conj().clone()
        z.conj().imag.neg()
        torch.view_as_real(z)[..., 0].exp()
        y[:, :1].expand(4, 3).exp()  # as many elements as y has
        row = y[1]
        y[0].fill_(7.0)
        row.view(3, 1).exp()
        y.as_strided((3, 4), (1, 1)).exp()
    assert len(trace.ops) > 20
    assert not wrong.found


def test_what_is_bad_in_a_base_is_not_bad_in_a_view_that_does_not_show_it() -> None:
    x = torch.tensor([[1.0, torch.inf], [2.0, torch.inf]])
    with nanlab.watch(on_fault="record") as trace:
        y = x * 2
        shown = y[:, :1].expand(2, 2).exp()
    assert torch.isfinite(shown).all()
    assert trace.ops[trace.ops.op == "exp"].status.tolist() == ["ok"]
