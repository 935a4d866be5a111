"""What is said of the programs of corpus/fields, held against what each declares of itself."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "corpus"))

import score
from programs import Program, programs

FAULTS, HEALTHY = programs(kind="f"), programs(kind="h")
# Births while the program is built, in a parameter, a buffer, a schedule.
FEW = (
    "diffusion_log_of_the_first_posterior_variance",
    "ssm_inverse_softplus_of_zero_step",
    "speech_filterbank_finer_than_the_spectrum",
)


def _wrong(program: Program) -> list[str]:
    found = score.judge(program, score.watch(program))
    return [part for part, right in found.right.items() if not right and part != "verified"] and [str(found)]


@pytest.mark.parametrize("program", [p for p in FAULTS if p.name[2:] in FEW], ids=lambda p: p.name)
def test_cause_line_operator_phase_and_step_are_those_of_the_program(program: Program) -> None:
    assert _wrong(program) == []


@pytest.mark.slow
@pytest.mark.conformance
def test_causes_are_right_in_19_of_20_programs_and_lines_in_49_of_50() -> None:
    found = score.shares([score.score(program) for program in FAULTS])
    assert found["cause"] >= 0.95
    assert found["line"] >= 0.98


@pytest.mark.slow
@pytest.mark.conformance
def test_healthy_programs_and_twins_raise_no_alarm() -> None:
    twins = [score.score(program, fixed=True) for program in FAULTS]
    quiet = [*twins, *(score.score(program) for program in HEALTHY)]
    assert [str(s) for s in quiet if s.alarm or s.answer.error] == []
