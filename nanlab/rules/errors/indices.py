"""Errors of indices: outside of an embedding, of the classes, of a dimension."""

from __future__ import annotations

import pandas as pd

from nanlab.rules.errors._explanation import Case, Explanation, advice, means, shape_text
from nanlab.trace.failure import BadIndices

_RESIZE = (
    "tokens were added to the tokenizer: resize the embedding",
    "model.resize_token_embeddings(len(tokenizer))",
)
_CHECK = "assert 0 <= {name}.min() and {name}.max() < {size}, ({name}.min(), {name}.max())"
_LABELS = [
    ("count labels from 0", "target = target - 1  # where they are 1 to C"),
    (
        "mark what does not count by ignore_index",
        "F.cross_entropy(scores, target, ignore_index=-1)",
    ),
    ("as many outputs as classes", "nn.Linear(hidden, num_classes)  # num_classes = max label + 1"),
]


@means(
    r"index out of range in self|Target (-?\d+) is out of bounds"
    r"|index (-?\d+) is out of bounds for dimension (\d+) with size (\d+)"
    r"|Class values must be|INDICES element is out of DATA bounds|is not in the valid range \[0,"
    r" \d+\)"
    r"|tried to access index -?\d+ on a tensor of|is out of range for \w+.*: expected -?\d+ to"
    r" -?\d+, seen"
)
def out_of_range(case: Case) -> Explanation | None:
    """An index points outside of what it is looked up in."""
    bad = case.failure.bad
    return with_evidence(case, bad) if bad is not None else _from_message(case)


def with_evidence(case: Case, bad: BadIndices, after: str = "") -> Explanation:
    """The indices themselves, where they stand, and what would have been allowed."""
    kind = _kind_of(bad.op, case.failure.module_type)
    samples = sorted({place[0] for place in bad.places if place})
    first = bad.values[0]
    at = f" at position {list(bad.places[0])}" if bad.places[0] else ""
    frame = pd.DataFrame(
        [
            {"position": list(place), "index": value}
            for place, value in zip(bad.places, bad.values, strict=True)
        ]
    )
    sample = (
        f" Samples of the batch that hold one: {', '.join(map(str, samples))}."
        if samples and len(bad.shape) > 0
        else ""
    )
    ignored = f"; {bad.ignored} is ignored" if bad.ignored is not None else ""
    return case.explain(
        "index-out-of-range",
        f"{kind[0]} {first}{at} is outside of the {bad.high} {kind[1]}{case.inside}",
        f"{bad.count} of the {shape_text(bad.shape)} indices are outside of {bad.low} to "
        f"{bad.high - 1}{ignored}.{sample} {kind[2]}{after}",
        evidence=frame,
        fixes=advice(*_remedies(bad.op, bad.high)),
    )


def _kind_of(op: str, module: str) -> tuple[str, str, str]:
    """(what the index is, what it points into, the usual reason)."""
    if "embedding" in op or module == "Embedding":
        return (
            "index",
            "rows of the embedding",
            (
                "Mostly tokens were added and the embedding was not resized, or positions run past"
                " its length."
            ),
        )
    if "nll_loss" in op:
        return (
            "target",
            "classes",
            "Mostly labels count from 1, or a padding label is not the ignore_index.",
        )
    return (
        "index",
        "entries of the dimension",
        "Indices count from 0, and a negative one is only allowed in x[i].",
    )


def _remedies(op: str, size: int) -> list[tuple[str, str]]:
    if "embedding" in op:
        check = (
            "see it before it happens",
            _CHECK.format(name="input_ids", size="model.embedding.num_embeddings"),
        )
        return [
            _RESIZE,
            (
                "a larger embedding",
                "nn.Embedding(num_embeddings=len(vocabulary), embedding_dim=...)",
            ),
            check,
        ]
    if "nll_loss" in op:
        return [*_LABELS, ("see it before it happens", _CHECK.format(name="target", size=size))]
    return [("see it before it happens", _CHECK.format(name="index", size=size))]


def _from_message(case: Case) -> Explanation:
    match, facts = case.match, case.failure.facts
    if match[1]:
        op, title = (
            "nll_loss",
            (
                f"target {match[1]} is outside of the classes that the model has an output"
                f" for{case.inside}"
            ),
        )
    elif match[2]:
        op, title = (
            "index",
            (
                f"index {match[2]} is outside of dimension {match[3]}, which has size"
                f" {match[4]}{case.inside}"
            ),
        )
    elif "Class values" in case.failure.text:
        op, title = "nll_loss", f"a label is outside of the classes of one_hot{case.inside}"
    else:
        rows = facts.get("num_embeddings")
        op = (
            "embedding"
            if rows is not None or "embed" in case.failure.source.lower() or not case.failure.source
            else "index"
        )
        target = f"the {rows} rows of the embedding" if rows else "what it is looked up in"
        title = f"an index is outside of {target}{case.inside}"
    return case.explain(
        "index-out-of-range",
        title,
        _kind_of(op, "")[2],
        fixes=advice(*_remedies(op, int(match[4] or 0) or 10)),
    )
