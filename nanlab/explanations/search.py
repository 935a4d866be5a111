"""The edits with which a program that raised ends, and the likeliest of them.

All that could be tried is ordered by how unusual the mistake would be. The first with which the
program ends and does no harm is taken: each parameter that is to learn gets a gradient, no operands
are broadcast over each other, no call now and then gives a result of another rank. Where there is
none, edits with which the program came further before it raised are tried together with those of
what it raised then.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from nanlab.explanations.edits import (
    calls,
    cuts,
    definitions,
    graphs,
    misnamed,
    numbers,
    parameters,
    said_elsewhere,
    sizes,
    spellings,
    structures,
    values,
    writes,
    written_parts,
)
from nanlab.explanations.site import Candidate, Site
from nanlab.explanations.trial import (
    Program,
)
from nanlab.findings.rule import Edit

_NEAR = 160  # edits that are tried before two together are
_MOST = 600  # that are tried for one exception
_FURTHER = 4  # of those with which the program came further, that are tried with others
_UNUSUAL = 1.5  # by which a mistake may be more unusual than another that does harm
Kind = Callable[..., Iterator[Candidate]]
_OF_SITE: tuple[Kind, ...] = (
    spellings,
    misnamed,
    parameters,
    definitions,
    numbers,
    cuts,
    writes,
    graphs,
)
_OF_PLACE: tuple[Kind, ...] = (structures, calls, said_elsewhere, written_parts, values, sizes)


def mend(
    error: BaseException,
    line: tuple[str, int] = ("", 0),
    first: Sequence[tuple[Edit, ...]] = (),
) -> tuple[Edit, ...] | None:
    """The likeliest edits with which the program no longer raises; none where none was found;
    None where nothing could be tried.

    line: that is known to be at fault. first: edits that are tried before all others.
    """
    site = Site.of(error, line)
    if site is None or not site.raising or isinstance(site.raising[0].statement, ast.Raise):
        return None
    program = site.program
    made = [*(Candidate(0.0, edits) for edits in first), *_candidates(site)]
    ran, further = _tried(program, made[:_NEAR])
    for before in further[:_FURTHER]:  # the program came further with them, and raised again
        if any(not any(each.harms) for each in ran):
            break
        ran += _tried_after(program, before)
    if not ran:
        ran, _ = _tried(program, made[_NEAR:_MOST])
    if ran:
        return min(ran, key=partial(_rank, ran)).candidate.edits
    return () if any(program.controls.values()) else None


@dataclass(frozen=True)
class Ran:
    """A candidate with which the program ended, and how much of each harm it did then."""

    candidate: Candidate
    harms: tuple[int, ...]


def _rank(all_: Sequence[Ran], one: Ran) -> tuple[int, float]:
    """In how many ways it does more harm than others, then how unusual the mistake is."""
    least = [min(each) for each in zip(*(other.harms for other in all_), strict=True)]
    return sum(own > best for own, best in zip(one.harms, least, strict=True)), one.candidate.cost


def _candidates(site: Site) -> list[Candidate]:
    """All that could be tried, the likeliest first. A kind of edit that fails costs what it would
    have found at one place, and nothing else."""
    kinds = [partial(kind, site) for kind in _OF_SITE]
    kinds += [partial(kind, site, place) for kind in _OF_PLACE for place in site.places]
    found: list[Candidate] = []
    for kind in kinds:
        with suppress(Exception):
            found += (candidate for candidate in kind() if candidate.edits)
    ordered = sorted(found, key=lambda each: each.cost)
    cheapest: dict[tuple[Edit, ...], Candidate] = {}
    for candidate in ordered:
        cheapest.setdefault(candidate.edits, candidate)
    return list(cheapest.values())


def _tried(program: Program, made: Sequence[Candidate]) -> tuple[list[Ran], list[Candidate]]:
    """The candidates with which the program ends, up to the first that does no harm, or some more
    than the first; and those with which it came further before it raised."""
    ran: list[Ran] = []
    late: list[Candidate] = []
    further: list[tuple[bool, float, Candidate]] = []
    for at, outcome in program.tried([each.edits for each in made]):
        if ran and made[at].cost > ran[0].candidate.cost + _UNUSUAL:
            break
        if outcome.kind == "ran":
            harms = program.runs_alone(made[at].edits)
            ran += [Ran(made[at], harms)] if harms is not None else []
            if harms is not None and not any(harms):
                break
        elif outcome.kind == "late":
            late.append(made[at])
        elif how := program.progress(made[at].edits, outcome):
            further.append((how == 1, made[at].cost, made[at]))
    further.sort(key=lambda each: each[:2])
    if late and not ran and (harms := program.runs_alone(late[0].edits)) is not None:
        ran.append(Ran(late[0], harms))
    return ran, [each for *_, each in further]


def _tried_after(program: Program, before: Candidate) -> list[Ran]:
    """The candidates for what the program raises after an edit, together with it."""

    def propose(error: BaseException) -> list[tuple[float, tuple[Edit, ...]]]:
        site = Site.of(error)
        return [(each.cost, each.edits) for each in _candidates(site)] if site is not None else []

    ran = []
    for outcome in program.tried_further(before.edits, propose):
        if outcome.kind == "ran":
            harms = program.runs_alone(outcome.edits)
            both = Candidate(before.cost + outcome.cost, outcome.edits)
            ran += [Ran(both, harms)] if harms is not None else []
            if harms is not None and not any(harms):
                break
    return ran
