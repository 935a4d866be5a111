"""The marks of the corpus hold on every processor: a course that rounding changes is declared
chaotic."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "corpus"))

import harness

SEEDS = (1, 2, 3)
CHAOTIC = [path for path in harness.case_files() if harness.load(path).META.get("chaotic")]
TAME = [path for path in harness.case_files() if path not in CHAOTIC]
# Long rollouts, cancellation in half precision, growth over many steps, rates near stability, and
# every twentieth.
QUICK = set("f066 f317 f100 h216 h219 t001 t007 t099 t104 t122 t166 t339 t365".split())
QUICK |= {path.name[:4] for path in TAME[::20]}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def check(path: Path) -> None:
    expected = harness.course(path)
    assert [seed for seed in SEEDS if harness.course(path, seed) != expected] == []


@pytest.mark.examples(every=5)
@pytest.mark.parametrize(
    "path", [p for p in TAME if p.name[:4] in QUICK], ids=lambda path: path.stem
)
def test_weights_moved_by_one_ulp_leave_the_symptoms_in_their_steps(path: Path) -> None:
    check(path)


@pytest.mark.slow
@pytest.mark.conformance
@pytest.mark.parametrize(
    "path", [p for p in TAME if p.name[:4] not in QUICK], ids=lambda path: path.stem
)
def test_weights_moved_by_one_ulp_leave_the_symptoms_of_every_program_in_their_steps(
    path: Path,
) -> None:
    check(path)


@pytest.mark.parametrize("path", CHAOTIC, ids=lambda path: path.stem)
def test_a_program_that_is_declared_chaotic_ends_in_another_step_where_weights_move_by_one_ulp(
    path: Path,
) -> None:
    assert "first_bad_step" not in harness.load(path).META
    expected = harness.course(path)
    assert any(harness.course(path, seed) != expected for seed in range(1, 9))
