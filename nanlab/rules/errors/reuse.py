"""Errors of a graph that is gone: freed by an earlier backward pass, or overwritten in place."""

from __future__ import annotations

from nanlab.analysis.graph import (
    Overwritten,
    Reused,
    op_of,
    overwritten,
    place,
    place_of,
    reused_graph,
)
from nanlab.rules.errors._explanation import (
    Case,
    Explanation,
    advice,
    means,
    places_frame,
    shape_text,
    spot,
)
from nanlab.trace.recording import Recording

_SAVED = (
    "Autograd had saved the tensor for the backward pass; the in-place operation changed it before"
    " that pass came."
)
_NO_OVERWRITING = [
    (
        "write a new tensor instead",
        "y = y * 2  # not y *= 2, y.mul_(2), y[mask] = 0, relu(inplace=True)",
    ),
    ("change a copy", "y = y.clone()\ny[0] = 0"),
]
_STEP_LAST = (
    "step the optimizer after the last backward",
    "loss_a.backward()\nloss_b.backward()\noptimizer.step()",
)


@means(r"Trying to backward through the graph a second time")
def second_backward(case: Case) -> Explanation | None:
    """A backward pass reached a node whose saved tensors an earlier pass had freed."""
    recording = case.recording
    remedies = [
        ("add the losses up and call backward once", "(loss_a + loss_b).backward()"),
        (
            "keep the graph for the second pass",
            "loss_a.backward(retain_graph=True)\nloss_b.backward()",
        ),
        ("cut what is carried over from the step before", "hidden = hidden.detach()"),
    ]
    why = (
        "The first backward() frees what its nodes had saved; a second one through the same nodes"
        " finds nothing."
    )
    found = reused_graph(recording) if recording is not None else None
    if recording is None or found is None:
        return case.explain(
            "graph-freed",
            "two backward passes went through the same graph",
            why,
            fixes=advice(*remedies),
        )
    return _reuse_explanation(case, recording, found, why, remedies)


def _reuse_explanation(
    case: Case, recording: Recording, found: Reused, why: str, remedies: list[tuple[str, str]]
) -> Explanation:
    first, second = place(recording, found.first.line), place(recording, found.second.line)
    made = place(recording, found.made.line) if found.made is not None else ("", 0, "")
    op = op_of(recording, found.made)
    same_step = recording.step_of(found.first.position) == recording.step_of(found.second.position)
    again = found.first.line == found.second.line
    if again or not same_step:
        remedies = [remedies[2], *remedies[:2]]
        story = (
            "It is carried over from an earlier step (a hidden state, a running sum, a result made"
            " once)."
        )
    else:
        story = "Two losses share it."
    rows = [("shared node", found.made.position)] if found.made is not None else []
    evidence = places_frame(recording, rows)
    evidence["nodes_shared"] = found.shared
    return case.explain(
        "graph-freed",
        f"backward at {spot(*second[:2])} reached {op} at {spot(*made[:2])}, which backward at"
        f" {spot(*first[:2])} had freed",
        f"{why} {story} The graphs of both passes share {found.shared} nodes; the first that had"
        f" lost its tensors is {op}, made at {spot(*made[:2])}.",
        file=second[0] or case.failure.file,
        line=second[1] or case.failure.line,
        source=second[2] or case.failure.source,
        module=recording.modules.items[found.made.module] if found.made is not None else "",
        evidence=evidence,
        fixes=advice(*remedies),
    )


@means(
    r"modified by an inplace operation(?:: \[\S+ \[([\d, ]*)\]\](?:, which is output \d+ of"
    r" (\w+),)?"
    r" is at version (\d+); expected version (\d+))?"
)
def overwritten_tensor(case: Case) -> Explanation | None:
    """A tensor that the backward pass needs was overwritten after it was saved."""
    match, recording = case.match, case.recording
    shape = (
        tuple(int(n) for n in match[1].split(",")) if match[1] else (() if match[1] == "" else None)
    )
    found = overwritten(recording, shape) if recording is not None else None
    if recording is not None and found is not None:
        return _named_writer(case, recording, found)
    named = f", the result of {match[2]}," if match[2] else ""
    size = f" of shape {shape_text(shape)}" if shape is not None else ""
    title = f"a tensor{size}{named} was overwritten before the backward pass"
    return case.explain("inplace-modification", title, _SAVED, fixes=advice(*_NO_OVERWRITING))


def _named_writer(case: Case, recording: Recording, found: Overwritten) -> Explanation:
    saver, at = op_of(recording, found.made), ("", 0, "")
    rows = []
    if found.made is not None:
        at = place(recording, found.made.line)
        rows.append(("saved it", found.made.position))
    if found.written is None:
        title = (
            f"what {saver} at {spot(*at[:2])} had saved was overwritten before the backward pass"
        )
        frame = places_frame(recording, rows)
        return case.explain(
            "inplace-modification", title, _SAVED, evidence=frame, fixes=advice(*_NO_OVERWRITING)
        )
    file, line, source = place_of(recording, found.written)
    frame = places_frame(recording, [*rows, ("overwrote it", found.written)])
    writer = frame["op"].iloc[-1]
    what = {True: " (its operand)", False: " (its result)", None: ""}[found.operand]
    updated = writer.startswith("_foreach") or ".step(" in source
    return case.explain(
        "inplace-modification",
        f"{writer} at {spot(file, line)} overwrote what {saver} at {spot(*at[:2])} had saved{what}",
        _SAVED,
        file=file,
        line=line,
        source=source,
        module=frame["module"].iloc[-1],
        evidence=frame,
        fixes=advice(*([_STEP_LAST] if updated else []), *_NO_OVERWRITING),
    )
