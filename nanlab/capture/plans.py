"""What there is to know of an operator before it runs: what it writes, whether it makes a view."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from nanlab.capture.indices import INDEXING
from nanlab.trace.names import Names

# Writes all of its target without reading it, so what was there before is no operand.
_OVERWRITES = frozenset(
    "copy_ fill_ zero_ normal_ uniform_ bernoulli_ random_ exponential_ log_normal_ cauchy_ geometric_ set_ "
    "_foreach_zero_ _foreach_copy_ resize_ eye arange linspace".split()
)
# The same elements in another shape or order: the statistics are those of the base.
_SAME_ELEMENTS = frozenset(
    "t transpose permute view _unsafe_view unsqueeze squeeze detach alias _reshape_alias lift_fresh lift "
    "view_as movedim swapaxes adjoint mT flatten_dense_tensors real_if_close".split()
)
_UNINITIALISED = frozenset("empty empty_like empty_strided new_empty new_empty_strided _empty_affine_quantized".split())
# Hidden writes, by operator: indices of arguments that change although the schema does not say so.
# Tried with torch 2.13: running_mean and running_var in training mode (argument 5).
_HIDDEN_WRITES: dict[str, tuple[int, ...]] = {
    "native_batch_norm": (3, 4),
    "cudnn_batch_norm": (3, 4),
    "miopen_batch_norm": (3, 4),
}
# Outputs that are no numbers but bytes which the backward of the operator reads in its own way (megabytes, for a recurrent layer).
# After torch 2.13's native_functions.yaml and kernels.
_OPAQUE: dict[str, tuple[int, ...]] = {
    "mkldnn_rnn_layer": (3,),
    "_cudnn_rnn": (4,),
    "miopen_rnn": (4,),
    "cudnn_batch_norm": (3,),
}
# Operators that tell nothing about numbers.
_SKIPPED_NAMESPACES = frozenset({"profiler", "prim", "prims"})
_SKIPPED = frozenset(
    "_local_scalar_dense is_same_size _has_compatible_shallow_copy_type equal resize_ set_ _nested_tensor_size".split()
)
# Pure functions of one operand that destroy it when done in place; worth a copy of a small operand.
RISKY_IN_PLACE = frozenset(
    "log_ log2_ log10_ log1p_ sqrt_ rsqrt_ reciprocal_ pow_ div_ acos_ asin_ acosh_ atanh_ erfinv_ exp_ expm1_ logit_ lgamma_ "
    "remainder_ fmod_ mul_ sub_ add_ addcdiv_ addcmul_ square_ sinh_ cosh_ tan_".split()
)


# The Python numbers of such a call are noted: epsilons, bounds, factors, exponents.
_WITH_SCALARS = frozenset(
    "add add_ sub sub_ rsub mul mul_ div div_ pow pow_ clamp clamp_ clamp_min clamp_min_ clamp_max clamp_max_".split()
)
RISKY_IN_OPTIMIZER = frozenset("sqrt_ rsqrt_ reciprocal_ div_ pow_ log_".split())


@dataclass(frozen=True, slots=True)
class Plan:
    """How to record the calls of one operator overload."""

    name: str  # aten name without overload
    skip: bool
    writes: tuple[int | str, ...]  # arguments it mutates, by index or keyword
    fresh: bool  # it also returns tensors of its own
    hidden: tuple[int, ...]  # arguments it mutates in secret
    overwrites: bool  # its target is no operand
    blind: bool  # ... which is its first argument
    view: bool
    same_elements: bool
    copies: bool  # the result holds the same elements in memory of its own
    uninitialised: bool
    pointwise: bool
    inplace_risk: bool
    optimizer_risk: bool  # also inside an optimizer step
    plain: bool  # it writes nothing, so all there is to record is what it returns
    lifts: bool  # it brings in a literal
    special: str  # "" or what the training recorder wants to see
    reads_out: bool = False  # it turns a tensor into a Python number
    scales: bool = False  # it multiplies or divides, perhaps by a Python number
    pads: bool = False  # the result holds the elements of the first operand, and zeros
    scalars: bool = False  # the Python numbers among its operands are noted
    number: int = -1  # of the name, in the recording
    opaque: tuple[int, ...] = ()  # outputs that are no numbers
    indexes: bool = False  # it takes indices that a device cannot refuse without an assertion that ends its context


_SPECIAL = {
    "_amp_update_scale_": "scale",
    "_amp_foreach_non_finite_check_and_unscale_": "unscale",
}


def plan_for(func: Any, names: Names) -> Plan:
    """The plan of an operator overload, from its schema. Its name is entered in ``names``."""
    schema = getattr(func, "_schema", None)
    name = str(getattr(func, "_opname", None) or getattr(func, "__name__", func))
    namespace = getattr(func, "namespace", "")
    if schema is None:  # a higher-order operator
        return Plan(
            name, True, (), False, (), False, False, False, False, False, False, False, False, False, False, False, ""
        )
    writes: list[int | str] = []
    for i, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            writes.append(argument.name if argument.kwarg_only else i)
    out_only = bool(writes) and all(isinstance(w, str) for w in writes)
    view = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
    return Plan(
        name=name,
        skip=namespace in _SKIPPED_NAMESPACES or name in _SKIPPED,
        writes=tuple(writes),
        fresh=bool(writes) and any(r.alias_info is None and "Tensor" in str(r.type) for r in schema.returns),
        hidden=_HIDDEN_WRITES.get(name, ()),
        overwrites=name in _OVERWRITES or out_only,
        blind=name in _OVERWRITES and 0 in writes,
        view=view or name == "lift_fresh",
        same_elements=name in _SAME_ELEMENTS,
        copies=name == "clone",
        uninitialised=name in _UNINITIALISED,
        pointwise=torch.Tag.pointwise in getattr(func, "tags", ()),
        inplace_risk=name in RISKY_IN_PLACE,
        optimizer_risk=name in RISKY_IN_OPTIMIZER,
        plain=not writes and name not in _HIDDEN_WRITES,
        lifts=name == "lift_fresh",
        special=_SPECIAL.get(name, ""),
        reads_out=name == "_local_scalar_dense",
        scales=name in ("mul", "mul_", "div", "div_"),
        pads=name in ("select_backward", "slice_backward"),
        scalars=name in _WITH_SCALARS,
        number=names(name),
        opaque=_OPAQUE.get(name, ()),
        indexes=name in INDEXING,
    )
