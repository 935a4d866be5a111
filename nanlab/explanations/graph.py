"""Errors of the autograd graph: cut before the loss, with a NaN in it, freed, or overwritten."""

from __future__ import annotations

import re

from nanlab.analysis.graph import (
    Cut,
    GraphFlow,
    Overwritten,
    Reused,
    cuts_before,
    cuts_off_parameters,
    last_root,
    op_of,
    overwritten,
    reused_graph,
)
from nanlab.analysis.provenance import harmful_origins
from nanlab.explanations.explanation import (
    Case,
    Explanation,
    advice,
    means,
    places_frame,
    shape_text,
    spot,
)
from nanlab.findings.rule import Finding
from nanlab.trace import Trace
from nanlab.trace.op import module_name
from nanlab.trace.recording import Recording

# Errors of the autograd graph: cut before the loss, or with a NaN in it.

_WHY = {
    "no-grad": (
        "It ran where gradients are switched off (torch.no_grad, inference_mode or"
        " set_grad_enabled(False))."
    ),
    "sample": "sample() draws under torch.no_grad: no gradient goes through what it returns.",
    "detach": (
        "detach() takes a tensor out of the graph: what is computed from it gives no gradient back."
    ),
    "data": (
        ".data is a view outside of the graph: what is computed from it gives no gradient back."
    ),
    "literal": (
        "torch.tensor and torch.as_tensor copy the numbers of the tensors given; the graph behind"
        " them is lost."
    ),
    "number": (
        "The value was read as a Python number; a tensor made of it later knows nothing of the"
        " graph."
    ),
    "numpy": (
        "The values went through NumPy, which has no graph; a tensor made of the array starts anew."
    ),
    "index": "It chooses indices, and a choice has no derivative.",
    "comparison": "A comparison gives True or False, which has no derivative.",
    "cast": "A cast to an integer or bool has no derivative.",
    "frozen": "It read a parameter with requires_grad=False.",
    "unknown": "Its operand carried gradient and its result does not.",
}
CURES = {
    "no-grad": (
        "compute the loss outside of no_grad",
        "with torch.enable_grad():\n    out = model(x)",
    ),
    "sample": (
        "draw by rsample, or weigh by log_prob what cannot be drawn so",
        "z = q.rsample()  # or loss = -(reward * q.log_prob(z)).mean()",
    ),
    "detach": (
        "leave out detach() on the way to the loss",
        "loss = criterion(out, y)  # out, not out.detach()",
    ),
    "data": ("use the tensor itself, not .data", "loss = criterion(out, y)  # out, not out.data"),
    "literal": (
        "join tensors by an operation of the graph",
        "pred = torch.stack(outputs)  # or torch.cat(outputs)",
    ),
    "number": (
        "keep the tensor; read the number only to print it",
        "total = total + loss  # not loss.item()",
    ),
    "numpy": (
        "use the torch function instead of NumPy's",
        "out = torch.log1p(x)  # not np.log1p(x.detach().numpy())",
    ),
    "index": (
        "use the scores, or a soft choice",
        "loss = F.cross_entropy(scores, y)  # not scores.argmax(-1)",
    ),
    "comparison": (
        "use a smooth stand-in for the threshold",
        "soft = torch.sigmoid((x - threshold) / temperature)",
    ),
    "cast": ("stay in floating point", "out = x.float()  # not x.long()"),
    "frozen": (
        "let the parameters learn",
        "for p in model.parameters():\n    p.requires_grad_(True)",
    ),
    "unknown": (
        "compute this step by differentiable operations",
        "out.requires_grad  # must be True after every operation",
    ),
}


def _cut_explanation(
    case: Case, recording: Recording, cuts: list[Cut], symptom: str
) -> Explanation:
    first = cuts[0]
    rows = [(f"lost gradient ({cut.kind})", cut.position) for cut in cuts[:10]]
    carriers = [
        ("still carried gradient", p) for p in first.carriers or (first.carrier,) if first.known
    ]
    inside = f" in {module_name(first.module)}" if first.module else ""
    if len(first.carriers) > 1:
        held = f" It holds the values of {len(first.carriers)} results that carry gradient."
    else:
        held = ""
    made = re.search(r"\b(tensor|as_tensor|asarray)\(", first.source)
    listed = f"torch.{made[1] if made else 'tensor'}(list)"
    what = {"number": ".item()", "literal": listed, "numpy": ".numpy()"}.get(first.kind, first.op)
    return case.explain(
        "graph-cut",
        f"the graph was cut by {what} at {spot(first.file, first.line)}{inside}",
        f"{symptom} {_WHY[first.kind]}{held}",
        file=first.file,
        line=first.line,
        source=first.source,
        module=first.module,
        evidence=places_frame(recording, [*carriers[:10], *rows]),
        fixes=advice(CURES[first.kind]),
    )


def _without_trace(case: Case, symptom: str) -> Explanation:
    return case.explain(
        "graph-cut",
        "no gradient leads from the loss to the parameters: the graph was cut on the way",
        f"{symptom} Look for torch.tensor or torch.as_tensor of a list of results, .item(),"
        " .detach(), .numpy(), .data, torch.no_grad, argmax or a comparison between the model and"
        " the loss; under a watch nanlab names the line.",
        fixes=advice(
            CURES["literal"],
            CURES["detach"],
            CURES["no-grad"],
            ("let nanlab find the line", "with nanlab.watch(model):\n    step()\nnanlab.explain()"),
        ),
    )


@means(r"No inf checks were recorded for this optimizer")
def no_inf_checks(case: Case) -> Explanation | None:
    """None of the optimizer's parameters has a gradient; nothing to do with infinities."""
    facts, recording = case.failure.facts, case.recording
    count = facts.get("optimizer_parameters")
    of = f"None of the {count} parameters" if count else "None of the parameters"
    symptom = (
        f"The message has nothing to do with infinities: {of[0].lower() + of[1:]} of this optimizer"
        " has a gradient."
    )
    if recording is None:
        return _without_trace(case, symptom)
    root = last_root(recording)
    if root is None:
        return case.explain(
            "backward-missing",
            "scaler.step(optimizer) was called before any backward()",
            symptom,
            fixes=advice(
                (
                    "call backward on the scaled loss first",
                    "scaler.scale(loss).backward()\nscaler.step(optimizer)\nscaler.update()",
                )
            ),
        )
    flow = GraphFlow(recording, facts.get("optimizer_rows", frozenset()))
    cuts = cuts_before(flow, root)
    guilty = [cut for cut in cuts if cuts_off_parameters(flow, cut)]
    if guilty and not flow.reaches_parameter(root):
        return _cut_explanation(case, recording, guilty, symptom)
    if GraphFlow(recording).reaches_parameter(root) and any(
        run.backward_pass == recording.passes[-1].number and run.name == "AccumulateGrad"
        for run in recording.node_runs
    ):
        return _other_parameters(case, recording, symptom)
    return (
        _cut_explanation(case, recording, cuts, symptom) if cuts else _without_trace(case, symptom)
    )


def _other_parameters(case: Case, recording: Recording, symptom: str) -> Explanation:
    last = recording.passes[-1]
    file, line, source = recording.line_at(last.line)
    return case.explain(
        "optimizer-without-gradients",
        f"the backward pass at {spot(file, line)} gave gradients to other parameters than those of"
        " the optimizer",
        f"{symptom} Gradients did arrive elsewhere: the optimizer holds parameters of another model"
        " (one that was copied, moved or built anew after the optimizer was made), they were"
        " cleared by zero_grad() after backward(), or this optimizer's loss was not used.",
        fixes=advice(
            (
                "make the optimizer after the model has its final form",
                "model = model.to(device)\noptimizer = torch.optim.AdamW(model.parameters())",
            )
        ),
        evidence=places_frame(recording, [("loss", root) for root in last.roots]),
        file=file or case.failure.file,
        line=line or case.failure.line,
        source=source or case.failure.source,
    )


@means(r"element \d+ of tensors does not require grad")
def loss_without_graph(case: Case) -> Explanation | None:
    """The loss has no graph at all."""
    symptom = "The loss carries no graph, so there is nothing to differentiate."
    recording = case.recording
    root = last_root(recording) if recording is not None else None
    if recording is None or root is None:
        return _without_trace(case, symptom)
    cuts = cuts_before(GraphFlow(recording), root)
    known = [cut for cut in cuts if cut.known]
    if known:
        return _cut_explanation(case, recording, known, symptom)
    return case.explain(
        "graph-cut",
        "nothing that the loss was computed from requires gradient",
        f"{symptom} No operation on the way to it read a parameter that requires gradient: the"
        " parameters are frozen, or the loss is made of data alone.",
        evidence=places_frame(recording, [("loss", root)]),
        fixes=advice(CURES["frozen"]),
    )


@means(r"Function '(\w+)' returned nan values in its (\d+)\w\w output", first=True)
def backward_returned_nan(case: Case) -> Explanation | None:
    """Anomaly detection names the node where a NaN was seen, not where it was born."""
    node = case.match[1]
    return _by_culprit(
        case,
        f"{node} returned NaN",
        f"{node} is where the NaN was seen first in the backward pass, which need not be where it"
        " was born.",
        f"the gradient that {node} computed is NaN",
        " Its forward operation met a value at the edge of its domain (log or division at 0, root"
        " at 0, an infinity), or got a NaN handed in.",
    )


@means(r"The total norm of order \S+ for gradients from .* is non-finite")
def norm_of_gradients_not_finite(case: Case) -> Explanation | None:
    """Gradient clipping refused a gradient that was bad before it."""
    return _by_culprit(
        case,
        "the norm of the gradients is not finite",
        "Clipping only met what the backward pass had made.",
        "a gradient that was to be clipped holds NaN or infinity, or their norm overflows",
        "",
    )


def _by_culprit(case: Case, seen: str, why: str, title: str, reasons: str) -> Explanation:
    """What was seen of a bad gradient, by what the watch knows of it.

    title, reasons: what is said where it knows nothing.
    """
    culprit = _culprit(case.recording) if case.recording is not None else None
    if culprit is None:
        return case.explain(
            "backward-nan",
            title,
            f"{why}{reasons}",
            fixes=advice(
                (
                    "find where it was born",
                    "with nanlab.watch(model) as trace:\n    step()\ntrace.culprit",
                )
            ),
        )
    return Explanation(
        culprit.cause,
        f"{seen} because of {culprit.op}: {culprit.title}",
        f"{why} {culprit.explanation}".strip(),
        culprit.file,
        culprit.line,
        culprit.source,
        culprit.evidence,
        culprit.fixes,
        culprit.module,
    )


def _culprit(recording: Recording) -> Finding | None:
    return Trace(recording).culprit if next(harmful_origins(recording), None) is not None else None


@means(r"grad can be implicitly created only for scalar outputs")
def loss_not_scalar(case: Case) -> Explanation | None:
    """backward() was called on a tensor with more than one element."""
    shape = next((o.shape for o in case.failure.operands), case.failure.facts.get("loss_shape"))
    of = f" of shape {shape_text(shape)}" if shape is not None else ""
    return case.explain(
        "loss-not-scalar",
        f"backward() was called on a tensor{of}, not on one number",
        "A gradient is that of one number. A loss with reduction='none', or a model's output, has"
        " one for each sample: reduce it first.",
        fixes=advice(
            ("reduce it", "loss.mean().backward()"),
            ("or weigh the elements", "loss.backward(gradient=torch.ones_like(loss))"),
        ),
    )


@means(
    r"Can't call numpy\(\) on Tensor that requires grad|[Cc]an't convert (\S+) device type tensor"
    r" to numpy"
)
def numpy_of_graph(case: Case) -> Explanation | None:
    """NumPy reads the memory of CPU tensors outside of the graph."""
    on = case.match[1]
    code = "array = tensor.detach().cpu().numpy()"
    return case.explain(
        "numpy-of-graph",
        "numpy() was called on a tensor"
        f" {'on ' + on.rstrip(':') if on else 'that carries gradient'}{case.inside}",
        "NumPy reads CPU memory and knows no graph. To look at the values, detach them; if the loss"
        " is computed from the array, the graph ends there and no parameter gets a gradient: use"
        " the torch function then.",
        fixes=advice(
            ("to look at the values", code),
            ("on the way to the loss: stay in torch", "torch.log1p(x)  # not np.log1p(x.numpy())"),
        ),
    )


# Errors of a graph that is gone: freed by an earlier backward pass, or overwritten in place.

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
_GRAPH_KEPT = (
    "keep the graph of a gradient that is differentiated again, or is part of the loss",
    "torch.autograd.grad(u, x, create_graph=True)",
)
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


_KEEPING = ".backward(retain_graph=True)"


def _is_made_once(recording: Recording, found: Reused) -> bool:
    """Whether what two backward passes of one line share is made before both, and no optimizer
    steps between them."""
    first, second = found.first.position, found.second.position
    rows = (op for op in map(recording.op, range(first, second)) if op is not None)
    between = [op for op in rows if not op.backward]
    stepped = any(first <= s.position < second for s in recording.training.optimizer_steps)
    made = found.made
    return made is not None and not stepped and all(op.place != made.line for op in between)


def _reuse_explanation(
    case: Case, recording: Recording, found: Reused, why: str, remedies: list[tuple[str, str]]
) -> Explanation:
    first, second = recording.line_at(found.first.line), recording.line_at(found.second.line)
    made = recording.line_at(found.made.line) if found.made is not None else ("", 0, "")
    op = op_of(recording, found.made)
    same_step = recording.step_of(found.first.position) == recording.step_of(found.second.position)
    again = found.first.line == found.second.line
    if "grad(" in first[2] and same_step:
        remedies = [_GRAPH_KEPT, *remedies[:2]]
        story = "autograd.grad() frees the graph, too, unless it is asked to keep it."
    elif again and _is_made_once(recording, found):
        source = second[2].strip()
        loss, kept = (re.sub(r"\.backward\(\).*", end, source) for end in ("", _KEEPING))
        if loss != source:
            summed = f"total = total + {loss}  # in the loop\ntotal.backward()  # after it"
            remedies = [(remedies[0][0], summed), (remedies[1][0], kept)]
        story = "It is computed once, before several backward passes that reach it."
    elif again or not same_step:
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
        at = recording.line_at(found.made.line)
        rows.append(("saved it", found.made.position))
    if found.written is None:
        title = (
            f"what {saver} at {spot(*at[:2])} had saved was overwritten before the backward pass"
        )
        frame = places_frame(recording, rows)
        return case.explain(
            "inplace-modification", title, _SAVED, evidence=frame, fixes=advice(*_NO_OVERWRITING)
        )
    file, line, source = recording.line_at(recording.at(found.written).place)
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


@means(r"(?:not enough|too many) values to unpack")
def saved_otherwise(case: Case) -> Explanation | None:
    """The backward of an autograd function takes apart other tensors than were saved."""
    if ".saved_tensors" not in case.failure.source:
        return None
    return case.explain(
        "wrong-argument",
        "backward takes apart more or fewer tensors than forward saved",
        "saved_tensors gives what save_for_backward was given, in that order.",
        fixes=advice(("save all that is read", "ctx.save_for_backward(x, weight, gate)")),
    )
