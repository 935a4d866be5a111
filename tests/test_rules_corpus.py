"""The diagnosis, judged by the corpus of programs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent / "corpus"))

import harness
import score

import nanlab

# One program for each way in which a cause is told: by operands, by the composite, by what lies
# downstream, by data.
FEW = "f001 f012 f027 f034 f041 f047 f053 f054 f055 f062 f063 f065 f070 f072".split()


@pytest.mark.usefixtures("untried")
@pytest.mark.parametrize("number", FEW)
def test_cause_line_operator_phase_and_step_are_those_of_the_program(number: str) -> None:
    found = score.score(harness.case_files([number])[0])
    assert not found.answer.error
    assert [
        part for part, right in found.right.items() if not right and part != "verified"
    ] == [], str(found)


@pytest.mark.usefixtures("untried")
@pytest.mark.parametrize("number", ["f001", "f041", "f062"])
def test_repaired_twin_raises_no_alarm(number: str) -> None:
    found = score.score(harness.case_files([number])[0], fixed=True)
    assert not found.alarm and not found.answer.error, str(found)


def _told(path: Path, steps: int, on_fault: str, keep: int) -> tuple[object, ...]:
    """What is said about a program's culprit after so many steps."""
    model, step = harness.load(path).build()
    with nanlab.watch(model, on_fault=on_fault, keep=keep) as trace:
        for i in range(steps):
            step(i)
    found = trace.culprit
    assert found is not None
    fixes = [(fix.title, fix.verified) for fix in found.fixes]
    return (
        found.line,
        found.op,
        found.cause,
        found.phase,
        found.step,
        found.title,
        found.samples,
        fixes,
    )


# A determinant's sign, a variance and a norm by hand, a gradient in the backward pass, a batch, a
# hand-written update.
@pytest.mark.parametrize("number", "f236 f208 t140 f014 f080 t065".split())
def test_a_fault_that_many_steps_follow_is_told_as_where_the_program_is_stopped(
    number: str, request: pytest.FixtureRequest
) -> None:
    path = harness.case_files([number])[0]
    meta = harness.load(path).META
    steps = meta["n_steps"] + 12
    later = _told(path, steps, "record", 1)
    assert later[0] in [
        line for mark in ("ORIGIN", "ALSO", "DATA", "FIRST") for line in harness.markers(path)[mark]
    ]
    assert later[2] in (meta["cause"], *meta.get("also_causes", ()))
    assert later[4] == meta["first_bad_step"]
    assert later == _told(path, steps, "record", 10**6)
    request.getfixturevalue("untried")
    assert later[:5] == _told(path, steps, "stop", 2)[:5]


@pytest.mark.slow
@pytest.mark.conformance
def test_causes_are_right_in_19_of_20_programs_and_lines_in_49_of_50() -> None:
    found = score.shares([score.score(path) for path in harness.case_files(kind="f")])
    assert found["cause"] >= 0.95
    assert found["line"] >= 0.98


@pytest.mark.slow
@pytest.mark.conformance
def test_healthy_programs_and_twins_raise_no_alarm() -> None:
    healthy = [score.score(path) for path in harness.case_files(kind="h")]
    twins = [score.score(path, fixed=True) for path in harness.case_files(kind="f")]
    assert [str(s) for s in healthy + twins if s.alarm or s.answer.error] == []
