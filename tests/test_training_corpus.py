"""What is said of the training loops of the corpus, held against what each program declares of
itself."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent / "corpus"))

import harness
import score

import nanlab

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.usefixtures("untried"),
]
LOOPS = """t003 t016 t019 t022 t026 t030 t040 t091 t092 t093 t094 t095 t096 t097 t098 t099
    t100 t106 t109 t112 t118 t122 t128 t129 t130 t135
    t159 t160 t161 t162 t163 t164 t165 t166 t167 t168 t169 t170 t171""".split()


@pytest.mark.examples(every=3)
@pytest.mark.parametrize("number", LOOPS)
def test_cause_line_operator_phase_and_step_are_those_of_the_program(number: str) -> None:
    found = score.judge(path := harness.case_files([number], "t")[0], score.watch(path))
    assert [
        part for part, right in found.right.items() if not right and part != "verified"
    ] == [], str(found)
    assert not found.answer.notes


@pytest.mark.examples(every=3)
@pytest.mark.parametrize("number", LOOPS)
def test_repaired_twin_raises_no_alarm(number: str) -> None:
    found = score.judge(
        path := harness.case_files([number], "t")[0], score.watch(path, fixed=True), fixed=True
    )
    assert not found.alarm and not found.answer.notes, str(found)


@pytest.mark.examples(every=3)
@pytest.mark.parametrize(
    "number",
    ["h201", "h202", "h209", "h212", "h213", "h220", "h226", "h230", "h232", "h247", "h248"],
)
def test_healthy_loop_has_nothing_worse_than_a_note(number: str) -> None:
    found = score.watch(harness.case_files([number], "h")[0])
    assert not found.cause and not found.notes


@pytest.mark.parametrize("number", ["t005", "t068", "t163"])
def test_stopped_program_is_diagnosed_as_if_it_had_been_recorded(number: str) -> None:
    path = harness.case_files([number], "t")[0]
    meta, (model, step) = harness.load(path).META, harness.load(path).build()
    with nanlab.watch(model) as trace:
        for i in range(meta["n_steps"]):
            step(i)
    assert trace.culprit is not None
    assert (trace.culprit.cause, trace.culprit.step) == (
        meta["cause"],
        harness.first_bad_step(path),
    )
