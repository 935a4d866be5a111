"""What there is to know of an operator before it runs: what it writes, whether it makes a view."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from nanlab.capture.indices import INDEXING
from nanlab.operators import card, having, in_place
from nanlab.trace.names import Names

# Writes all of its target without reading it, so what was there before is no operand.
_OVERWRITES = in_place(having("overwrites", lists=True))
# The same elements in another shape or order: the statistics are those of the base.
_SAME_ELEMENTS = having("same_elements")
_UNINITIALISED = having("uninitialised")
# Operators that tell nothing about numbers.
_SKIPPED_NAMESPACES = frozenset({"profiler", "prim", "prims"})
FUNCTIONAL = frozenset("_c10d_functional c10d_functional _c10d_functional_autograd".split())
# namespaces of the operators that exchange tensors with other processes
COLLECTIVES = FUNCTIONAL | {"c10d"}
_SCALES = having("scales", in_place=True)
_SKIPPED = having("skipped")
_FILLS = having("fills")
# Pure functions of one operand that destroy it when done in place; worth a copy of a small operand.
RISKY_IN_PLACE = in_place(having("lossy"))


# The Python numbers of such a call are noted: epsilons, bounds, factors, exponents.
_WITH_SCALARS = having("arithmetic", "clamps", in_place=True)
RISKY_IN_OPTIMIZER = in_place(having("lossy_in_optimizer"))


@dataclass(frozen=True, slots=True)
class Plan:
    """How to record the calls of one operator overload."""

    name: str  # aten name without overload
    skip: bool
    writes: tuple[int | str, ...]  # arguments it mutates, by index or keyword
    fresh: bool  # it also returns tensors of its own
    hidden: tuple[int, ...]  # arguments it mutates in secret
    overwrites: bool  # its target is no operand
    blind: bool  # ... which is its first argument, or the second of one that `fills`
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
    draws: bool = False  # it draws random numbers
    namespace: str = "aten"
    fills: bool = False  # what it returns first is memory that it has written
    collective: bool = False  # it exchanges tensors with other processes; `skip` holds too
    # it takes indices that a device cannot refuse without an assertion that ends its context
    indexes: bool = False


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
            name,
            True,
            (),
            False,
            (),
            False,
            False,
            False,
            False,
            False,
            False,
            False,
            False,
            False,
            False,
            False,
            "",
        )
    writes: list[int | str] = []
    for i, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            writes.append(argument.name if argument.kwarg_only else i)
    known = card(name)
    out_only = bool(writes) and all(isinstance(w, str) for w in writes)
    view = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
    return Plan(
        name=name,
        skip=namespace in _SKIPPED_NAMESPACES or name in _SKIPPED or namespace in COLLECTIVES,
        writes=tuple(writes),
        fresh=bool(writes)
        and any(r.alias_info is None and "Tensor" in str(r.type) for r in schema.returns),
        hidden=known.hidden_writes,
        overwrites=name in _OVERWRITES or out_only,
        blind=(name in _OVERWRITES and 0 in writes) or name in _FILLS,
        view=view or name == "lift_fresh",
        same_elements=name in _SAME_ELEMENTS,
        copies=name == "clone",
        uninitialised=name in _UNINITIALISED,
        pointwise=torch.Tag.pointwise in getattr(func, "tags", ()),
        inplace_risk=name in RISKY_IN_PLACE,
        optimizer_risk=name in RISKY_IN_OPTIMIZER,
        fills=name in _FILLS,
        plain=not writes and not known.hidden_writes and name not in _FILLS,
        lifts=name == "lift_fresh",
        special=_SPECIAL.get(name, ""),
        reads_out=name == "_local_scalar_dense",
        scales=name in _SCALES,
        pads=name in ("select_backward", "slice_backward"),
        scalars=name in _WITH_SCALARS,
        number=names(name),
        opaque=known.opaque,
        draws=torch.Tag.nondeterministic_seeded in getattr(func, "tags", ()),
        namespace=namespace,
        collective=namespace in COLLECTIVES and name not in _SKIPPED,
        indexes=name in INDEXING,
    )
