"""Judges the diagnosis by the corpus: `python tests/score.py [f001 ...] [--twins]` prints a line a
program and the shares.

A fault counts as detected; with the marked line; the operator, phase, cause and step that its META
declares; and a fix that was verified. A healthy program, and a repaired twin, must have no finding
of severity "error".
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import sys
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "corpus"))
sys.path.insert(0, str(Path(__file__).parent.parent))

import harness
import torch
from programs import Program, programs

import nanlab
from nanlab.analysis.provenance import harmful_origins
from nanlab.findings.fault import finding_of
from nanlab.rules import BUILTIN, Fault, explained, ranked

GIVEN = ("init", "data")
TRY_FIXES = True
PARTS = ("detected", "line", "op", "phase", "cause", "step", "verified")


@dataclass(frozen=True)
class Answer:
    """What nanlab said of one program."""

    cause: str = ""
    file: str = ""
    line: int = 0
    op: str = ""
    phase: str = ""
    step: int = -1
    title: str = ""
    verified: bool = False
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    error: str = ""
    unclear: tuple[str, ...] = ()


@dataclass(frozen=True)
class Score:
    """An answer held against what a program declares of itself."""

    name: str
    answer: Answer
    right: dict[str, bool] = field(default_factory=dict)  # of a fault; empty for a healthy program
    alarm: bool = False  # of a healthy program or a twin

    def __str__(self) -> str:
        words = " ".join(part if good else f"-{part}" for part, good in self.right.items()) or (
            "ALARM" if self.alarm else "quiet"
        )
        answer = self.answer
        wrong = (
            self.alarm
            or any(not good for part, good in self.right.items() if part != "verified")
            or answer.notes
            or answer.unclear
        )
        seen = (
            f"{answer.cause} {answer.op} {answer.phase} line {answer.line} step {answer.step}:"
            f" {answer.title}"
        )
        return f"{self.name:44s} {words} {answer.error}" + (
            f"\n      got {seen} {[*answer.notes, *answer.unclear]}" if wrong else ""
        )


def plain(op: str) -> str:
    """The name of an operator without the marks of autograd and of in-place variants."""
    return re.sub(r"backward\d*$|[_\d]", "", op.lower())


def watch(program: Path | Program, fixed: bool = False) -> Answer:
    """Run a program under a watch; of a fault of data or initialisation the building of the program
    too."""
    if isinstance(program, Path):
        module = harness.load(program)
        build, meta = module.build, module.META
    else:
        build, meta = program.build, program.meta
    if meta.get("phase") in GIVEN or meta.get("building"):
        with nanlab.watch(on_fault="record") as trace:
            _, step = build(fixed)
            for i in range(meta["n_steps"]):
                step(i)
    else:
        model, step = build(fixed)
        with nanlab.watch(model, on_fault="record") as trace:
            for i in range(meta["n_steps"]):
                step(i)
    return answer_of(trace)


def answer_of(trace: nanlab.Trace) -> Answer:
    """The culprit of a trace, or the first finding that is an error."""
    findings = trace.findings
    found = trace.culprit or next((f for f in findings if f.severity == "error"), None)
    told, notes = tuple(f.cause for f in findings), tuple(trace.notes)
    if found is None:
        return Answer(findings=told, notes=notes)
    verified = TRY_FIXES and any(f.verified for f in found.fixes)
    place = (found.cause, found.file, found.line, found.op, found.phase, found.step)
    return Answer(*place, found.title, verified, told, notes, unclear=unclear(trace))


def unclear(trace: nanlab.Trace) -> tuple[str, ...]:
    """Pairs of causes between which the order decides in which rules were registered."""
    orders = [
        [one for one in ranked(rules) if one.over == "fault"] for rules in (BUILTIN, BUILTIN[::-1])
    ]
    pairs = []
    for origin in harmful_origins(trace.recording):
        fault = Fault(trace, origin, finding_of(trace, origin))
        one, other = (explained(trace, fault, judges).cause for judges in orders)
        if one != other:
            pairs.append(f"{one} or {other}, by the order of the rules")
    return tuple(pairs)


def judge(program: Path | Program, answer: Answer, fixed: bool = False) -> Score:
    """Hold an answer against META and marks."""
    if isinstance(program, Path):
        name, path = program.stem, program
        meta, marks = harness.load(path).META, harness.markers(path)
        first = harness.first_bad_step(path) if "cause" in meta else -1
    else:
        name, path, meta, marks = program.name, program.path, program.meta, program.marks
        first = meta.get("first_bad_step", -1)
    if fixed or "cause" not in meta:
        return Score(name + " (twin)" * fixed, answer, alarm=bool(answer.cause))
    given = meta["phase"] in GIVEN
    lines = [*marks["ORIGIN"], *marks["ALSO"], *marks["FIRST"], *(marks["DATA"] if given else [])]
    ops = {plain(op) for op in (meta["origin_op"], *meta.get("also_ops", ()))}
    phases = {meta["phase"], meta.get("also_phase", meta["phase"]), *(GIVEN if given else ())}
    detected = bool(answer.cause)
    right = {
        "detected": detected,
        "line": Path(answer.file).name == path.name and answer.line in lines,
        "op": plain(answer.op) in ops,
        "phase": answer.phase in phases,
        "cause": answer.cause in {meta["cause"], *meta.get("also_causes", ())},
        "step": answer.step == first,
        "verified": answer.verified,
    }
    return Score(name, answer, {part: detected and good for part, good in right.items()})


def _child(connection: Any, path: Path | Program, fixed: bool) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    try:
        answer = watch(path, fixed)
    except Exception as error:
        answer = Answer(error=f"{type(error).__name__}: {error}"[:300])
    connection.send(answer)


def score(path: Path | Program, fixed: bool = False, limit: float = 120) -> Score:
    """Run one program in a process of its own, forked so that torch is imported once."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=_child, args=(there, path, fixed))
    process.start()
    there.close()
    answer = Answer(error="no answer")
    if here.poll(limit):
        try:
            answer = here.recv()
        except EOFError:
            answer = Answer(error="died")
    if process.is_alive():
        process.terminate()
    process.join()
    return judge(path, answer, fixed)


def warm_up() -> None:
    """Watch one fault, so that the forked processes find everything imported and compiled."""
    torch.set_num_threads(1)
    scale = torch.ones((), requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        (torch.log(torch.zeros(3)) * scale).sum().backward()
    answer_of(trace)


def shares(scores: Iterable[Score]) -> dict[str, float]:
    """Share of the faults in which each part of the answer is right."""
    faults = [s.right for s in scores if s.right]
    return {part: sum(r[part] for r in faults) / len(faults) for part in PARTS} if faults else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", help="parts of program names")
    parser.add_argument("--kind", default="fth", help="f: faults, t: training loop, h: healthy")
    parser.add_argument("--twins", action="store_true", help="run the repaired twins too")
    parser.add_argument("--causes", action="store_true", help="leave the fixes untried")
    parser.add_argument("--fields", action="store_true", help="the programs of corpus/fields alone")
    arguments = parser.parse_args()
    scores = []
    global TRY_FIXES
    TRY_FIXES = not arguments.causes
    warm_up()
    cases = [] if arguments.fields else harness.case_files(arguments.only, arguments.kind)
    for program in [*cases, *programs(arguments.only, arguments.kind)]:
        for fixed in (
            (False, True) if arguments.twins and not program.name.startswith("h") else (False,)
        ):
            scores.append(score(program, fixed))
            print(scores[-1], flush=True)
    found = ", ".join(f"{part} {100 * share:.0f} %" for part, share in shares(scores).items())
    print(
        f"{sum(bool(s.right) for s in scores)} faults: {found}; {sum(s.alarm for s in scores)}"
        " false alarms"
    )


if __name__ == "__main__":
    main()
