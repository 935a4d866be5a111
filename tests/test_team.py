"""Large tensors are counted by several threads: the rows are those of one thread."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch

import nanlab
from nanlab.stats import StatsTable
from nanlab.stats import layout as L
from nanlab.stats import table as tables
from nanlab.stats.kernels import WORTH_SHARING, load_team, parts_of, worth_sharing

pytestmark = pytest.mark.skipif(load_team() is None, reason="torch's OpenMP has no entry here")
SIZES = [WORTH_SHARING, WORTH_SHARING + 1, 300_007]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def tensor(kind: str, numel: int, dtype: torch.dtype) -> torch.Tensor:
    """Ordinary values; all magnitudes that there are; with NaN and infinities; subnormals."""
    t = torch.randn(numel)
    if kind == "wide":
        t *= torch.exp(20 * torch.randn(numel))
    elif kind == "bad":
        t[::1000], t[5], t[-1], t[77:9000] = torch.nan, torch.inf, -torch.inf, 0.0
    elif kind == "tiny":
        t *= 1e-38
        t[::7] *= 1e-5
    return t.to(dtype)


def assert_same(one: StatsTable, several: StatsTable) -> None:
    """Counts, extremes and bins are equal; the order of the sums is another."""
    first, second = one.columns(), several.columns()
    for name in first:
        if name in ("mean", "rms"):
            np.testing.assert_allclose(second[name], first[name], rtol=1e-9, atol=1e-12)
        else:
            np.testing.assert_array_equal(second[name], first[name], name)
    assert one.histogram(0, signed=True).equals(several.histogram(0, signed=True))


def counted(threads: int, t: torch.Tensor) -> StatsTable:
    torch.set_num_threads(threads)
    table = StatsTable()
    table.add(t)
    return table


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["ordinary", "wide", "bad", "tiny"])
@pytest.mark.parametrize("numel", SIZES)
def test_threads_count_what_one_thread_counts(kind: str, numel: int, dtype: torch.dtype) -> None:
    t = tensor(kind, numel, dtype)
    one = counted(1, t)
    for several in (2, 3, 5):
        assert_same(one, counted(several, t))


@pytest.mark.usefixtures("threads")
def test_the_sums_do_not_depend_on_which_thread_was_faster() -> None:
    t = tensor("wide", 300_000, torch.float32)
    rows = [counted(3, t).stats(0) for _ in range(20)]
    assert len(set(rows)) == 1


@pytest.mark.usefixtures("threads")
def test_a_change_is_counted_by_threads() -> None:
    new, old = torch.randn(200_001), torch.randn(200_001)
    tables = []
    for several in (1, 3):
        torch.set_num_threads(several)
        table = StatsTable()
        table.add_change(new, old)
        tables.append(table)
    assert_same(*tables)


@pytest.mark.usefixtures("threads")
def test_a_row_counted_by_threads_leaves_nothing_behind_for_the_next() -> None:
    torch.set_num_threads(2)
    table = StatsTable()
    for kind in ("bad", "tiny", "ordinary"):
        table.add(tensor(kind, 140_000, torch.float32))
    table.add(torch.ones(140_000))
    assert table.histogram(3).to_dict() == {0: 140_000}
    table.add(torch.ones(10))
    assert table.stats(4).numel == 10


@pytest.mark.usefixtures("threads")
def test_room_for_the_row_is_made_with_the_counts_at_hand() -> None:
    torch.set_num_threads(2)
    t, table = tensor("wide", 140_000, torch.float32), StatsTable()
    for _ in range(300):  # rows of some 500 bins: the arena grows several times
        table.add(t)
    assert len({table.stats(row) for row in range(300)}) == 1
    assert_same(counted(1, t), table_of_first(table))


def table_of_first(table: StatsTable) -> StatsTable:
    table.compact(np.arange(1))
    return table


@pytest.mark.usefixtures("threads")
def test_tables_of_several_python_threads_do_not_meet() -> None:
    torch.set_num_threads(2)
    tensors = [tensor(kind, 140_000, torch.float32) for kind in ("ordinary", "wide", "bad", "tiny")]
    wrong: list[int] = []

    def count(place: int) -> None:
        expected = counted(2, tensors[place]).stats(0)
        for _ in range(50):
            found = counted(2, tensors[place]).stats(0)
            if (found.nan, found.zero, found.min, found.fp16_zero) != (
                expected.nan,
                expected.zero,
                expected.min,
                expected.fp16_zero,
            ):
                wrong.append(place)

    running = [threading.Thread(target=count, args=(place,)) for place in range(len(tensors))]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert not wrong


@pytest.mark.usefixtures("threads")
def test_counts_that_an_interrupt_left_behind_are_not_taken_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    torch.set_num_threads(2)
    table, wide = StatsTable(), tensor("wide", 200_000, torch.float32)
    monkeypatch.setattr(table, "_write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        table.add(wide)
    t = torch.ones(200_000)
    assert counted(2, t).histogram(0).to_dict() == {0: 200_000}


@pytest.mark.usefixtures("threads")
def test_without_openmp_one_thread_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    t = tensor("bad", 140_000, torch.float32)
    one = counted(1, t)
    monkeypatch.setattr(tables, "load_team", lambda: None)
    assert_same(one, counted(4, t))


@pytest.mark.usefixtures("threads")
def test_small_tensors_and_other_dtypes_are_not_cut() -> None:
    torch.set_num_threads(4)
    assert worth_sharing() == WORTH_SHARING
    assert parts_of(WORTH_SHARING) == 2
    assert parts_of(1 << 20) == 4
    for dtype in (torch.float64, torch.int64):
        t = torch.arange(140_000).to(dtype)
        assert counted(4, t).stats(0).max == 139_999


def _summarise(numel: int) -> int:
    torch.set_num_threads(1)  # as a DataLoader worker does
    return nanlab.stats.summarize(torch.ones(numel)).numel


@pytest.mark.usefixtures("threads")
@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="this system does not fork"
)
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_worker_counts_by_itself() -> None:
    counted(2, torch.ones(140_000))
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply_async(_summarise, (140_000,)).get(timeout=60) == 140_000


@pytest.mark.usefixtures("threads")
def test_a_watched_program_gives_the_same_bits_with_threads() -> None:
    def train(watched: bool) -> tuple[list[torch.Tensor], int]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.Linear(512, 1)
        )
        optimizer, x = torch.optim.AdamW(model.parameters()), torch.randn(256, 512)
        shared = 0

        def run() -> None:
            for _ in range(3):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()

        if watched:
            with nanlab.watch(model) as trace:
                run()
            assert trace.culprit is None
            shared = int((trace.ops["numel"] >= WORTH_SHARING).sum())
        else:
            run()
        return [p.detach().clone() for p in model.parameters()], shared

    torch.set_num_threads(2)
    (bare, _), (seen, shared) = train(False), train(True)
    assert shared > 20
    assert all(torch.equal(a, b) for a, b in zip(bare, seen, strict=True))


def test_states_of_parts_have_a_scratch_each() -> None:
    team = load_team()
    assert team is not None
    team._make_room(3, 0)
    addresses = team._states[:, L.SCRATCH_ADDRESS]
    assert np.all(np.diff(addresses) == 8 * (L.SCRATCH_WORDS + L.BLOCK))
    assert np.all(team._states[:, L.PARTS] == L.ONE_PART)
