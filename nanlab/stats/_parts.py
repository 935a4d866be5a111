"""The loop of one thread of a team over its parts of a tensor, for OpenMP to call."""

# mypy: ignore-errors
# The types of compiled code are numba's, inferred from the signature that the kernels are compiled
# for.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import cfunc, types
from numba.core import cgutils
from numba.core.base import BaseContext
from numba.core.typing.templates import Signature
from numba.extending import intrinsic

from nanlab.stats import _layout as L
from nanlab.stats._cpu32 import summarise32
from nanlab.stats._jit import SIGNATURE, least, pointer_int64

# Words of a job.
ADDRESS, SIZE, KIND, ITEM_SIZE, PARTS, PART_SIZE, STATES, KERNEL, THREAD_NUMBER, THREADS = range(10)
JOB_WIDTH = 10


@intrinsic
def call_kernel(
    typing_context: Any,
    function: types.Type,
    address: types.Type,
    size: types.Type,
    kind: types.Type,
    state: types.Type,
) -> tuple[Signature, Callable[..., ir.Value]]:
    """Call the kernel that lies at an address."""

    def generate(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Any
    ) -> ir.Value:
        kind = context.call_conv.get_function_type(SIGNATURE.return_type, SIGNATURE.args)
        function = builder.inttoptr(arguments[0], kind.as_pointer())
        returned = cgutils.alloca_once(builder, ir.IntType(64))
        error = cgutils.alloca_once(builder, kind.args[1].pointee)
        builder.call(function, [returned, error, *arguments[1:]])
        return builder.load(returned)

    return types.int64(*[types.int64] * 5), generate


@intrinsic
def call_count(
    typing_context: Any, function: types.Type
) -> tuple[Signature, Callable[..., ir.Value]]:
    """Call the C function without arguments that lies at an address, for the int that it
    returns."""

    def generate(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Any
    ) -> ir.Value:
        kind = ir.FunctionType(ir.IntType(32), [])
        found = builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), [])
        return builder.sext(found, ir.IntType(64))

    return types.int64(types.int64), generate


def count_parts(address):
    """Count this thread's share of the parts of a job."""
    job = pointer_int64(address)
    size, length, threads = job[SIZE], job[PART_SIZE], call_count(job[THREADS])
    part = call_count(job[THREAD_NUMBER])
    while part < job[PARTS]:
        first = part * length
        begin, state = (
            job[ADDRESS] + first * job[ITEM_SIZE],
            job[STATES] + part * (8 * L.STATE_WIDTH),
        )
        call_kernel(job[KERNEL], begin, least(length, size - first), job[KIND], state)
        part += threads


def compiled() -> Any:
    """``count_parts`` as a C function, from numba's cache if it can be written to."""
    signature = types.void(types.int64)
    try:
        return cfunc(signature, cache=True)(count_parts)
    except (RuntimeError, OSError):
        return cfunc(signature)(count_parts)


def address_of_kernel() -> int:
    """Where the compiled kernel begins."""
    result = summarise32.overloads[SIGNATURE.args]
    return int(result.library.get_pointer_to_function(result.fndesc.llvm_func_name))
