"""Errors of shapes: a product, a sum or a layer whose sizes do not fit, and a checkpoint of another
model."""

from __future__ import annotations

import math
import re

import pandas as pd

from nanlab.rules.errors._explanation import (
    Case,
    Explanation,
    advice,
    means,
    operands_frame,
    shape_text,
)
from nanlab.trace.failure import Operand


@means(
    r"mat1 and mat2 shapes cannot be multiplied \((\d+)x(\d+) and (\d+)x(\d+)\)"
    r"|size mismatch, got input \((\d+)\), mat \((\d+)x(\d+)\), vec \((\d+)\)"
    r"|Expected size for first two dimensions of batch2 tensor to be: \[(\d+), (\d+)\] but got:"
    r" \[(\d+), (\d+)\]"
    r"|inconsistent tensor size, expected tensor \[(\d+)\] and src \[(\d+)\] to have the same"
    r" number of elements"
)
def product_mismatch(case: Case) -> Explanation | None:
    """The inner sizes of a matrix product differ."""
    failure, numbers = case.failure, [int(g) for g in case.match.groups() if g]
    if failure.module_type == "Linear" and "in_features" in failure.facts:
        return _linear(case)
    if len(numbers) == 4 and case.match[1]:
        left, right = numbers[1], numbers[2]
        shapes = f"{numbers[0]} x {numbers[1]} times {numbers[2]} x {numbers[3]}"
    elif case.match[9]:
        left, right = numbers[1], numbers[3]
        shapes = (
            " times ".join(shape_text(o.shape) for o in failure.operands[-2:])
            or f"batches of inner size {left} and {right}"
        )
    else:
        left, right = numbers[-2], numbers[-1]
        shapes = f"inner sizes {left} and {right}"
    turned = len(numbers) == 4 and numbers[1] == numbers[3]
    first = (
        ("transpose the second", "scores = q @ k.transpose(-1, -2)")
        if turned
        else ("bring the sizes together", "print(a.shape, b.shape)  # (..., n, k) @ (..., k, m)")
    )
    return case.explain(
        "shape-mismatch",
        f"matrix product of {shapes}: {left} and {right} must be equal{case.inside}",
        "The last dimension of the first factor is summed against the last but one of the second.",
        evidence=operands_frame(failure.operands),
        fixes=advice(first),
    )


def _linear(case: Case) -> Explanation:
    facts = case.failure.facts
    wants = facts["in_features"]
    inputs: list[Operand] = facts.get("inputs", [])
    shape = inputs[0].shape if inputs else ()
    got = shape[-1] if shape else "another size"
    flat = 1
    for size in shape[1:]:
        flat *= size
    fixes = [
        (
            f"let the layer take {got} features",
            f"nn.Linear({got}, {facts.get('out_features', '...')})",
        )
    ]
    if len(shape) > 2 and flat == wants:
        fixes.insert(0, ("flatten all but the batch first", "x = x.flatten(1)"))
    elif shape and len(shape) > 1 and shape[-2] == wants:
        fixes.insert(
            0, ("the features are in the last but one dimension", "x = x.transpose(-1, -2)")
        )
    fixes.append(
        ("let the first batch decide", f"nn.LazyLinear({facts.get('out_features', '...')})")
    )
    return case.explain(
        "shape-mismatch",
        f"the layer{case.inside.replace(', in', '')} takes {wants} features, its input has {got}",
        f"nn.Linear(in_features={wants}) works on the last dimension of its input, which has shape "
        f"{shape_text(shape)}.",
        evidence=operands_frame(inputs or case.failure.operands),
        fixes=advice(*fixes),
    )


@means(
    r"The size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\) at non-singleton"
    r" dimension (\d+)"
    r"|The expanded size of the tensor \((\d+)\) "
    r"must match the existing size \((\d+)\) at non-singleton dimension (\d+)"
)
def broadcast_mismatch(case: Case) -> Explanation | None:
    """Two shapes that do not broadcast."""
    a, b, dimension = [g for g in case.match.groups() if g]
    shapes = " and ".join(shape_text(o.shape) for o in case.failure.operands[:2])
    return case.explain(
        "shape-mismatch",
        f"sizes {a} and {b} meet in dimension"
        f" {dimension}{f' of {shapes}' if shapes else ''}{case.inside}",
        "Shapes are compared from the last dimension; sizes must be equal or 1.",
        evidence=operands_frame(case.failure.operands),
        fixes=advice(
            (
                "add the missing dimension where it belongs",
                "x * weight[:, None]  # or weight.unsqueeze(1)",
            )
        ),
        rewrite=_rows_first(case),
    )


def _rows_first(case: Case) -> tuple[tuple[str, str], ...]:
    """A vector with one number for each row of a matrix, as a column."""
    shapes = [tuple(o.shape) for o in case.failure.operands[:2]]
    if [len(s) for s in shapes] == [2, 1] and shapes[0][0] == shapes[1][0]:
        return ((r"(\w+\s*[-+*/]\s*)([A-Za-z_][\w.]*)(?![\w.(\[])", r"\1\2[:, None]"),)
    return ()


@means(r"expected input\[([\d, ]+)\] to have (\d+) channels, but got (\d+) channels instead")
def channels(case: Case) -> Explanation | None:
    """A convolution got another number of channels."""
    shape = [int(n) for n in case.match[1].split(",")]
    wants, got = int(case.match[2]), int(case.match[3])
    last = shape[-1] == wants
    fix = (
        ("channels come first", "x = x.permute(0, 3, 1, 2)")
        if last
        else (f"let the layer take {got} channels", f"nn.Conv2d({got}, ...)")
    )
    return case.explain(
        "shape-mismatch",
        f"the convolution takes {wants} channels, its input of shape {shape_text(shape)} has"
        f" {got}{case.inside}",
        "A convolution reads (batch, channels, height, width)."
        + (" Here the channels are in the last dimension." if last else ""),
        evidence=operands_frame(case.failure.operands),
        fixes=advice(fix),
    )


@means(r"Error\(s\) in loading state_dict for (\w+)")
def state_dict_mismatch(case: Case) -> Explanation | None:
    """A checkpoint of another model."""
    text = case.failure.text
    sizes = re.findall(
        r"size mismatch for (\S+): copying a param with shape torch\.Size\(\[([\d, ]*)\]\) from"
        r" checkpoint, "
        r"the shape in current model is torch\.Size\(\[([\d, ]*)\]\)",
        text,
    )
    missing, unexpected = _keys(text, "Missing"), _keys(text, "Unexpected")
    rows = [{"name": name, "checkpoint": a, "model": b} for name, a, b in sizes]
    rows += [{"name": name, "checkpoint": "missing", "model": "wanted"} for name in missing]
    rows += [{"name": name, "checkpoint": "there", "model": "unknown"} for name in unexpected]
    prefix = _prefix(missing, unexpected)
    counts = [
        f"{len(names)} {what}"
        for names, what in (
            (sizes, "of another size"),
            (missing, "missing"),
            (unexpected, "unexpected"),
        )
        if names
    ]
    return case.explain(
        "state-dict-mismatch",
        f"the checkpoint does not fit {case.match[1]}: {', '.join(counts) or 'its names differ'}",
        prefix[0]
        or (
            "The model was built with other sizes or layers than the one that was saved; a"
            " classifier for another number of classes is the usual case."
        ),
        evidence=pd.DataFrame(rows),
        fixes=advice(*prefix[1], *_state_fixes([name for name, _, _ in sizes])),
    )


def _keys(text: str, which: str) -> list[str]:
    found = re.search(which + r" key\(s\) in state_dict: (.+?)\.\s*(?:\n|$)", text)
    return re.findall(r'"([^"]+)"', found[1]) if found else []


def _prefix(missing: list[str], unexpected: list[str]) -> tuple[str, list[tuple[str, str]]]:
    """Names that differ by a prefix alone: DataParallel's ``module.``, torch.compile's
    ``_orig_mod.``."""
    for prefix in ("module.", "_orig_mod.", "model."):
        if (
            unexpected
            and missing
            and all(name.startswith(prefix) for name in unexpected)
            and set(missing) & {n.removeprefix(prefix) for n in unexpected}
        ):
            code = (
                f'state = {{n.removeprefix("{prefix}"): value for n, value in state.items()}}\n'
                "model.load_state_dict(state)"
            )
            return f"The names in the checkpoint begin with {prefix!r}, put there by a wrapper.", [
                ("take the prefix off", code)
            ]
    return "", []


def _state_fixes(sizes: list[str]) -> list[tuple[str, str]]:
    build = (
        "build the model as it was when it was saved",
        "model = Model(num_classes=...)  # as in training",
    )
    if not sizes:
        return [
            build,
            (
                "load what fits; see what was left out",
                "print(model.load_state_dict(state, strict=False))",
            ),
        ]
    drop = (
        "own = model.state_dict()\n"
        "state = {n: v for n, v in state.items() if n in own and v.shape == own[n].shape}\n"
        "print(model.load_state_dict(state, strict=False))"
    )
    return [build, ("load the layers that fit, train the others anew", drop)]


@means(r"shape '\[([-\d, ]+)\]' is invalid for input of size (\d+)", first=True)
def impossible_shape(case: Case) -> Explanation | None:
    """view or reshape to another number of elements."""
    sizes, count = [int(n) for n in case.match[1].split(",")], int(case.match[2])
    known = math.prod(n for n in sizes if n >= 0)
    why = (
        f"{count} is no multiple of {known}" if -1 in sizes else f"that shape has {known} elements"
    )
    return case.explain(
        "shape-mismatch",
        f"{count} elements do not fit into the shape {shape_text(sizes)}: {why}{case.inside}",
        "As a rule the batch is smaller than usual (the last one), or a layer before it gives"
        " another size than was reckoned.",
        evidence=operands_frame(case.failure.operands),
        fixes=advice(
            ("let the batch be what it is", "x = x.flatten(1)  # or x.view(x.shape[0], -1)")
        ),
        rewrite=((r"((?:view|reshape)\([^()]*?)-?\b[\w.]+\s*\)", r"\1-1)"),),
    )


@means(
    r"[Tt]arget size \(torch\.Size\(\[([\d, ]*)\]\)\) (?:that is different to|must be the same"
    r" as)(?: the)? input size "
    r"\(torch\.Size\(\[([\d, ]*)\]\)\)",
    first=True,
)
def target_of_another_size(case: Case) -> Explanation | None:
    """binary_cross_entropy of predictions and targets of different shapes."""
    target, scores = case.match.groups()
    return case.explain(
        "shape-mismatch",
        f"the target has shape ({target}), the predictions have ({scores}){case.inside}",
        "They are compared element by element and are not broadcast.",
        evidence=operands_frame(case.failure.operands),
        fixes=advice(
            (
                "give both one shape, in the target's dtype",
                "loss_fn(scores.squeeze(1), target.float())",
            )
        ),
    )
