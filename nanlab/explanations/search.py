"""The smallest edits with which a program that raised runs.

No message is looked up. The values in the frames of the exception say what kind of thing each
operand is; each kind has its own small edits, at the line that raised, where its operands were
bound, where the layers were built and in the calls above. They are tried in the order of their
cost, which says how common such a mistake is.
"""

from __future__ import annotations

import ast
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from nanlab.explanations.edits import (
    arguments,
    batches,
    calls,
    columns,
    counts,
    defaults,
    devices,
    distributions,
    documents,
    forms,
    functions,
    gradients,
    hints,
    hooks,
    indices,
    labels,
    layouts,
    names,
    optimizers,
    orders,
    outputs,
    parametrizations,
    products,
    records,
    saved,
    sequences,
    sharing,
    sizes,
    solvers,
    spectra,
    statements,
    tables,
    texts,
    tracing,
    values,
    writes,
)
from nanlab.explanations.site import Candidate, Site, Tensor, bound_by, names_in, rows_of
from nanlab.explanations.trial import Outcome, Program, Source, difference, edited, laid_out
from nanlab.findings.rule import Edit

_MOST = 600  # edits that are tried for one exception
_MOVED = 4  # of those with which another is raised later, that a second edit is sought for
_SECOND = 100  # second edits that are tried after one
_RIVALS = 24  # edits that are compared with the first that lets the program run
_NEAR = 0.4  # how much less usual they may be
_BY_CHANCE = ("other_forms", "other_numbers", "other_dimensions", "other_sizes")
_STEEP = 3.0  # how fast the likelihood falls with the cost
_AGAIN = 0.5  # how unusual it is that a program has two mistakes


# Generators of edits, by the statements that they are asked for: a property of Site.
_OF_PLACES: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("at_error", (names.near_names, names.without_dots, names.those_that_have_it)),
    ("at_error", (names.without_gradient, names.where_it_is_given, names.lists)),
    ("raising", (names.of_first_part,)),
    ("raising", (functions.layer_by_layer, gradients.columns_joined, values.in_range)),
    ("raising", (gradients.of_what_it_is_asked_for, gradients.never_learned)),
    ("raising", (batches.steps_first, batches.of_one_key)),
    ("at_error", (names.of_first,)),
    ("bindings", (names.of_all_data,)),
    ("at_error", (names.of_texts, names.hidden, names.of_function_around, names.shadowed)),
    ("at_error", (indices.one_by_one, indices.by_position, indices.after_the_last)),
    ("bound", (indices.in_the_whole,)),
    ("at_error", (values.written_in_part, values.written_as)),
    ("bound", (values.compared,)),
    ("at_error", (statements.chosen, statements.without_repeated, gradients.in_graph)),
    ("bound", (statements.earlier,)),
    ("raising", (distributions.allowed, distributions.as_drawn)),
    ("at_error", (statements.with_closure,)),
    ("raising", (statements.fitting, statements.of_what_was_saved, batches.whole_batches)),
    ("raising", (batches.without_one_alone,)),
    ("raising", (statements.within_sequence,)),
    ("raising", (batches.without_none, batches.as_many, batches.of_one_at_least)),
    ("raising", (batches.starts_of_bags, batches.begun_anew, values.turned_masks)),
    ("raising", (values.one_for_each_class, values.of_both_directions, distributions.as_one_event)),
    ("raising", (distributions.as_diagonal, values.shortened, gradients.as_the_result)),
    ("at_error", (statements.with_none,)),
    ("raising", (gradients.on_last_round,)),
    ("bound", (values.of_the_other,)),
    ("raising", (values.of_its_round,)),
    ("bound", (sizes.size_of_argument, sizes.size_of_other, sizes.whole)),
    ("raising", (sizes.left_open, sizes.as_another_argument)),
    ("at_error", (sizes.all_dimensions, sizes.no_more_than_there_are)),
    ("at_error", (optimizers.that_have_one,)),
    ("bindings", (optimizers.listed_once,)),
    ("raising", (sizes.rest_of_parts,)),
    ("places", (statements.joined_lists, statements.unpacked)),
    ("bindings", (statements.exchanged_names,)),
    ("at_error", (statements.listed,)),
    ("places", (statements.registered, batches.loaded)),
    ("calls", (sizes.of_groups, distributions.with_jitter)),
    ("at_error", (optimizers.of_other_groups,)),
    ("calls", (optimizers.without_groups, optimizers.one_after_the_other, calls.options)),
    ("calls", (calls.counted, calls.told_by_data, arguments.exchanged, functions.reduced)),
    ("calls", (calls.near_options, calls.mapped_axes, functions.siblings, functions.equations)),
    ("calls", (arguments.told_shapes, functions.picked, calls.alone, functions.uncalled)),
    ("calls", (arguments.by_name, arguments.arguments, arguments.tensors, arguments.whole_numbers)),
    ("calls", (arguments.by_keyword,)),
    ("calls", (functions.of_one_number, arguments.of_other_widths)),
    ("bound", (arguments.in_bounds,)),
    ("raising", (layouts.as_bytes,)),
    ("calls", (layouts.as_generators,)),
    ("operands", (layouts.in_other_layouts, forms.other_forms)),
    ("at_error", (forms.in_functions,)),
    ("bound", (values.in_torch, texts.in_columns)),
    ("places", (values.in_single_precision, values.as_elsewhere, values.other_part)),
    ("at_error", (values.cut_alike, values.after_the_window, values.channels_first)),
    ("places", (sizes.other_dimensions,)),
    ("raising", (sizes.other_axes,)),
    ("places", (sizes.kept_dimensions,)),
    ("sized", (sizes.other_sizes,)),
    ("at_error", (statements.computed_anew,)),
    ("raising", (products.other_products,)),
    ("bound", (gradients.uncut,)),
    ("at_error", (gradients.mapped,)),
    ("bindings", (gradients.mapped_memory,)),
    ("at_error", (gradients.held_results,)),
    ("bound", (gradients.scores, gradients.out_of_place)),
    ("at_error", (gradients.counts_copied, gradients.idle_for_now)),
    ("bindings", (gradients.with_gradient,)),
)
_FILES = [batches, arguments, functions, calls, names, sharing, statements, values, sizes]
_FILES += [gradients, optimizers, distributions, devices, texts, writes]
_FILES += [indices, labels, layouts, parametrizations, documents, solvers, orders]
_FILES += [
    columns,
    counts,
    defaults,
    outputs,
    products,
    records,
    saved,
    sequences,
    spectra,
    tables,
    hooks,
    tracing,
    hints,
]
# Those that look for their statements themselves: each that takes a site alone.
_ALONE = {"site": "Site", "return": "Iterator[Candidate]"}
_OF_PROGRAM = [
    kind
    for file in _FILES
    for name, kind in vars(file).items()
    if getattr(kind, "__annotations__", {}) == _ALONE and name[0] != "_"
]


def mend(error: BaseException, line: tuple[str, int] = ("", 0)) -> tuple[Edit, ...] | None:
    """The smallest edits with which the program no longer raises; none where none was found;
    None where nothing could be tried.

    line: that is known to be at fault.
    """
    site = Site.of(error, line)
    if site is None or not site.raising:
        return None
    kinds = (ast.Raise, ast.Assert) if isinstance(error, AssertionError) else ast.Raise
    if isinstance(site.raising[0].statement, kinds):
        return None  # the program's own judgement
    found = _tried(site)
    program = site.program
    at = program.first([each.edits for each in found], partial(_near, found))
    chosen, compared = found[at] if at is not None else None, program.compared
    most = chosen.cost if chosen is not None else math.inf
    moving = [each for each in _moving(found, program) if each.cost + _AGAIN < most]
    pairs = [pair for each in moving for pair in _onward(site, each) if pair.cost < most]
    pairs.sort(key=lambda each: each.cost)
    paired = program.first([each.edits for each in pairs]) if pairs else None
    if paired is not None:
        return _as_written(program, pairs[paired].edits)
    if at is not None:
        rivals = [found[n] for n in (at, *_near(found, at))]
        return _as_written(program, _likeliest(rivals, compared).edits)
    return () if any(program.controls.values()) else None


def _as_written(program: Program, edits: Sequence[Edit]) -> tuple[Edit, ...]:
    """Edits, each of those lines alone that it changes."""
    pairs = [(program.source(edit.file), edit) for edit in edits]
    return tuple(e for of, edit in pairs for e in (laid_out(of, [edit]) if of else [edit]))


def _near(found: Sequence[Candidate], at: int) -> range:
    """The numbers of the edits that nearly are as likely as one that may fit by chance."""
    costs = [each.cost for each in found[at + 1 : at + _RIVALS]]
    near = sum(cost <= found[at].cost + _NEAR for cost in costs)
    return range(at + 1, at + 1 + near * (found[at].kind in _BY_CHANCE))


def _likeliest(rivals: Sequence[Candidate], outcomes: Sequence[Outcome]) -> Candidate:
    """The first of these edits, which lets the program run, or another that nearly is as likely.

    Where several edits of a kind fit, with other results, each may fit by chance; different kinds
    that give the same result support each other.
    """
    running = [(one, o.result) for one, o in zip(rivals, outcomes, strict=False) if o.kind == "ran"]
    results: dict[str, set[str]] = {}
    for one, result in running:
        results.setdefault(one.kind, set()).add(result)
    support: dict[str, dict[str, float]] = {}
    for one, result in running:
        likely = math.exp(-_STEEP * one.cost) / len(results[one.kind])
        kinds = support.setdefault(result, {})
        kinds[one.kind] = max(likely, kinds.get(one.kind, 0.0))
    best = max(support, key=lambda result: sum(support[result].values()), default="")
    return next((one for one, result in running if result == best), rivals[0])


def _moving(found: Sequence[Candidate], program: Program) -> list[Candidate]:
    """Edits with which another exception is raised later: the likeliest for each of those."""
    ways: dict[tuple[str, tuple[int, ...]], list[Candidate]] = {}
    for at, (doubt, outcome) in program.onward.items():
        moved = replace(found[at], cost=found[at].cost + doubt)
        ways.setdefault((outcome.error, outcome.lines), []).append(moved)
    least = [min(each, key=lambda one: one.cost) for each in ways.values()]
    return sorted(least, key=lambda each: each.cost)[:_MOVED]


def _tried(site: Site) -> list[Candidate]:
    """All edits, the cheapest first, each once."""
    found: list[Candidate] = []
    alike = {lines: rows for source in site.program.texts for lines, rows in _alike(source).items()}
    for candidate in _candidates(site):
        found.append(candidate)
        if len(candidate.edits) == 1:
            edit = candidate.edits[0]
            rows = alike.get((edit.file, edit.first, edit.last), [])
            found += _twins(site, candidate, rows)
    ordered: dict[tuple[Edit, ...], Candidate] = {}
    for each in sorted(found, key=lambda each: each.cost):
        ordered.setdefault(each.edits, each)
    return [each for each in ordered.values() if each.edits and not _evades(site, each)][:_MOST]


def _evades(site: Site, candidate: Candidate) -> bool:
    """Whether an edit differentiates something else than the loss that the program has, cuts what
    is computed again or no longer computes it again, makes whole numbers of what is differentiated
    or of what a distribution does not have, sorts the other way round, or draws from another number
    of choices."""
    again = type(site.error).__name__ == "CheckpointError"
    if "probability tensor" in site.text and candidate.kind in _OF_SIZES:
        return True
    for edit in candidate.edits:
        old, new = (_DERIVED.findall(text) for text in (edit.old, edit.text))
        for before, after in zip(old, new, strict=False):
            kept = set(re.findall(r"[A-Za-z_]\w*", before)) & set(re.findall(r"\w+", after))
            other = len(old) == len(new) and not kept and _is_loss(site, before)
            if other and not _are_related(site, before, after):
                return True
        whole = len(_WHOLE.findall(edit.text)) > len(_WHOLE.findall(edit.old))
        if whole and _differentiates(site):
            return True
        whole = whole or edit.text.count("//") > edit.old.count("//")
        if whole and "the support" in site.text and not _is_whole_already(site):
            return True
        if again and len(_UNDONE.findall(edit.text)) > len(_UNDONE.findall(edit.old)):
            return True
        if _DIRECTIONS.findall(edit.old) != _DIRECTIONS.findall(edit.text):
            return True
    return False


def _is_loss(site: Site, text: str) -> bool:
    """Whether a name stands for something that can be differentiated."""
    known = (place.names().get(text) for place in site.raising)
    return any(isinstance(v, Tensor) and v.requires_grad for v in known)


def _are_related(site: Site, one: str, other: str) -> bool:
    """Whether one of two names is computed from the other, as a sum is from its parts."""
    rows = [place.statement for place in site.statements()]
    pairs = [(bound_by(row), names_in(getattr(row, "value", row))) for row in rows]
    both = ((one, other), (other, one))
    return any(a in bound and b in read for bound, read in pairs for a, b in both)


def _differentiates(site: Site) -> bool:
    """Whether the engine of autograd raised."""
    return any(frame.f_code.co_name == "_engine_run_backward" for frame in site.inner)


def _is_whole_already(site: Site) -> bool:
    """Whether what a distribution was asked for are whole numbers, whatever their dtype."""
    asked = [f.f_locals.get("value") for f in site.inner if f.f_code.co_name == "_validate_sample"]
    return all(isinstance(v, Tensor) and bool((v == v.round()).all()) for v in asked)


_WHOLE = re.compile(r"\.(?:long|int|short|bool|byte)\(")
_OF_SIZES = ("options", "other_sizes", "other_numbers")
_DIRECTIONS = re.compile(r"\b(?:descending|largest|reverse) ?= ?(True|False)")
_UNDONE = re.compile(r"\bdetach\(|\b\w*checkpoint\w* ?= ?False")
_DERIVED = re.compile(r"([\w.()\[\]]+?)\.backward\(")


def _onward(site: Site, first: Candidate) -> list[Candidate]:
    """An edit with another one, for the exception that the program raises with it."""

    def looked(error: BaseException) -> list[Candidate]:
        onward = Site.of(error)
        if onward is None or not onward.raising:
            return []
        found = []
        for each in _tried(onward)[:_SECOND]:
            both: list[Edit] = []
            for source in onward.program.texts:
                old = site.program.source(source.shown)
                if old is not None:
                    both += difference(old, edited(source, each.edits))
            found.append(Candidate(each.cost, tuple(both)))
        return found

    more = _AGAIN + first.cost
    seen: list[Candidate] = site.program.after(first.edits, looked)
    return [replace(each, cost=each.cost + more) for each in seen]


def _candidates(site: Site) -> Iterator[Candidate]:
    """All edits; a kind that fails at one part of a statement says so, and costs no other."""
    by_zero = isinstance(site.error, ZeroDivisionError)  # any other number ends it
    asked = [partial(kind, site) for kind in ([batches.never_empty] if by_zero else _OF_PROGRAM)]
    for name, kinds in _OF_PLACES if not by_zero else ():
        places = [at if isinstance(at, tuple) else (at,) for at in getattr(site, name)]
        asked += [partial(kind, site, *at) for kind in kinds for at in places]
    for kind in asked:
        try:
            for each in kind():
                name = getattr(kind.func, "__name__", "")
                yield replace(each, kind=name)
        except Exception as error:
            traced = "symbolic" in str(error) and "symbolic" in site.text
            if traced or repr(error) == repr(site.error):
                continue  # it met what the program met
            told = f"internal error in nanlab ({type(error).__name__}: {error})"
            warnings.warn(f"{told}: not every edit was tried", RuntimeWarning, stacklevel=2)


def _alike(source: Source) -> dict[tuple[str, int, int], list[ast.stmt]]:
    """Statements of one block that differ by their names alone, by the lines of each."""
    found: dict[tuple[str, int, int], list[ast.stmt]] = {}
    for block in source.nodes:
        forms: dict[str, list[ast.stmt]] = {}
        for row in rows_of(block):
            if isinstance(row, (ast.Assign, ast.AugAssign)):
                forms.setdefault(re.sub(r"(?<!func=Name\()id='\w+'", "", ast.dump(row)), []).append(
                    row
                )
        for rows in forms.values():
            found |= {(source.shown, row.lineno, row.end_lineno or 0): rows for row in rows}
    return found


def _twins(site: Site, candidate: Candidate, alike: Sequence[ast.stmt]) -> Iterator[Candidate]:
    """The same edit of statements of the block that differ by their names alone, too."""
    edit, edits = candidate.edits[0], [candidate.edits[0]]
    source = site.program.source(edit.file)
    lines = source.lines if source is not None and len(alike) > 1 else []
    own = next((row for row in alike if row.lineno == edit.first), None)
    for row in alike:
        names = _renaming(own, row) if own is not None and row is not own else {}
        if own is not None and names and bound_by(row) != bound_by(own):
            parts = re.split(r"((?<![\w.])\w+)", edit.text)
            text = "".join(names.get(part, part) for part in parts)
            old = "\n".join(lines[row.lineno - 1 : row.end_lineno])
            edits.append(Edit(edit.file, row.lineno, row.end_lineno or 0, text, old))
    if len(edits) > 1:
        yield replace(candidate, cost=candidate.cost + 0.03, edits=tuple(edits))


def _renaming(one: ast.stmt, other: ast.stmt) -> dict[str, str]:
    """The names of one statement by those of another that is written alike; empty where one name
    would stand for several."""
    pairs = [[n.id for n in ast.walk(s) if isinstance(n, ast.Name)] for s in (one, other)]
    found = dict(zip(*pairs, strict=True))
    return found if [found[name] for name in pairs[0]] == pairs[1] else {}
