"""Indices are checked before the kernel runs, as they must be on a device; here the CPU stands in
for one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import nanlab
from nanlab.capture import dispatch, plans
from nanlab.capture.plans import IndexGuard, IndexOutOfRangeError, bad_indices
from nanlab.explanations import Explanation, explain
from nanlab.stats.table import StatsTable

torch.set_num_threads(1)
Program = Callable[[], object]
ASSERTION = (
    "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported"
)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tensor counts as one on a device that asserts."""
    monkeypatch.setattr(
        dispatch, "IndexGuard", lambda recorder: IndexGuard(recorder, elsewhere=lambda tensor: True)
    )


@pytest.fixture
def unknown(monkeypatch: pytest.MonkeyPatch, device: None) -> None:
    """The range of indices is known to the device alone."""
    monkeypatch.setattr(plans, "known_range", lambda recording, position: None)


WRONG: dict[str, Program] = {
    "embedding": lambda: F.embedding(torch.tensor([[0, 7]]), torch.ones(5, 2)),
    "embedding_bag": lambda: F.embedding_bag(torch.tensor([[0, 7]]), torch.ones(5, 2)),
    "index_select": lambda: torch.ones(2, 3).index_select(1, torch.tensor([0, 3])),
    "gather": lambda: torch.ones(2, 3).gather(1, torch.tensor([[0], [3]])),
    "gather negative": lambda: torch.ones(2, 3).gather(1, torch.tensor([[0], [-1]])),
    "scatter": lambda: torch.ones(2, 3).scatter(1, torch.tensor([[0], [3]]), 1.0),
    "scatter_add": lambda: torch.zeros(2).scatter_add(0, torch.tensor([2]), torch.ones(1)),
    "index_add": lambda: torch.zeros(2).index_add(0, torch.tensor([2]), torch.ones(1)),
    "one_hot by scatter": lambda: torch.zeros(1, 3).scatter_(1, torch.tensor([[4]]), 1),
    "cross_entropy": lambda: F.cross_entropy(torch.zeros(2, 3), torch.tensor([0, 3])),
    "cross_entropy negative": lambda: F.cross_entropy(torch.zeros(2, 3), torch.tensor([0, -1])),
    "cross_entropy of images": lambda: F.cross_entropy(
        torch.zeros(1, 3, 2, 2), torch.full((1, 2, 2), 3)
    ),
    "nll_loss": lambda: F.nll_loss(torch.zeros(2, 3), torch.tensor([0, 255])),
    "subscript": lambda: torch.ones(3)[torch.tensor([0, 3])],
    "negative subscript": lambda: torch.ones(3)[torch.tensor([-4])],
    "assignment": lambda: torch.ones(3).__setitem__(torch.tensor([3]), 0.0),
    "take": lambda: torch.ones(3).take(torch.tensor([3])),
}
RIGHT: dict[str, Program] = {
    "embedding": lambda: F.embedding(torch.tensor([[0, 4]]), torch.ones(5, 2)),
    "embedding of nothing": lambda: F.embedding(torch.zeros(0, dtype=torch.long), torch.ones(5, 2)),
    "default ignore_index": lambda: F.cross_entropy(torch.zeros(2, 3), torch.tensor([0, -100])),
    "another ignore_index": lambda: F.cross_entropy(
        torch.zeros(2, 3), torch.tensor([0, 255]), ignore_index=255
    ),
    "ignore_index of -1": lambda: F.nll_loss(
        torch.zeros(2, 3), torch.tensor([0, -1]), ignore_index=-1
    ),
    "probabilities": lambda: F.cross_entropy(torch.zeros(2, 3), torch.full((2, 3), 0.3)),
    "negative subscript": lambda: torch.ones(3)[torch.tensor([-3, 2])],
    "assignment from the end": lambda: torch.ones(3).__setitem__(torch.tensor([-1]), 0.0),
    "mask": lambda: torch.ones(3)[torch.tensor([True, False, True])],
    "mask of two dimensions": lambda: torch.ones(2, 3, 4)[
        torch.ones(2, 3, dtype=torch.bool), torch.tensor([3])
    ],
    "mask and index": lambda: torch.ones(2, 3)[torch.tensor([True, False]), torch.tensor([2])],
    "all of a dimension": lambda: torch.ones(2, 5)[:, torch.tensor([4])],
    "gather": lambda: torch.ones(2, 3).gather(1, torch.tensor([[0], [2]])),
    "take from the end": lambda: torch.ones(3).take(torch.tensor([-3])),
    "scalar": lambda: torch.tensor(1.0).index_select(0, torch.tensor([0])),
}


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("name", WRONG)
def test_bad_index_is_refused_before_the_kernel(name: str) -> None:
    with (
        pytest.raises(IndexOutOfRangeError, match=r"out of range for \w+.*expected -?\d+ to \d+"),
        nanlab.watch(),
    ):
        WRONG[name]()
    assert isinstance(IndexOutOfRangeError("", None), IndexError)  # type: ignore[arg-type]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("name", RIGHT)
def test_good_index_is_no_alarm(name: str) -> None:
    with nanlab.watch() as trace:
        RIGHT[name]()
    assert trace.notes == []


@pytest.mark.usefixtures("unknown")
@pytest.mark.parametrize("name", RIGHT)
def test_good_index_that_only_the_device_knows_is_no_suspect(name: str) -> None:
    with pytest.raises(RuntimeError) as caught, nanlab.watch():  # noqa: PT012
        RIGHT[name]()
        raise RuntimeError(ASSERTION)
    found = explain(caught.value)
    assert found is not None
    assert found.cause == "device-failure"


def after_the_assertion(program: Program, model: nn.Module | None = None) -> Explanation:
    """What is said when the device has failed some time after the program's call."""
    with pytest.raises(RuntimeError) as caught, nanlab.watch(model):  # noqa: PT012
        try:
            program()
        except (IndexError, RuntimeError):
            raise RuntimeError(ASSERTION) from None
    found = explain(caught.value)
    assert found is not None
    return found


@pytest.mark.usefixtures("unknown")
@pytest.mark.parametrize("name", WRONG)
def test_bad_index_that_only_the_device_knows_is_named_after_the_assertion(name: str) -> None:
    found = after_the_assertion(WRONG[name])
    assert found.cause == "index-out-of-range"
    assert "restart the kernel" in found.explanation


@pytest.mark.usefixtures("unknown")
def test_assertion_is_explained_with_module_line_and_place_in_the_batch() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(10, 4)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.words(tokens)  # here

    model = Net()
    found = after_the_assertion(lambda: model(torch.tensor([[1, 2], [3, 12]])), model)
    assert (found.module, found.source) == ("words", "return self.words(tokens)  # here")
    assert found.evidence.to_dict("records") == [{"position": [1, 1], "index": 12}]


@pytest.mark.usefixtures("unknown")
def test_of_many_indices_the_least_and_greatest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "COPY_LIMIT", 3)
    found = after_the_assertion(lambda: F.embedding(torch.tensor([0, 1, 2, 9]), torch.ones(5, 2)))
    assert "index 9 is outside of the 5 rows" in found.title


def test_range_known_on_the_cpu_holds_on_the_device(
    monkeypatch: pytest.MonkeyPatch, device: None
) -> None:
    """A batch is made on the CPU and moved: what was copied, cut or turned has no other values."""
    asked: list[bool] = []

    def is_pending(table: StatsTable, row: int) -> bool:
        asked.append(True)
        return row > 0  # only the first tensor of the program is on the CPU

    monkeypatch.setattr(StatsTable, "is_pending", is_pending)
    with pytest.raises(IndexOutOfRangeError, match="index 9"), nanlab.watch():  # noqa: PT012
        batch = torch.tensor([[1, 2], [3, 9]])
        moved = batch.to(torch.int32)
        F.embedding(moved[1:].t(), torch.ones(5, 2))
    assert asked


@pytest.mark.usefixtures("device")
def test_suspicious_range_is_looked_at_before_it_is_refused() -> None:
    with nanlab.watch() as trace:
        batch = torch.tensor([[1, 2], [3, 9]])
        F.embedding(batch[:1], torch.ones(5, 2))
    assert trace.notes == []


@pytest.mark.parametrize("name", WRONG)
def test_error_of_the_cpu_is_explained_without_a_watch(name: str) -> None:
    with pytest.raises((IndexError, RuntimeError)) as caught:
        WRONG[name]()
    found = explain(caught.value)
    assert found is not None
    assert found.cause == "index-out-of-range"


def test_operators_know_their_limits() -> None:
    found = bad_indices("gather", (torch.ones(2, 3), 1, torch.tensor([[0, 1], [2, 3]])))
    assert found is not None
    assert (found.low, found.high, found.values, found.places) == (0, 3, (3,), ((1, 1),))
    assert bad_indices("mul", (torch.ones(1), torch.ones(1))) is None


@pytest.mark.cuda
def test_bad_index_on_cuda_leaves_the_device_alive() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    with pytest.raises(IndexOutOfRangeError), nanlab.watch():
        F.embedding(torch.tensor([0, 9]).cuda(), torch.ones(5, 2, device="cuda"))
    assert torch.ones(2, device="cuda").sum().item() == 2
