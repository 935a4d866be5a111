"""Autograd graphs so deep that freeing one would overflow the stack, once Python has seen its
nodes.

A node that Python has seen frees the next such node from within its own destructor (torch 2.13);
some 39,700 of them in a row overflow a stack of 8 MiB. A watch sees every node that runs. So it
holds the nodes of a deep graph until nothing else does, and lets go of them one by one, from the
loss's side on: each then frees itself alone.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable
from typing import Any

LEAF = 1 << 63  # AccumulateGrad nodes bear a sequence number above this
# references to a node that only the list holds: the list's, and that of the call which counts them
_ALONE = 2
_held: list[Any] = []  # nearer to the leaves first: a list is freed from its end
_letting_go = False


def hold(seen: set[Any], start: Iterable[Any]) -> set[Any]:
    """Hold the nodes ``seen``, and all others that can be reached from ``start``; the latter."""
    waiting, found, known = list(start), set(seen), set(_held)
    found.update(waiting)
    while waiting:
        for following, _ in waiting.pop().next_functions:
            if following is not None and following not in found:
                found.add(following)
                waiting.append(following)
    _held.extend(node for node in found if node not in known and node._sequence_nr() < LEAF)
    # a node is made after those that its gradient goes to
    _held.sort(key=lambda node: node._sequence_nr())
    if _collected not in gc.callbacks:
        gc.callbacks.append(_collected)
    return found - seen


def let_go() -> None:
    """Free the nodes that nothing else holds, one by one."""
    global _letting_go
    if _letting_go or not _held:
        return
    _letting_go = True
    try:
        left: list[Any] = []
        while _held:
            if sys.getrefcount(_held[-1]) > _ALONE:
                left.append(_held.pop())
            else:
                _held.pop()
        left.reverse()
        _held.extend(left)
    finally:
        _letting_go = False


def _collected(phase: str, info: dict[str, int]) -> None:
    """With each garbage collection, for a graph may outlive the watch: let go once the node nearest
    to the loss is free."""
    if phase == "start" and _held and sys.getrefcount(_held[-1]) <= _ALONE:
        let_go()
