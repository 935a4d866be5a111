"""Bad values that a DataLoader brings: told as data, with the sample's index in the dataset."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import nanlab
from nanlab.views.tables import browse

BAD = 37


class Readings(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """One sample holds NaN, born where no watch looks: in the worker that makes it."""

    def __init__(self, target: bool = False) -> None:
        self.target = target

    def __len__(self) -> int:
        return 64

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = torch.full((4,), float(i % 7)), torch.tensor(1.0)
        if i == BAD:
            x, y = (x, y / 0 * 0) if self.target else (x / 0 * 0, y)
        return x, y


def train(loader: Any, epochs: int = 1) -> nanlab.Trace:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with nanlab.watch(model) as trace:
        for _ in range(epochs):
            for x, y in loader:
                optimizer.zero_grad()
                (model(x).squeeze(1) - y).pow(2).mean().backward()
                optimizer.step()
    return trace


@pytest.mark.parametrize("target", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_nan_born_in_a_worker_is_told_as_data_with_its_index_in_the_dataset(
    shuffle: bool, target: bool
) -> None:
    generator = torch.Generator().manual_seed(7)
    loader = DataLoader(
        Readings(target), batch_size=8, num_workers=2, shuffle=shuffle, generator=generator
    )
    draw = torch.Generator().manual_seed(7)
    # the loader's own draw, for its workers' seed
    torch.empty((), dtype=torch.int64).random_(generator=draw)
    places = (
        list(torch.utils.data.RandomSampler(range(64), generator=draw))
        if shuffle
        else list(range(64))
    )
    found = train(loader).culprit
    assert found is not None
    assert found.cause == ("nan-in-target" if target else "nan-in-input")
    at = places.index(BAD)
    assert (found.step, found.samples) == (at // 8, [at % 8])
    assert f"sample {at % 8} of the batch is number {BAD} of the dataset" in found.explanation


def test_several_bad_samples_are_told_in_one_sentence() -> None:
    class Half(Readings):
        def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
            return super().__getitem__(BAD if 8 <= i < 14 else 0)

    found = train(DataLoader(Half(), batch_size=8, num_workers=2)).culprit
    assert found is not None
    assert found.explanation.endswith(
        "By the loader's sampler, samples 0, 1, 2, 3 of the batch are numbers 8, 9, 10, 11 of the"
        " dataset, and 2 more."
    )


def test_a_nan_of_the_second_epoch_of_lasting_workers_is_told_with_its_index() -> None:
    class Late(Readings):
        def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
            self.seen = getattr(self, "seen", 0) + 1
            return super().__getitem__(i if i != BAD or self.seen > 64 // 2 else 0)

    loader = DataLoader(Late(), batch_size=8, num_workers=2, persistent_workers=True)
    found = train(loader, epochs=2).culprit
    assert found is not None
    assert found.step == 8 + BAD // 8
    assert f"is number {BAD} of the dataset" in found.explanation


def test_a_nan_born_in_the_loop_s_own_process_is_told_where_it_was_born_and_with_its_index() -> (
    None
):
    found = train(DataLoader(Readings(), batch_size=8)).culprit
    assert found is not None
    assert (found.cause, found.source) == (
        "div-by-zero",
        "x, y = (x, y / 0 * 0) if self.target else (x / 0 * 0, y)",
    )
    assert found.samples == [BAD % 8]
    assert f"is number {BAD} of the dataset" in found.explanation


def _picked(rows: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return x[rows]


def _cast(rows: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return x.double()[rows].float()


def _stacked(rows: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x[i] for i in rows])


@pytest.mark.parametrize("towers", [1, 2])
@pytest.mark.parametrize("pick", [_picked, _cast, _stacked])
def test_rows_drawn_in_the_step_are_the_batch_and_not_the_data_set(pick: Any, towers: int) -> None:
    torch.manual_seed(0)
    x, y = torch.rand(20, 6), torch.randint(0, 4, (20,))
    x[[3, 7]] = 0.0
    net = nn.Linear(6, 4, bias=False)
    with nanlab.watch(net) as trace:
        rows = torch.randperm(20)[:15]
        picked = [net(pick(rows, x)) for _ in range(towers)]
        a, b = picked[0], picked[-1]
        scores = a / a.norm(dim=1, keepdim=True) + b
        nn.functional.cross_entropy(scores, y[rows]).backward()
    held = [at for at, row in enumerate(rows.tolist()) if row in (3, 7)]
    assert held and trace.culprit is not None and trace.culprit.samples == held


def test_a_loop_that_is_stopped_lets_its_loader_go_at_once() -> None:
    torch.optim.SGD([torch.ones(1)])  # the first one imports compilers, which leave frames behind

    def stopped() -> weakref.ref[Any]:
        batches = iter(DataLoader(Readings(), batch_size=8, num_workers=2))
        assert train(batches).culprit is not None
        return weakref.ref(batches)

    gc.disable()  # workers whose loader the garbage collector finds take 10 s to end
    try:
        assert stopped()() is None
    finally:
        gc.enable()


def test_batches_are_the_same_and_loaders_are_left_as_they_were() -> None:
    from torch.utils.data.dataloader import _BaseDataLoaderIter as Iterator

    before = Iterator.__next__, Iterator._next_index
    loader = DataLoader(Readings(), batch_size=8, num_workers=2)
    bare = [x for x, _ in loader]
    with nanlab.watch(on_fault="record") as trace:
        watched = [x for x, _ in loader]
    assert all(
        torch.equal(a, b) or bool(a.isnan().any()) for a, b in zip(bare, watched, strict=True)
    )
    assert (Iterator.__next__, Iterator._next_index) == before
    assert trace.culprit is None and not trace.notes


def test_a_loader_begun_before_the_watch_is_told_without_an_index() -> None:
    batches = iter(DataLoader(Readings(), batch_size=8, num_workers=2))
    next(batches)
    found = train(batches).culprit
    assert found is not None and found.cause == "nan-in-input"
    assert "of the dataset" not in found.explanation


def test_rows_with_which_a_batch_is_made_here_are_the_phase_data_and_counted_instead_of_shown() -> (
    None
):
    data = torch.utils.data.TensorDataset(torch.randn(24, 4), torch.randn(24))
    trace = train(DataLoader(data, batch_size=8))
    ops = trace.ops
    made = ops[ops["phase"] == "data"]
    assert set(made["op"]) >= {"select", "stack"}
    # of each of the steps at hand: a sample's two halves, and their stacks
    assert (made["op"] == "stack").sum() == 2 * made["step"].nunique()
    assert not set(ops.loc[ops["phase"] == "forward", "op"]) & {"select", "stack"}
    shown = ops._repr_html_()
    assert f"{len(made)} rows of the phase data not shown" in shown and ">stack<" not in shown
    browser = browse(ops)
    assert len(browser.frame) == len(ops) - len(made)
    browser.needle = "stack"
    assert set(browser.frame["op"]) == {"stack"}
    assert ">stack<" in made._repr_html_() or "stack" in made._repr_html_()


def test_a_nan_that_a_dataset_makes_in_this_process_is_shown_with_its_row() -> None:
    class Logs(Readings):
        def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.full((4,), -1.0 if i == 3 else 1.0).log(), torch.tensor(1.0)

    trace = train(DataLoader(Logs(), batch_size=8))
    assert trace.culprit is not None and trace.culprit.op == "log"
    assert trace.ops.loc[trace.culprit.position, "phase"] == "data"
    assert "log" in trace.ops._repr_html_()


class Features(Dataset[torch.Tensor]):
    """One sample is divided by zero, in the process that is watched."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, i: int) -> torch.Tensor:
        if i >= 16:
            raise IndexError
        x = torch.ones(4) * i
        return x / (x - 9)


class Stream(IterableDataset[torch.Tensor]):
    """The same samples, which have no index."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(Features())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "told"),
    [(Features(), "sample 1 of the batch is number 9 of the dataset"), (Stream(), "")],
)
def test_a_fault_of_a_sample_is_of_the_data_and_its_elements_are_no_samples(
    data: Any, told: str
) -> None:
    model = nn.Linear(4, 1)
    with nanlab.watch(model, on_fault="record") as trace:
        for x in DataLoader(data, batch_size=4):
            model(x).mean().backward()
    found = trace.culprit
    assert found is not None
    assert (found.op, found.phase, found.samples) == ("div", "data", [1])
    assert trace.ops["phase"][trace.ops["status"] == "born"].tolist()[:1] == ["data"]
    assert told in found.explanation
    assert "samples" not in found.explanation and "None" not in found.explanation
