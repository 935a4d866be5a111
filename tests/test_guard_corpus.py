"""Faulty programs of the corpus that are healthy for a while: at their late step guard names what a
watch of the whole run names."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from corpus.harness import case_files, load

import nanlab
from nanlab.capture import FaultFound

pytestmark = pytest.mark.usefixtures("untried")

LATE = 40  # steps like the first, before those of the program
SNAPSHOT = 5
FEW = ["f066", "t123", "t157"]
MANY = (
    "f071 f096 f100 f103 f104 f112 f113 f114 f115 f127 f138 f142 f151 f160 f182 f184 f199 f204 f223"
    " f268 f273 f286 f291 f293 f302 f311 f361 t028 t042 t044 t078 t092 t097 t104 t140 t145 t146"
).split()

Told = tuple[str, int | None, str, int] | None


def told(program: str, guarded: bool) -> tuple[Told, str]:
    """Cause, line, operator and step that a run names, and what guard says of its replay."""
    (path,) = case_files([program])
    model, step = load(path).build()
    nanlab.last = None
    turns: Iterable[int] = range(LATE + load(path).META["n_steps"])
    if not guarded:
        with nanlab.watch(model):
            for i in turns:
                step(max(i - LATE, 0))
    else:
        try:
            for i in nanlab.guard(turns, model, snapshot=SNAPSHOT):
                step(max(i - LATE, 0))
        except FaultFound:
            pass
    trace = nanlab.last
    culprit = trace.culprit if trace is not None else None
    if culprit is None:
        return None, ""
    return (culprit.cause, culprit.line, culprit.op, culprit.step), str(trace and trace.guarded)


def check(program: str) -> None:
    watched, _ = told(program, guarded=False)
    guarded, replay = told(program, guarded=True)
    assert watched is not None and guarded == watched, (watched, guarded)
    assert replay.endswith("was replayed, bit for bit")


@pytest.mark.parametrize("program", FEW)
def test_a_late_fault_is_told_under_guard_as_under_a_watch(program: str) -> None:
    check(program)


@pytest.mark.slow
@pytest.mark.conformance
@pytest.mark.parametrize("program", MANY)
def test_every_late_fault_is_told_under_guard_as_under_a_watch(program: str) -> None:
    check(program)
