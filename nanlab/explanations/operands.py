"""Errors of operands: their indices, dtypes, shapes and values."""

from __future__ import annotations

import math
import re
import sys
from typing import Any

import pandas as pd

from nanlab.capture.exception_frames import POSITIONS
from nanlab.explanations.explanation import (
    Case,
    Explanation,
    advice,
    means,
    operands_frame,
    shape_text,
)
from nanlab.findings.fault import plural, verb
from nanlab.findings.rule import Finding
from nanlab.trace import Trace
from nanlab.trace.escapes import BadIndices, Operand

# Errors of indices: outside of an embedding, of the classes, of a dimension.

_RESIZE = (
    "tokens were added to the tokenizer: resize the embedding",
    "model.resize_token_embeddings(len(tokenizer))",
)
_LARGER = ("a larger embedding", "nn.Embedding(num_embeddings=len(vocabulary), embedding_dim=...)")
_CHECK = "assert 0 <= {name}.min() and {name}.max() < {size}, ({name}.min(), {name}.max())"
_LABELS = [
    ("count labels from 0", "target = target - 1  # where they are 1 to C"),
    (
        "mark what does not count by ignore_index",
        "F.cross_entropy(scores, target, ignore_index=-1)",
    ),
    ("as many outputs as classes", "nn.Linear(hidden, num_classes)  # num_classes = max label + 1"),
]


@means("Boolean value of Tensor with more than one value is ambiguous")
def ambiguous(case: Case) -> Explanation:
    """A condition needs one truth value; a class that is called with data makes one of them."""
    kind = case.failure.module_type
    if case.failure.facts.get("made_of_tensors"):
        loss = kind.endswith("Loss")
        name, given = ("criterion", "output, target") if loss else ("layer", "x")
        return case.explain(
            "class-without-instance",
            f"the class {kind} was called with data: no instance was made of it",
            "The call of a class makes a layer or a loss of its options, that of an instance"
            " computes.",
            evidence=operands_frame(case.failure.operands),
            fixes=advice(
                ("make the instance first", f"{name} = nn.{kind}()  # then {name}({given})")
            ),
        )
    return case.explain(
        "ambiguous-condition",
        f"a condition was made of a tensor of several values{case.inside}",
        "`if`, `while`, `and` and `not` want one truth value.",
        evidence=operands_frame(case.failure.operands),
        fixes=advice(
            ("say of how many it must be true", "if (x > 0).any():  # or .all()"),
            ("or choose for each element", "y = torch.where(x > 0, x, 0.1 * x)"),
        ),
    )


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
    remedies = _remedies(bad.op, bad.high)
    if POSITIONS.search(case.failure.module.rpartition(".")[2]):
        reason = "The sequence is longer than the model has positions for."
        kind, remedies = ("position", "rows of the position table", reason), _positions(bad.high)
    samples = sorted({place[0] for place in bad.places if place})
    first = bad.values[0]
    at = f" at position {list(bad.places[0])}" if bad.places[0] else ""
    frame = pd.DataFrame(
        [
            {"position": list(place), "index": value}
            for place, value in zip(bad.places, bad.values, strict=True)
        ]
    )
    shown, more = ", ".join(map(str, samples)), bad.samples - len(samples)
    sample = f" Samples of the batch that hold one: {shown}" if samples else ""
    if samples:
        sample += f" and {more} more." if more > 0 else "."
    ignored = f"; {bad.ignored} is ignored" if bad.ignored is not None else ""
    return case.explain(
        "index-out-of-range",
        f"{kind[0]} {first}{at} is outside of the {bad.high} {kind[1]}{case.inside}",
        f"{bad.count} of the {shape_text(bad.shape)} indices"
        f" {verb(bad.count, 'is', 'are')} outside of {bad.low} to "
        f"{bad.high - 1}{ignored}.{sample} {kind[2]}{after}",
        evidence=frame,
        fixes=advice(*remedies),
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
        check = ("see it before it happens", _CHECK.format(name="input_ids", size=size))
        return [*([_RESIZE] if "transformers" in sys.modules else []), _LARGER, check]
    if "nll_loss" in op:
        return [*_LABELS, ("see it before it happens", _CHECK.format(name="target", size=size))]
    return [("see it before it happens", _CHECK.format(name="index", size=size))]


def _from_message(case: Case) -> Explanation:
    match, facts = case.match, case.failure.facts
    if match[1]:
        op = "nll_loss"
        title = (
            f"target {match[1]} is outside of the classes that the model has an output"
            f" for{case.inside}"
        )
    elif match[2]:
        op = "index"
        title = (
            f"index {match[2]} is outside of dimension {match[3]}, which has size"
            f" {match[4]}{case.inside}"
        )
    elif "Class values" in case.failure.text:
        op, title = "nll_loss", f"a label is outside of the classes of one_hot{case.inside}"
    else:
        rows = facts.get("num_embeddings")
        if rows is not None or "embed" in case.failure.source.lower() or not case.failure.source:
            op = "embedding"
        else:
            op = "index"
        target = f"the {rows} rows of the embedding" if rows else "what it is looked up in"
        title = f"an index is outside of {target}{case.inside}"
    return case.explain(
        "index-out-of-range",
        title,
        _kind_of(op, "")[2],
        fixes=advice(*_remedies(op, int(match[4] or 0) or 10)),
    )


# Errors of dtypes: two that do not go together, or one that an operation does not know.

_NAMES = {
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "bfloat16": "bfloat16",
    "long": "int64",
    "int": "int32",
    "short": "int16",
    "char": "int8",
    "byte": "uint8",
    "bool": "bool",
}
_FLOATS = ("float16", "float32", "float64", "bfloat16")
_HALVES = ("float16", "bfloat16")
_HALF = (
    "Under autocast this happens to what is computed outside of its block, to a hand-written"
    " autograd.Function, and to operations that autocast does not list; without it, to a model that"
    " was cast by .half() and a batch that was not."
)
_WIDE = "NumPy arrays come in as float64; what torch makes itself is float32."
_METHODS = {
    "float16": "half()",
    "float32": "float()",
    "float64": "double()",
    "bfloat16": "bfloat16()",
    "int64": "long()",
}


def dtype_name(text: str) -> str:
    """``float16`` for Half, c10::Half, torch.HalfTensor, torch.cuda.HalfTensor or torch.float16."""
    word = text.strip().split("::")[-1].split(".")[-1].removesuffix("Tensor")
    return _NAMES.get(word.lower(), word)


@means(
    r"expected scalar type (\S+) but found (\S+)|mat1 and mat2 must have the same dtype, but got"
    r" (\S+) and (\S+)"
    r"|expected (?:m1 and m2|mat1 and mat2) to have the same dtype, but got: (\S+) != (\S+)"
    r"|[Ff]ound dtype (\S+) but expected (\S+)"
    r"|Input type \((\S+?)\) and (?:weight|bias) type \((\S+?)\) should be the same"
    r"|[Ee]xpected .{1,60}? to have the same dtype.*?: (\S+) (?:!=|and) (\S+)"
    r"|expected (?:input and weight|both) .*dtype.*?: (\S+) (?:!=|and) (\S+)"
)
def dtype_mismatch(case: Case) -> Explanation | None:
    """Two operands of different dtype, where the operation converts neither."""
    first, second = [dtype_name(g.rstrip(".,;)")) for g in case.match.groups() if g][:2]
    if len({"complex" in name.lower() for name in (first, second)}) == 2:
        return _complex(case)
    whole = next((name for name in (first, second) if name not in _FLOATS), None)
    if whole is not None:
        return _integer(case, first, second)
    own = case.failure.facts.get("parameter_dtypes")
    parameters = f" The parameters of the module are {', '.join(own)}." if own else ""
    kept = own[0] if own and own[0] in _METHODS else "float32"
    half = next((name for name in (first, second) if name in _HALVES), "")
    inputs = [*case.failure.operands, *case.failure.facts.get("inputs", [])]
    fixes = [
        (
            "cast the operand to the parameters' dtype",
            f"x = x.{_METHODS[kept]}  # or x.to(self.weight.dtype)",
        )
    ]
    if half:
        device = inputs[0].device.split(":")[0] if inputs else "cuda"
        autocast = f'torch.autocast(device_type="{device}", dtype=torch.{half})'
        within = f"with {autocast}:\n    loss = criterion(model(x), y)"
        fixes.append(("keep the forward pass inside of autocast", within))
    return case.explain(
        "dtype-mismatch",
        f"{first} met {second}{case.inside}",
        f"The operation takes operands of one dtype only.{parameters} {_HALF if half else _WIDE}",
        evidence=operands_frame(inputs),
        fixes=advice(*fixes),
    )


def _complex(case: Case) -> Explanation:
    """One of the two is complex: as a rule a spectrum."""
    return case.explain(
        "dtype-mismatch",
        f"complex numbers met real ones{case.inside}",
        "A Fourier transform gives complex numbers, layers take real ones: the magnitudes, or real"
        " and imaginary part as two features or channels.",
        evidence=operands_frame(case.failure.operands),
        fixes=advice(
            ("the magnitudes", "spectrum = torch.stft(x, n_fft, return_complex=True).abs()"),
            ("or both parts", "parts = torch.view_as_real(spectrum)"),
        ),
    )


def _integer(case: Case, first: str, second: str) -> Explanation:
    """One of the two is an integer dtype: mostly a target."""
    wants_indices = case.match[1] is not None and first == "int64"
    source, op = case.failure.source, case.failure.op
    classes = wants_indices or "nll_loss" in op or "cross_entropy" in source
    if classes and first == "int64":
        title = f"the target is {second}, and class indices must be int64"
        why = "Class indices are int64; probabilities need the shape of the scores."
        fixes = advice(
            ("class indices", "loss = F.cross_entropy(scores, target.long())"),
            ("probabilities", "target.shape == scores.shape"),
        )
    else:
        title = f"{first} met {second}{case.inside}"
        why = (
            "An operation of floating-point numbers got integers: a target of mse_loss or"
            " binary_cross_entropy, or features loaded as integers."
        )
        fixes = advice(
            ("make it floating point", "loss = criterion(out, target.float())"),
            ("features too", "model(x.float())"),
        )
    return case.explain(
        "dtype-mismatch", title, why, evidence=operands_frame(case.failure.operands), fixes=fixes
    )


@means(
    r"\"(\w+)\" not implemented for '(\w+)'|result type (\w+) can't be cast to the desired output"
    r" type (\w+)"
    r"|could not infer output dtype.*Got: (\w+)|[Oo]nly Tensors of floating point.* (?:dtype )?can"
    r" require gradients"
    r"|expected target dtype to be Long or Byte, but got (\w+)"
    r"|Expected floating point type for target with class probabilities, got (\w+)"
    r"|Expected tensor for argument #1 'indices' to have .* got (?:torch\.)?(?:cuda\.)?(\w+)"
)
def dtype_unknown(case: Case) -> Explanation | None:
    """An operation that is not made for this dtype."""
    match, failure = case.match, case.failure
    if match[6]:
        title = f"the target is {dtype_name(match[6])}, and class indices must be int64"
        fix = ("class indices", "loss = F.cross_entropy(scores, target.long())")
    elif match[8]:
        title = f"indices are {dtype_name(match[8])}, and must be integers"
        fix = ("indices are int64", "self.embedding(tokens.long())")
    elif match[7]:
        title = (
            f"targets have the shape of the scores and are {dtype_name(match[7])}: probabilities"
            " must be floating point"
        )
        fix = (
            "probabilities, or class indices of one dimension less",
            "F.cross_entropy(scores, target.float())",
        )
    else:
        dtype = dtype_name(next((g for g in (match[2], match[3], match[5]) if g), "integer"))
        op = re.sub(
            r"_(cpu|cuda|impl|kernel|out|frame).*$", "", failure.op or match[1] or "the operation"
        )
        title = f"{op} does not work on {dtype}{case.inside}"
        fix = ("convert first", "x = x.float()")
        if dtype == "float16":
            fix = (
                "float16 is for GPUs: on the CPU use bfloat16 or float32",
                "model.float()(x.float())  # or .bfloat16()",
            )
    why = "Each operation is compiled for the dtypes that it makes sense for."
    return case.explain(
        "dtype-mismatch", title, why, evidence=operands_frame(failure.operands), fixes=advice(fix)
    )


# Errors of shapes: a product, a sum or a layer whose sizes do not fit, and a checkpoint of
# another model.


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
    features = plural(shape[-1], "feature") if shape else "as many features"
    flat = 1
    for size in shape[1:]:
        flat *= size
    fixes = [
        (
            f"let the layer take {features}",
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
        f"the layer{case.inside.replace(', in', '')} takes {plural(wants, 'feature')}, its input"
        f" has {got}",
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
    places = case.failure.facts.get("positions")
    if places is not None and places == min(int(a), int(b)):
        return _too_long(case, max(int(a), int(b)), places)
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
    )


def _too_long(case: Case, length: int, places: int) -> Explanation:
    """A sequence that is longer than the table of positions."""
    return case.explain(
        "shape-mismatch",
        f"the sequence has {length} elements, the model has positions for {places}{case.inside}",
        "Each position has a row of its own in a table, and the table ends before the sequence.",
        evidence=operands_frame(case.failure.operands),
        fixes=advice(*_positions(places)),
    )


def _positions(size: int) -> list[tuple[str, str]]:
    return [
        ("cut longer sequences off", f"input_ids = input_ids[:, :{size}]  # or truncation=True"),
        ("or build the model for longer ones", "max_position_embeddings=...  # or n_positions=..."),
    ]


@means(r"expected input\[([\d, ]+)\] to have (\d+) channels, but got (\d+) channels instead")
def channels(case: Case) -> Explanation | None:
    """A convolution got another number of channels."""
    shape = [int(n) for n in case.match[1].split(",")]
    wants, got = int(case.match[2]), int(case.match[3])
    last = shape[-1] == wants
    if last:
        fix = ("channels come first", "x = x.permute(0, 3, 1, 2)")
    else:
        fix = (f"let the layer take {plural(got, 'channel')}", f"nn.Conv2d({got}, ...)")
    return case.explain(
        "shape-mismatch",
        f"the convolution takes {plural(wants, 'channel')}, its input of shape"
        f" {shape_text(shape)} has {got}{case.inside}",
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
    """Names that differ by a prefix alone: DataParallel's ``module.``, ``_orig_mod.``."""
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
            return (
                f"The names in the checkpoint begin with {prefix!r}, put there by a wrapper.",
                [("take the prefix off", code)],
            )
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
    )


@means(
    r"The shape of the mask \[([\d, ]*)\] at index \d+ does not match the shape of the indexed"
    r" tensor \[([\d, ]*)\]"
)
def mask_of_another_shape(case: Case) -> Explanation | None:
    """A boolean index that does not cover the dimensions that it stands for."""
    mask, sizes = (re.findall(r"\d+", group) for group in case.match.groups())
    known = len(mask) == 1 and mask[0] in sizes
    colons = ":, " * (sizes.index(mask[0]) if known else 1)
    return case.explain(
        "shape-mismatch",
        f"a mask of shape {shape_text(map(int, mask))} selects from a tensor of shape"
        f" {shape_text(map(int, sizes))}{case.inside}",
        "A mask covers the first dimensions, each at its full size.",
        evidence=operands_frame(case.failure.operands),
        fixes=advice(("put the mask in the place of its dimension", f"x[{colons}mask]")),
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
    *samples, classes = scores.split(", ")
    why = "They are compared element by element and are not broadcast."
    fix = "give both one shape, in the target's dtype", "loss_fn(scores.squeeze(1), target.float())"
    if target == ", ".join(samples) and classes != "1":
        why += f" The predictions have {classes} classes, the target one class number for each."
        fix = (
            "cross entropy takes class numbers, as int64",
            "F.cross_entropy(scores, target.long())",
        )
    return case.explain(
        "shape-mismatch",
        f"the target has shape ({target}), the predictions have ({scores}){case.inside}",
        why,
        evidence=operands_frame(case.failure.operands),
        fixes=advice(fix),
    )


@means(r"Expected input batch_size \((\d+)\) to match target batch_size \((\d+)\)")
def target_of_more_samples(case: Case) -> Explanation | None:
    """cross_entropy of predictions and class numbers of different counts."""
    samples, targets = map(int, case.match.groups())
    classes = next((o.shape[-1] for o in case.failure.operands if len(o.shape) == 2), 0)
    why = "cross_entropy takes one class number for each row of the predictions."
    fix = "rows of predictions as labels", "F.cross_entropy(scores.flatten(0, 1), target.flatten())"
    if targets == samples * classes:
        why += f" The target has {classes} numbers for each, as one-hot labels have."
        fix = "class numbers of one-hot labels", "F.cross_entropy(scores, target.argmax(1))"
    return case.explain(
        "shape-mismatch",
        f"{samples} rows of predictions meet {targets} class numbers{case.inside}",
        why,
        evidence=operands_frame(case.failure.operands),
        fixes=advice(fix),
    )


# Exceptions about values: a distribution, a sampler or a factorisation that refuses what it was
# given.

_MATRICES = frozenset("covariance_matrix precision_matrix scale_tril".split())
_POSITIVE = frozenset(
    "scale rate concentration concentration0 concentration1 df temperature".split()
)
_BORN = "print(nanlab.last.culprit)  # where the bad value was born"


def _culprit(case: Case) -> Finding | None:
    return Trace(case.recording).culprit if case.recording is not None else None


def _born(case: Case, cause: str, title: str, why: str, **more: Any) -> Explanation:
    """What refused a value, at the line where the value was born if a watch saw it."""
    culprit = _culprit(case)
    if culprit is None or not culprit.line:
        return case.explain(cause, title, why, **more)
    place = {"file": culprit.file, "line": culprit.line, "source": culprit.source}
    more |= {"module": culprit.module, "fixes": [*culprit.fixes, *more["fixes"]]}
    return case.explain(cause, title, f"{why} It was born before: {culprit}.", **place, **more)


@means(
    r"Expected parameter (\w+) \(.*\) of distribution (\w+)\(.*satisfy the constraint (.+?), but"
    r" found invalid"
)
def refused_parameter(case: Case) -> Explanation | None:
    """torch.distributions checked a parameter."""
    name, distribution, constraint = case.match.groups()
    nan = "nan" in case.failure.text.split("invalid values", 1)[-1]
    if nan:
        return _born(
            case,
            "invalid-value",
            f"{distribution} got NaN in its {name}{case.inside}",
            "The distribution only refuses it: the NaN comes from what computed the parameter.",
            fixes=advice(("watch the step, and see where it was born", _BORN)),
        )
    if name in _MATRICES:
        fix = (
            "add a jitter to the diagonal",
            f"{name} = {name} + 1e-5 * torch.eye({name}.shape[-1])",
        )
    elif name in _POSITIVE:
        fix = (f"make {name} positive by construction", f"{name} = F.softplus(raw) + 1e-4")
    else:
        fix = (
            f"keep {name} inside of what {distribution} takes",
            f"{name} = {name}.clamp(min=..., max=...)",
        )
    return case.explain(
        "invalid-value",
        f"the {name} of {distribution} is outside of its domain, {constraint}{case.inside}",
        "What a network gives is unbounded; softplus or exp of it may round to exactly 0, and a"
        " covariance to an indefinite matrix.",
        fixes=advice(fix),
    )


@means(
    r"Expected value argument \(.*\) to be within the support \((.+?)\) of the distribution (\w+)"
)
def outside_of_support(case: Case) -> Explanation | None:
    """log_prob of a value that the distribution cannot give."""
    support, distribution = case.match.groups()
    return _born(
        case,
        "infeasible-likelihood",
        f"log_prob of a value outside of the support of {distribution}, {support}{case.inside}",
        "The distribution gives such a value no probability, so its log-likelihood would be -inf."
        " Rounding does this at the edges, as with an action that tanh has rounded to 1.",
        fixes=advice(("keep the value inside", "value = value.clamp(1e-6, 1 - 1e-6)")),
    )


@means(
    r"probability tensor contains either `inf`, `nan` or element < 0|invalid multinomial"
    r" distribution"
)
def refused_probabilities(case: Case) -> Explanation | None:
    """torch.multinomial and what samples with it."""
    zero = "invalid multinomial" in case.failure.text
    if zero:
        return case.explain(
            "invalid-value",
            f"the probabilities of a row add up to zero{case.inside}",
            "There is nothing to draw from: every choice was masked, or all of them underflowed.",
            fixes=advice(
                (
                    "leave at least one choice, and take logits",
                    "torch.distributions.Categorical(logits=logits)",
                )
            ),
        )
    return _born(
        case,
        "invalid-value",
        f"the probabilities to sample from hold NaN, inf or a negative number{case.inside}",
        "Sampling only refuses them: they come from logits that are NaN or +inf, or from a row that"
        " was masked throughout.",
        fixes=advice(("watch the step, and see where it was born", _BORN)),
    )


@means(r"(linalg\.\w+): .*(singular|not positive-definite|failed to converge|non-finite)")
def refused_matrix(case: Case) -> Explanation | None:
    """A factorisation that does not exist, or did not converge."""
    function, what = case.match.groups()
    if what in ("failed to converge", "non-finite") or _culprit(case) is not None:
        return _born(
            case,
            "degenerate-matrix",
            f"{function} could not be computed{case.inside}: NaN, infinities or nearly equal"
            " singular values do this",
            "Look first whether the matrix is finite.",
            fixes=advice(
                ("see whether the matrix is finite", "torch.isfinite(A).all()"),
                ("watch the step", _BORN),
            ),
        )
    return case.explain(
        "degenerate-matrix",
        f"{function}: the matrix is {what}{case.inside}",
        "Duplicate rows, a batch smaller than the dimension, or rounding of a covariance do this; a"
        " little on the diagonal makes it definite.",
        fixes=advice(
            ("add a jitter to the diagonal", "A = A + 1e-5 * torch.eye(A.shape[-1], dtype=A.dtype)")
        ),
    )
