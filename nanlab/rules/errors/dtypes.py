"""Errors of dtypes: two that do not go together, or one that an operation does not know."""

from __future__ import annotations

import re

from nanlab.rules.errors._explanation import Case, Explanation, advice, means, operands_frame

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
    whole = next((name for name in (first, second) if name not in _FLOATS), None)
    if whole is not None:
        return _integer(case, first, second)
    own = case.failure.facts.get("parameter_dtypes")
    parameters = f" The parameters of the module are {', '.join(own)}." if own else ""
    kept = own[0] if own and own[0] in _METHODS else "float32"
    return case.explain(
        "dtype-mismatch",
        f"{first} met {second}{case.inside}",
        f"The operation takes operands of one dtype only.{parameters} Under autocast this happens"
        " to what is computed outside of its block, to a hand-written autograd.Function, and to"
        " operations that autocast does not list; without it, to a model that was cast by .half()"
        " and a batch that was not. NumPy arrays come in as float64.",
        evidence=operands_frame([*case.failure.operands, *case.failure.facts.get("inputs", [])]),
        fixes=advice(
            (
                "cast the operand to the parameters' dtype",
                f"x = x.{_METHODS[kept]}  # or x.to(self.weight.dtype)",
            ),
            (
                "keep the forward pass inside of autocast",
                'with torch.autocast(device_type="cuda"):\n    loss = criterion(model(x), y)',
            ),
        ),
    )


def _integer(case: Case, first: str, second: str) -> Explanation:
    """One of the two is an integer dtype: mostly a target."""
    wants_indices = case.match[1] is not None and first == "int64"
    source, op = case.failure.source, case.failure.op
    classes = wants_indices or "nll_loss" in op or "cross_entropy" in source
    if classes and first == "int64":
        title, why = (
            f"the target is {second}, and class indices must be int64",
            "Class indices are int64; probabilities need the shape of the scores.",
        )
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
        title, fix = (
            f"indices are {dtype_name(match[8])}, and must be integers",
            ("indices are int64", "self.embedding(tokens.long())"),
        )
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
        title, fix = (
            f"{op} does not work on {dtype}{case.inside}",
            ("convert first", "x = x.float()"),
        )
        if dtype == "float16":
            fix = (
                "float16 is for GPUs: on the CPU use bfloat16 or float32",
                "model.float()(x.float())  # or .bfloat16()",
            )
    why = "Each operation is compiled for the dtypes that it makes sense for."
    return case.explain(
        "dtype-mismatch", title, why, evidence=operands_frame(failure.operands), fixes=advice(fix)
    )
