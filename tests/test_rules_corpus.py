"""The diagnosis, judged by the corpus of programs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent / "corpus"))

import harness
import score

# One program for each way in which a cause is told: by operands, by the composite, by what lies downstream, by data.
FEW = "f001 f012 f027 f034 f041 f047 f053 f054 f055 f062 f063 f065 f070 f072".split()


@pytest.mark.parametrize("number", FEW)
def test_cause_line_operator_phase_and_step_are_those_of_the_program(number: str) -> None:
    found = score.score(harness.case_files([number])[0])
    assert not found.answer.error
    assert [part for part, right in found.right.items() if not right and part != "verified"] == [], str(found)


@pytest.mark.parametrize("number", ["f001", "f041", "f062"])
def test_repaired_twin_raises_no_alarm(number: str) -> None:
    found = score.score(harness.case_files([number])[0], fixed=True)
    assert not found.alarm and not found.answer.error, str(found)


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
