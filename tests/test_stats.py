"""Stats: every number against a slow reference that looks at one element at a time."""

from __future__ import annotations

import dataclasses
import math
import os
import platform
import re
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import nanlab
from nanlab.errors import UsageError
from nanlab.formats import format_of
from nanlab.stats import StatsTable, TensorStats, summarize

FLOATS = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]
INTEGERS = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
]
COUNTS = ["nan", "posinf", "neginf", "zero", "subnormal", "fp16_zero", "fp16_subnormal", "fp16_inf"]
HALF_NORMAL = 2.0**-14 - 2.0**-25  # from here float16 rounds to a normal value


class OperationsOnly(StatsTable):
    """A table without numba, as where it is not installed."""

    def __init__(self) -> None:
        super().__init__()
        self._kernel_of = {}


@pytest.fixture(params=[StatsTable, OperationsOnly], ids=["numba", "torch"])
def table(request: pytest.FixtureRequest) -> StatsTable:
    return request.param()


def expected(t: torch.Tensor) -> tuple[TensorStats, Counter[tuple[int, int]]]:
    """Statistics and signed histogram by Python's own floats, and torch's own cast to float16."""
    elements = t.detach().resolve_conj().resolve_neg()
    if elements.is_complex():
        elements = torch.view_as_real(elements)
    elements = elements.reshape(-1)
    values = elements.double().tolist()
    finite = [v for v in values if math.isfinite(v)]
    nonzero = [abs(v) for v in finite if v != 0.0]
    bins: Counter[tuple[int, int]] = Counter()
    losses = {"subnormal": 0, "fp16_zero": 0, "fp16_subnormal": 0, "fp16_inf": 0}
    if elements.dtype.is_floating_point:
        normal = torch.finfo(elements.dtype).smallest_normal
        losses["subnormal"] = sum(v < normal for v in nonzero)
        halves = elements.half().double().tolist()
        pairs = [
            (v, abs(h))
            for v, h in zip(values, halves, strict=True)
            if math.isfinite(v) and v != 0.0
        ]
        losses["fp16_zero"] = sum(h == 0.0 for _, h in pairs)
        losses["fp16_subnormal"] = sum(0.0 < h < 2.0**-14 for _, h in pairs)
        losses["fp16_inf"] = sum(h == math.inf for _, h in pairs)
        bins.update((1 if v > 0 else -1, math.frexp(v)[1] - 1) for v, _ in pairs)
    scale = max(nonzero, default=1.0)
    return (
        TensorStats(
            numel=len(values),
            nan=sum(math.isnan(v) for v in values),
            posinf=values.count(math.inf),
            neginf=values.count(-math.inf),
            zero=values.count(0.0),
            **losses,
            min=min(finite, default=None),
            max=max(finite, default=None),
            absmin=min(nonzero, default=None),
            mean=math.fsum(v / scale for v in finite) / len(finite) * scale if finite else None,
            rms=(
                math.sqrt(math.fsum((v / scale) ** 2 for v in finite) / len(finite)) * scale
                if finite
                else None
            ),
            known=True,
        ),
        bins,
    )


def assert_row_is(table: StatsTable, row: int, t: torch.Tensor) -> None:
    """Counts, extremes and bins exactly; mean and rms to rounding of a float64 sum."""
    stats, (wanted, bins) = table.stats(row), expected(t)
    for name in ["numel", *COUNTS, "min", "max", "absmin", "known"]:
        assert getattr(stats, name) == getattr(wanted, name), name
    for name in ["mean", "rms"]:
        got, want = getattr(stats, name), getattr(wanted, name)
        assert (got is None) == (want is None), name
        if want is not None:
            assert got == pytest.approx(want, rel=1e-12, abs=1e-12 * (wanted.rms or 0.0)), name
    assert dict(table.histogram(row, signed=True)) == dict(bins)
    if t.is_floating_point():
        assert sum(bins.values()) + stats.zero + stats.nonfinite == stats.numel


def special_values(dtype: torch.dtype) -> torch.Tensor:
    """Zeros, infinities, NaNs of several payloads, subnormals, and both sides of every limit of
    float16."""
    limits = [
        65504.0,
        65519.99,
        65520.0,
        65536.0,
        2.0**-24,
        2.0**-25,
        2.0**-26,
        2.0**-14,
        HALF_NORMAL,
    ]
    around = [math.nextafter(v, w) for v in limits for w in (0.0, math.inf)]
    single = [
        float(np.nextafter(np.float32(v), np.float32(w))) for v in limits for w in (0.0, np.inf)
    ]
    own = format_of(dtype)
    tiny = [
        own.smallest_subnormal,
        3 * own.smallest_subnormal,
        own.smallest_normal,
        own.max,
        own.ulp,
    ]
    positive = torch.tensor(
        [0.0, 1.0, math.inf, math.nan, *limits, *around, *single, *tiny], dtype=torch.float64
    )
    values = torch.cat([positive, -positive]).to(dtype)
    size = dtype.itemsize
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
    top = {1: 0x7F, 2: 0x7FFF, 4: 0x7FFFFFFF, 8: 0x7FFFFFFFFFFFFFFF}[size]
    payloads = (
        torch.tensor([top] if size == 1 else [top, top - 1, -1], dtype=torch.int64)
        .to(bits)
        .view(dtype)
    )
    return torch.cat([values, payloads])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_special_values_are_counted_exactly(table: StatsTable, dtype: torch.dtype) -> None:
    t = special_values(dtype)
    assert_row_is(table, table.add(t), t)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("numel", [1, 7, 255, 256, 4095, 4097, 9001])
def test_random_bits_are_counted_exactly(table: StatsTable, dtype: torch.dtype, numel: int) -> None:
    generator = np.random.default_rng(numel)
    t = torch.from_numpy(generator.integers(0, 256, numel * dtype.itemsize, dtype=np.uint8)).view(
        dtype
    )
    assert_row_is(table, table.add(t), t)


def spread_values(numel: int, least: int, greatest: int, negative: float) -> torch.Tensor:
    """float32 with exponents from ``least`` to ``greatest``, both present, a tenth of them zeros of
    both signs."""
    generator = np.random.default_rng(numel)
    exponents = generator.integers(least, greatest, numel, endpoint=True)
    exponents[:2] = least, greatest
    values = np.ldexp(generator.uniform(1.0, 2.0, numel), exponents)
    values[2:][generator.random(numel - 2) < 0.1] = 0.0
    return torch.from_numpy(
        np.where(generator.random(numel) < negative, -values, values).astype(np.float32)
    )


@pytest.mark.parametrize("negative", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(
    ("least", "greatest"),
    [
        *(
            (0, 0),
            (-126, 127),
            (-126, -100),
            (105, 127),
            (-126, -112),
            (113, 127),
            (-140, -120),
            (-149, -130),
            (-60, 7),
        ),
        # the most exponents that a window holds, and one more: 15, 23, 30, 31, 47, 62
        *(
            (-14, 0),
            (-15, 0),
            (-22, 0),
            (-23, 0),
            (-29, 0),
            (-30, 0),
            (-31, 0),
            (-46, 0),
            (-47, 0),
            (-61, 0),
            (-62, 0),
        ),
    ],
)
def test_every_spread_of_exponents_is_counted_exactly(
    table: StatsTable, least: int, greatest: int, negative: float
) -> None:
    for numel in (64, 4500):
        t = spread_values(numel, least, greatest, negative)
        assert_row_is(table, table.add(t), t)


@pytest.mark.parametrize(
    "value",
    [
        1.0,
        1 / 0.9,
        2.0**-25,
        HALF_NORMAL,
        65520.0,
        3.4e38,
        2.0**-126,
        1e-40,
        -2.5,
        math.inf,
        math.nan,
        0.0,
    ],
)
@pytest.mark.parametrize("others", ["none", "zeros", "zeros of both signs", "negative", "all"])
def test_elements_of_one_magnitude_are_counted_exactly(
    table: StatsTable, value: float, others: str
) -> None:
    generator = torch.Generator().manual_seed(0)
    for numel in (64, 4200):
        t = torch.full((numel,), value)
        signs = torch.where(torch.rand(numel, generator=generator) < 0.4, -1.0, 1.0)
        if others in ("zeros", "zeros of both signs", "all"):
            t[torch.rand(numel, generator=generator) < 0.3] = 0.0
        if others in ("negative", "all"):
            t = t * signs
        if others == "zeros of both signs":
            t = torch.where(t == 0.0, t.copysign(signs), t)
        assert_row_is(table, table.add(t), t)


def test_blocks_of_every_kind_in_one_tensor_are_counted_exactly(table: StatsTable) -> None:
    """Blocks are of 4096 elements, and each is counted in the way that its own values need."""
    generator = torch.Generator().manual_seed(0)
    mask = (torch.rand(4096, generator=generator) < 0.9).float()
    values = torch.randn(4096, generator=generator)
    hidden = values.masked_fill(mask == 0.0, -torch.inf)
    kinds = [
        mask,
        values,
        torch.zeros(4096),
        values.relu(),
        values * 1e-6,
        hidden,
        values * 1e-40,
        mask * -3.0,
    ]
    kinds += [
        spread_values(4096, -20, 0, 0.5),
        spread_values(4096, -30, 0, 0.5),
        spread_values(4096, -90, 40, 0.5),
    ]
    t = torch.cat([*kinds, torch.full((4096,), torch.nan), mask * 7.0, values[:1000]])
    assert_row_is(table, table.add(t), t)
    assert_row_is(table, table.add(t.flip(0)), t.flip(0))


@pytest.mark.parametrize("largest", [-99, 0, 90])
def test_blocks_of_28_exponents_in_a_row_are_counted_exactly(
    table: StatsTable, largest: int
) -> None:
    """So many are counted in pairs, of a tensor of many blocks; the last block has one more."""
    within = spread_values(9 * 4096, largest - 27, largest, 0.5)
    t = torch.cat([within, spread_values(4096, largest - 28, largest, 0.5)])
    assert_row_is(table, table.add(t), t)


@pytest.mark.parametrize("edge", [2.0**-25, HALF_NORMAL, 2.0**-14, 65520.0, 65536.0])
@pytest.mark.parametrize("scale", [1.0, 2.0**51, 2.0**-40, 2.0**100])
def test_the_limits_of_float16_are_found_among_any_other_values(
    table: StatsTable, edge: float, scale: float
) -> None:
    for numel in (63, 1000, 4200):
        t = torch.randn(numel, generator=torch.Generator().manual_seed(numel)) * scale * edge
        near = np.float32(
            [
                edge,
                np.nextafter(np.float32(edge), np.float32(0)),
                np.nextafter(np.float32(edge), np.inf),
            ]
        )
        limits = torch.from_numpy(np.concatenate([near, -near]).astype(np.float32))
        for first in (0, numel // 2, numel - 6):
            t[first : first + 6] = limits
        assert_row_is(table, table.add(t), t)


def test_subnormals_are_counted_where_the_processor_ignores_them() -> None:
    values = torch.randn(5000, generator=torch.Generator().manual_seed(0))
    values[::3] *= 1e-39
    tables = [StatsTable(), StatsTable()]
    for table, ignored in zip(tables, (False, True), strict=True):
        if torch.set_flush_denormal(ignored):
            table.add(values)
        torch.set_flush_denormal(False)
    if tables[1].n == 0:
        pytest.skip("this processor cannot ignore subnormals")
    assert [t.stats(0).subnormal for t in tables] == [1667, 1667]
    assert [t.stats(0).zero for t in tables] == [0, 0]
    assert tables[0].histogram(0, signed=True).equals(tables[1].histogram(0, signed=True))


def test_a_mask_of_huge_or_infinite_values_is_counted_exactly(table: StatsTable) -> None:
    scores = torch.randn(64, 80, generator=torch.Generator().manual_seed(0)) * 1e-3
    for hidden in (torch.finfo(torch.float32).min, -torch.inf, torch.nan, -0.0):
        t = scores.masked_fill(torch.ones(64, 80).triu(1).bool(), hidden)
        assert_row_is(table, table.add(t), t)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-7, 1e4])
def test_normal_values_are_counted_exactly(
    table: StatsTable, dtype: torch.dtype, scale: float
) -> None:
    t = (torch.randn(5000, generator=torch.Generator().manual_seed(1)) * scale).to(dtype)
    assert_row_is(table, table.add(t), t)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_every_bit_pattern_of_16_bits_has_its_bin(table: StatsTable, dtype: torch.dtype) -> None:
    t = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    assert_row_is(table, table.add(t), t)


def test_float32_subnormals_keep_their_true_exponents(table: StatsTable) -> None:
    t = torch.tensor([2.0**e for e in range(-149, -126)] + [-(2.0**-149) * 5])
    assert dict(table.histogram(table.add(t))) == {**dict.fromkeys(range(-149, -126), 1), -147: 2}


@pytest.mark.parametrize("value", [1e308, 1.7e308, 1e-300, 5e-324, 1e-160], ids=str)
def test_moments_of_float64_neither_overflow_nor_underflow(table: StatsTable, value: float) -> None:
    stats = table.stats(table.add(torch.full((300,), value, dtype=torch.float64)))
    assert stats.rms == pytest.approx(value, rel=1e-12, abs=0.0)
    assert stats.mean == pytest.approx(value, rel=1e-12, abs=0.0)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_have_range_and_zeros_but_no_histogram(
    table: StatsTable, dtype: torch.dtype
) -> None:
    t = torch.tensor([0, 1, 1, 0, 100, 7], dtype=torch.int64).to(dtype)
    row = table.add(t)
    assert_row_is(table, row, t)
    assert table.histogram(row).empty


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("numel", [1, 4097, 9001])
def test_random_integers_are_counted_exactly(
    table: StatsTable, dtype: torch.dtype, numel: int
) -> None:
    generator = np.random.default_rng(numel)
    t = torch.from_numpy(generator.integers(0, 256, numel * dtype.itemsize, dtype=np.uint8)).view(
        dtype
    )
    t = t.view(torch.uint8).bitwise_and(1).bool() if dtype is torch.bool else t
    assert_row_is(table, table.add(t), t)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_integers_at_the_ends_of_their_range_are_counted(
    table: StatsTable, dtype: torch.dtype
) -> None:
    ends = torch.iinfo(dtype)
    for values in ([ends.min], [ends.min, ends.max], [ends.min, -1], [0, 0]):
        t = torch.tensor(values, dtype=dtype)
        assert_row_is(table, table.add(t), t)


@pytest.mark.parametrize("dtype", [torch.complex32, torch.complex64, torch.complex128], ids=str)
@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_complex_elements_count_as_two(table: StatsTable, dtype: torch.dtype) -> None:
    t = torch.tensor([1 + 2j, complex(math.nan, math.inf), 0j, complex(1e-6, -7.0)]).to(dtype)
    for view in (t, t.conj(), t.reshape(2, 2).mH):
        assert_row_is(table, table.add(view), view)
    assert table.stats(0).numel == 8


def layouts() -> Iterator[tuple[str, torch.Tensor]]:
    base = torch.randn(6, 8, 5, 4, generator=torch.Generator().manual_seed(2))
    base[0, 0, 0, :3] = torch.tensor([math.nan, math.inf, -math.inf])
    base[1, 0] = 0.0
    yield "contiguous", base
    yield "transposed", base.permute(3, 1, 0, 2)
    yield "channels_last", base.contiguous(memory_format=torch.channels_last)
    yield "gaps", base[::2, 1:, :, ::3]
    yield "offset", base.view(-1)[3:17]
    yield "expanded", base[:, :1].expand(6, 9, 5, 4)
    yield "expanded_twice", base[0, 0, 0, :, None, None].expand(4, 3, 2)
    yield "expanded_scalar", torch.tensor(math.inf).expand(1000, 1000, 3)[:, :2, 0]
    yield "overlapping", base.view(-1)[:10].unfold(0, 4, 1)
    yield "scalar", torch.tensor(-0.0)
    yield "empty", torch.empty(3, 0, 2)
    yield "empty_expanded", torch.empty(0, 1).expand(0, 5)
    yield "negative_bit", torch.tensor([1 + 2j, 3 - 4j]).conj().imag
    yield "negative_bit_of_one", torch.tensor([1 + 2j]).conj().imag
    yield "requires_grad", base.clone().requires_grad_() * 2
    yield "parameter", torch.nn.Parameter(base)
    yield "subclass", base.as_subclass(type("Labelled", (torch.Tensor,), {}))
    yield "zero_tensor", torch._efficientzerotensor(7)


@pytest.mark.parametrize(("name", "t"), [pytest.param(n, t, id=n) for n, t in layouts()])
def test_every_layout_gives_the_numbers_of_its_elements(
    table: StatsTable, name: str, t: torch.Tensor
) -> None:
    plain = torch.zeros(7) if name == "zero_tensor" else t.as_subclass(torch.Tensor)
    assert_row_is(table, table.add(t), plain)


def test_expanded_memory_is_never_touched() -> None:
    stats = summarize(torch.ones(1).expand(2**20, 2**20))  # 4 TiB if it were written out
    assert (stats.numel, stats.mean, stats.rms) == (2**40, 1.0, 1.0)


SPARSE: list[Callable[[torch.Tensor], torch.Tensor]] = [
    torch.Tensor.to_sparse,
    torch.Tensor.to_sparse_csr,
    torch.Tensor.to_sparse_csc,
    lambda t: t.to_sparse_bsr((2, 2)),
    lambda t: t.to_sparse(1),
]


@pytest.mark.parametrize("sparse", SPARSE)
@pytest.mark.filterwarnings("ignore:Sparse")  # torch's note that some layouts are in beta
def test_implicit_zeros_of_sparse_tensors_count(table: StatsTable, sparse: Callable) -> None:
    dense = torch.zeros(6, 4)
    dense[0, 1], dense[3, 2], dense[5, 0] = 3.0, -1e-9, math.inf
    assert_row_is(table, table.add(sparse(dense)), dense)
    assert_row_is(table, table.add(sparse(dense.abs() + 1)), dense.abs() + 1)
    assert_row_is(table, table.add(sparse(torch.zeros(6, 4))), torch.zeros(6, 4))


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_values_at_one_index_are_summed(table: StatsTable) -> None:
    t = torch.sparse_coo_tensor(torch.tensor([[1, 1]]), torch.tensor([3e38, 3e38]), (3,))
    assert table.stats(table.add(t)).posinf == 1
    assert not t.is_coalesced()


class Wrapped(torch.Tensor):
    """A tensor without memory of its own."""

    @staticmethod
    def __new__(cls) -> Wrapped:
        return torch.Tensor._make_wrapper_subclass(cls, (2, 3))

    @classmethod
    def __torch_dispatch__(
        cls, func: object, types: object, args: object = (), kwargs: object = None
    ) -> object:
        raise AssertionError("asked for an operation")


def unreadable() -> Iterator[tuple[str, torch.Tensor, int]]:
    from torch._subclasses.fake_tensor import FakeTensorMode

    yield "meta", torch.empty(4, device="meta"), 4
    yield "fake", FakeTensorMode().from_tensor(torch.ones(5)), 5
    yield "wrapper", Wrapped(), 6
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield "quantised", torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8), 3
    yield "functional", torch._to_functional_tensor(torch.ones(2)), 2


@pytest.mark.parametrize(
    ("t", "numel"), [pytest.param(t, n, id=name) for name, t, n in unreadable()]
)
def test_what_cannot_be_read_gets_a_row_without_statistics(
    table: StatsTable, t: torch.Tensor, numel: int
) -> None:
    row = table.add(t)
    stats = table.stats(row)
    assert (stats.numel, stats.known, stats.min, stats.zero, stats.nonfinite) == (
        numel,
        False,
        None,
        0,
        0,
    )
    assert table.histogram(row).empty and table.bad == 0
    assert not table.columns()["known"][row]


def test_a_change_between_wrappers_gets_a_row_without_statistics(table: StatsTable) -> None:
    row = table.add_change(Wrapped(), Wrapped())
    assert table.stats(row).numel == 6 and not table.stats(row).known


def test_nested_batched_and_uninitialised_tensors_raise_nothing(table: StatsTable) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for layout in (torch.strided, torch.jagged):
            table.add(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout))
    torch.vmap(lambda x: (table.add(x), table.add(x.t()[::2]), x)[-1])(torch.ones(2, 3, 4))
    torch.func.grad(lambda x: (table.add(x), x.sum())[-1])(torch.ones(2, 3))
    table.add(torch.nn.UninitializedParameter())
    assert table.n == 6


class Counting(TorchDispatchMode):
    """Counts the operations that it sees, and summarises each result while it is on the stack."""

    def __init__(self, table: StatsTable) -> None:
        super().__init__()
        self.table, self.seen = table, 0

    def __torch_dispatch__(
        self, func: Callable, types: object, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        self.seen += 1
        result = func(*args, **(kwargs or {}))
        with self:
            self.table.add(result)
        return result


def test_no_dispatch_mode_sees_the_summary(table: StatsTable) -> None:
    x = torch.randn(4, 6)
    with Counting(table) as mode:
        x[:, ::2]
        torch.stack([x, x])
        for t in (x, x.t(), x[::2, ::3], x.to(torch.complex64)):
            seen = mode.seen
            summarize(t)
            table.add(t)
            table.flush()
            assert mode.seen == seen


@pytest.mark.parametrize(
    "mode", [torch.inference_mode, torch.no_grad, lambda: torch.device("meta")]
)
def test_works_inside_other_modes(table: StatsTable, mode: Callable) -> None:
    outside = torch.arange(6.0).reshape(2, 3)
    with mode():
        for t in (outside, outside.t(), outside[:, ::2]):
            assert table.stats(table.add(t)).known


def test_the_tensor_its_version_and_its_graph_stay_as_they_were(table: StatsTable) -> None:
    leaf = special_values(torch.float32).requires_grad_()
    t = leaf.reshape(-1)[:-1].reshape(2, -1).t() * 1
    before, version, node = t.detach().clone(), t._version, t.grad_fn
    table.add(t)
    table.add(t[::2])
    table.flush()
    assert torch.equal(before.view(torch.int32), t.detach().view(torch.int32))
    assert (t._version, t.grad_fn) == (version, node)


def test_bad_tells_of_the_last_row(table: StatsTable) -> None:
    assert (table.n, table.bad) == (0, -1)
    assert table.add(torch.tensor([math.nan, 1.0, 0.0, 0.0, -math.inf])) == 0
    assert (table.n, table.bad, table.nonfinite(0)) == (1, 2, 2)
    table.add(torch.ones(3).expand(4, 3))
    assert (table.n, table.bad) == (2, 0)


def test_rows_on_a_device_wait_for_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    table = OperationsOnly()
    with monkeypatch.context() as patched:
        patched.setattr(table, "flush", lambda: None)  # a CPU tensor stands in for one of a device
        first, second = (
            table.add(torch.tensor([1.0, math.inf])),
            table.add(torch.zeros(3, dtype=torch.float64)),
        )
        assert table.bad == -1
    table.flush()
    assert table.bad == 0
    assert (table.nonfinite(first), table.stats(second).zero) == (1, 3)


def test_columns_agree_with_the_rows_and_are_nan_only_where_nothing_is() -> None:
    table = StatsTable()
    tensors = [
        torch.randn(5),
        torch.tensor([math.nan]),
        torch.empty(0),
        torch.zeros(2),
        torch.ones(2, device="meta"),
    ]
    rows = [table.add(t) for t in tensors]
    columns = table.columns()
    for name, column in columns.items():
        given = [getattr(table.stats(row), name) for row in rows]
        assert [None if v != v else v for v in column.tolist()] == given, name
    assert columns["numel"].dtype == np.int64 and columns["rms"].dtype == np.float64
    picked = table.columns(np.array([3, 0]))
    assert picked["zero"].tolist() == [2, 0]


def test_histogram_arrays_are_the_unsigned_histogram(table: StatsTable) -> None:
    row = table.add(torch.tensor([1.0, -1.5, 4.0, 0.0, math.nan, -3e-39]))
    exponents, counts = table.histogram_arrays(row)
    assert (exponents.tolist(), counts.tolist()) == ([-128, 0, 2], [1, 2, 1])
    series = table.histogram(row)
    assert (series.index.tolist(), series.tolist(), series.name) == (
        [-128, 0, 2],
        [1, 2, 1],
        "count",
    )
    signed = table.histogram(row, signed=True)
    assert signed.to_dict() == {(-1, -128): 1, (-1, 0): 1, (1, 0): 1, (1, 2): 1}
    assert signed.index.names == ["sign", "exponent"]


def test_table_grows_past_its_first_memory(table: StatsTable) -> None:
    t = torch.logspace(-300, 300, 1200, dtype=torch.float64, base=10.0)
    rows = [table.add(t * (i + 1)) for i in range(3)] + [
        table.add(t[i : i + 3]) for i in range(1100)
    ]
    assert_row_is(table, rows[2], t * 3)
    assert_row_is(table, rows[-1], t[1099:1102])


def test_compact_keeps_the_rows_it_is_told_to_and_renumbers_them(table: StatsTable) -> None:
    tensors = [torch.randn(50 + i) * 10.0**-i for i in range(6)] + [torch.ones(2, device="meta")]
    for t in tensors:
        table.add(t)
    table.compact(np.array([1, 4, 5, 6]))
    assert table.n == 4
    for row, t in enumerate([tensors[1], tensors[4], tensors[5]]):
        assert_row_is(table, row, t)
    assert not table.stats(3).known
    assert table.add(tensors[0]) == 4
    assert_row_is(table, 4, tensors[0])
    table.compact(np.array([], dtype=np.int64))
    assert (table.n, table.bad) == (0, -1)


def test_compact_frees_the_memory_of_the_others() -> None:
    table = StatsTable()
    t = torch.randn(64)
    for _ in range(5000):
        table.add(t)
    before = table._rows.nbytes + table._arena.nbytes
    table.compact(np.arange(10))
    assert table._rows.nbytes + table._arena.nbytes < before / 4


def test_unknown_row_is_refused_with_the_range() -> None:
    table = StatsTable()
    table.add(torch.ones(1))
    with pytest.raises(UsageError, match="from 0 to 0, got 1"):
        table.stats(1)


def test_without_numba_one_warning_and_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    from nanlab.stats import kernels

    monkeypatch.setitem(sys.modules, "nanlab.stats.cpu32", None)
    monkeypatch.delattr("nanlab.stats.cpu32", raising=False)
    kernels.load_kernels.cache_clear()
    try:
        with pytest.warns(UserWarning, match="more slowly, by torch") as caught:
            tables = [StatsTable(), StatsTable()]
        assert len(caught) == 1
        t = special_values(torch.float32)
        assert_row_is(tables[1], tables[1].add(t), t)
    finally:
        kernels.load_kernels.cache_clear()


def run_python(program: str, *arguments: str, **environment: str) -> str:
    """What ``program`` prints in a process of its own, started in the repository."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_cuda_rows_come_back_in_one_flush_and_count_exactly(dtype: torch.dtype) -> None:
    table = StatsTable()
    tensors = [
        special_values(dtype),
        torch.randn(5000).to(dtype),
        torch.ones(3).to(dtype).expand(4, 3),
    ]
    rows = [table.add(t.cuda()) for t in tensors]
    assert table.bad == -1
    table.flush()
    for row, t in zip(rows, tensors, strict=True):
        assert_row_is(table, row, t)


ROWS = """
import sys
import numpy as np
import torch
sys.path.insert(0, sys.argv[1])
from nanlab.stats import StatsTable
table, values = StatsTable(), torch.randn(9001, generator=torch.Generator().manual_seed(0))
for t in (values, values.relu(), values * 1e-6, values.exp() * 1e30, values.masked_fill(values < 0, -torch.inf)):
    row = table.add(t)
    print(table.stats(row), table.histogram(row, signed=True).to_dict())
"""


@pytest.mark.slow  # compiles a kernel anew
@pytest.mark.skipif(
    platform.machine() != "x86_64", reason="names extensions of this processor family"
)
def test_a_lesser_processor_gives_the_same_rows(tmp_path: Path) -> None:
    """Where vectors are shorter only the order of the sums differs."""
    root = str(Path(__file__).parent.parent)
    here = run_python(ROWS, root).splitlines()
    lesser = run_python(
        ROWS, root, NUMBA_CPU_FEATURES="+sse2", NUMBA_CACHE_DIR=str(tmp_path)
    ).splitlines()
    assert [re.sub(r"(mean|rms)=\S+", "", row) for row in here] == [
        re.sub(r"(mean|rms)=\S+", "", row) for row in lesser
    ]


@pytest.mark.parametrize("seed", range(5))
def test_numba_and_torch_agree_on_every_count(seed: int) -> None:
    t = torch.from_numpy(
        np.random.default_rng(seed).integers(-(2**31), 2**31, 20_000, dtype=np.int32)
    ).view(torch.float32)
    tables = [StatsTable(), OperationsOnly()]
    for table in tables:
        table.add(t)
    first, second = (table.stats(0) for table in tables)
    assert all(
        getattr(first, name) == getattr(second, name)
        for name in ["numel", *COUNTS, "min", "max", "absmin"]
    )
    assert tables[0].histogram(0, signed=True).equals(tables[1].histogram(0, signed=True))


@pytest.mark.slow  # compiles a kernel anew
def test_kernels_work_where_no_cache_can_be_written(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("a file, where numba wants a directory")
    program = """
import warnings
warnings.simplefilter("error")
import torch
from nanlab.stats import summarize
print(summarize(torch.ones(3)).mean)
"""
    assert run_python(program, NUMBA_CACHE_DIR=str(blocked / "cache")) == "1.0"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3,), (5000,), (64, 80)])
def test_a_change_is_summarised_as_torch_computes_it(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    old, new = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    new.view(-1)[0] = float("nan")
    new.view(-1)[1] = old.view(-1)[1]
    table, expected = StatsTable(), new - old
    seen = new.clone(), old.clone()
    table.add(expected)
    row = table.add_change(new, old)
    assert table.stats(row) == table.stats(0)
    assert table.histogram(row, signed=True).equals(table.histogram(0, signed=True))
    for tensor, before in zip((new, old), seen, strict=True):
        assert torch.equal(tensor.nan_to_num(7), before.nan_to_num(7))


def test_a_change_between_strided_tensors_pairs_the_right_elements() -> None:
    new, old = torch.arange(12.0).reshape(3, 4), torch.arange(12.0).reshape(4, 3).t()
    table = StatsTable()
    table.add(new - old)
    assert table.stats(table.add_change(new, old)) == table.stats(0)


@pytest.mark.parametrize("values", [[1.5, -2.0, 0.0], [float("nan"), float("inf")], [3.0, 4.0], []])
def test_a_row_padded_with_zeros_is_that_of_the_padded_tensor(values: list[float]) -> None:
    table = StatsTable()
    inner = table.add(torch.tensor(values))
    whole = table.add(torch.cat([torch.tensor(values), torch.zeros(5)]))
    padded = table.add_padded(inner, len(values) + 5)
    a, b = dataclasses.asdict(table.stats(padded)), dataclasses.asdict(table.stats(whole))
    assert {k: v for k, v in a.items() if k not in ("mean", "rms")} == {
        k: v for k, v in b.items() if k not in ("mean", "rms")
    }
    assert (a["mean"], a["rms"]) == (pytest.approx(b["mean"]), pytest.approx(b["rms"]))
    assert table.histogram(padded).equals(table.histogram(whole))


def test_a_gradient_put_back_into_zeros_has_the_statistics_of_the_whole() -> None:
    x = torch.randn(3, 6000, requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        (x[1] * torch.randn(6000)).sum().backward()
    row = trace.ops.query("op == 'select_backward'").iloc[0]
    grad = x.grad
    assert (row.numel, row.zero, row["max"], row["min"]) == (
        18000,
        (grad == 0).sum(),
        grad.max(),
        grad.min(),
    )
    assert row.rms == pytest.approx(grad.double().square().mean().sqrt().item())


EARLY = """
import sys
from nanlab.stats import load_early
assert not any(name.startswith("numba") for name in sys.modules)
thread = load_early()
thread.join()
print(thread.daemon, *(f"nanlab.stats.{name}" in sys.modules for name in ("cpu32", "cpu64")))
"""


FORKED = """
import os
from nanlab.stats import load_early
load_early()
child = os.fork()
if child == 0:
    import numba
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_worker_that_is_forked_while_kernels_are_loaded_can_import_what_they_import() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["7"]


def test_kernels_are_loaded_in_a_thread_before_anybody_needs_them() -> None:
    done = subprocess.run([sys.executable, "-c", EARLY], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "True"]
