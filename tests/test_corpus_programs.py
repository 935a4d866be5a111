"""The corpus says the truth about itself: each program, run without nanlab, shows what its META
declares."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent / "corpus"))

import harness
from births import Birth, Witness

FAULTS = [path.stem for path in harness.case_files(kind="f")]
HEALTHY = [path.stem for path in harness.case_files(["h0", "h1"], kind="h")]
FIRST_SLOW = {"f": 107, "h": 37}  # from these numbers on `make conformance` runs them
SYMPTOMS = {"loss-nan", "loss-inf", "grad-nan", "grad-inf", "silent-underflow"}
CAUSES = set(
    """
    log-of-zero log-of-negative div-by-zero div-by-tiny norm-at-zero sqrt-at-zero sqrt-of-negative
    pow-fraction-at-zero pow-negative-base inverse-function-at-edge inverse-function-domain exp-overflow
    softmax-all-masked zero-times-inf inf-minus-inf where-grad-trap repair-forward-only empty-reduction
    std-of-constant degenerate-matrix infeasible-likelihood custom-backward dtype-overflow dtype-underflow
    eps-underflow mask-overflow exploding-gradient poisoned-parameter poisoned-buffer nan-in-input inf-in-input
    nan-in-target uninitialised-memory
    """.split()
)


@dataclass(frozen=True)
class Run:
    """What a program did, one entry per step."""

    symptoms: list[str | None]  # the first of loss, gradients, parameters that is not finite
    zero_gradients: list[set[str]]  # parameters whose gradient is zero throughout
    moved: list[bool]  # whether any parameter changed
    births: list[Birth]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.autograd.set_detect_anomaly(False)


def by_name(names: list[str]) -> pytest.MarkDecorator:
    """A test for each of these programs, the later ones left out of a plain run."""
    late = {name for name in names if int(name[1:4]) >= FIRST_SLOW[name[0]]}
    return pytest.mark.parametrize(
        "name",
        [pytest.param(name, marks=pytest.mark.slow if name in late else ()) for name in names],
    )


def file_of(name: str) -> Path:
    return harness.CASES / f"{name}.py"


@cache
def meta_of(name: str) -> dict[str, Any]:
    return dict(harness.load(file_of(name)).META)


def is_zero(gradient: torch.Tensor | None) -> bool:
    return gradient is not None and not bool(gradient.any())


def run(name: str, fixed: bool = False, witness: Witness | None = None) -> Run:
    torch.autograd.set_detect_anomaly(witness is not None, check_nan=False)
    record = Run([], [], [], witness.births if witness else [])
    module = harness.load(file_of(name))
    with witness or nullcontext():
        model, step = module.build(fixed)
    parameters = dict(harness.parameters(model, step))
    for i in range(meta_of(name)["n_steps"]):
        before = [p.detach().clone() for p in parameters.values()]
        with witness or nullcontext():
            loss = one_step(step, i, witness)
        record.symptoms.append(harness.symptom(loss, parameters.values()))
        record.zero_gradients.append({key for key, p in parameters.items() if is_zero(p.grad)})
        record.moved.append(
            any(not torch.equal(a, b) for a, b in zip(before, parameters.values(), strict=True))
        )
    return record


def one_step(step: Callable[[int], torch.Tensor], i: int, witness: Witness | None) -> torch.Tensor:
    if witness:
        witness.step = i
    return step(i).detach()


def plain(operators: set[str]) -> set[str]:
    """Names without the marks of autograd and of in-place variants: SqrtBackward0, sqrt and sqrt_
    are one."""
    return {re.sub(r"backward\d*$|[_\d]", "", op.lower()) for op in operators}


@cache
def faulty_run(name: str) -> Run:
    return run(name, witness=Witness(f"{name}.py"))


@pytest.mark.examples(every=4)
@by_name(FAULTS)
def test_fault_shows_its_symptom_first_at_its_step(name: str) -> None:
    meta, seen = meta_of(name), faulty_run(name)
    first = meta["first_bad_step"]
    if meta["symptom"] == "silent-underflow":
        parameter = meta["watch"].removeprefix("grad:")
        flushed = [parameter in zero for zero in seen.zero_gradients]
        assert flushed == [i >= first for i in range(meta["n_steps"])]
        assert seen.symptoms == [None] * meta["n_steps"]
    else:
        assert seen.symptoms[:first] == [None] * first
        assert seen.symptoms[first] == meta["symptom"]


@pytest.mark.examples(every=4)
@by_name(FAULTS)
def test_repaired_twin_stays_finite_and_learns(name: str) -> None:
    meta, seen = meta_of(name), run(name, fixed=True)
    assert seen.symptoms == [None] * meta["n_steps"]
    assert all(seen.moved)
    if "watch" in meta:
        assert not any(meta["watch"].removeprefix("grad:") in zero for zero in seen.zero_gradients)


@pytest.mark.examples(every=4)
@by_name(
    [
        n
        for n in FAULTS
        if meta_of(n)["phase"] in ("forward", "backward") and "watch" not in meta_of(n)
    ]
)
def test_bad_value_appears_on_the_marked_line_at_that_step(name: str) -> None:
    meta, marks = meta_of(name), harness.markers(file_of(name))
    lines = {*marks["ORIGIN"], *marks["ALSO"]}
    there = [
        b
        for b in faulty_run(name).births
        if b.step == meta["first_bad_step"] and lines & set(b.lines)
    ]
    seen = {b.node or b.op for b in there if b.node or meta["phase"] == "forward"}
    assert plain(seen) & plain({meta["origin_op"], *meta.get("also_ops", ())})


@pytest.mark.examples(every=4)
@by_name(HEALTHY)
def test_healthy_program_stays_finite(name: str) -> None:
    meta, seen = meta_of(name), run(name)
    skipped = meta.get("skipped_steps", ())
    assert [i for i, found in enumerate(seen.symptoms) if found] == list(skipped)
    assert not any(found and not found.startswith("grad") for found in seen.symptoms)
    assert not any(seen.moved[i] for i in skipped)
    assert all(seen.moved[i] for i in range(1, meta["n_steps"]) if i not in skipped)


@by_name(FAULTS)
def test_fault_declares_itself_fully(name: str) -> None:
    meta, marks = meta_of(name), harness.markers(file_of(name))
    assert meta["phase"] in ("forward", "backward", "init", "data")
    assert meta["symptom"] in SYMPTOMS
    assert {meta["cause"], *meta.get("also_causes", ())} <= CAUSES
    assert 0 <= meta["first_bad_step"] < meta["n_steps"]
    assert re.fullmatch(r"_?[a-z][a-z0-9_]*", meta["origin_op"])
    assert meta["fix"]
    assert len(marks["ORIGIN"]) == 1


def test_every_cause_outside_the_training_loop_has_a_program() -> None:
    assert {meta_of(name)["cause"] for name in FAULTS} == CAUSES


def test_numbers_of_programs_are_unique() -> None:
    numbers = [path.name[:4] for path in harness.case_files()]
    assert len(numbers) == len(set(numbers))
