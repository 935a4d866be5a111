"""nanlab: an interactive debugger for numerical faults in PyTorch training."""

from __future__ import annotations

from typing import Any

from nanlab import rules as rules  # loaded here: a fault is judged inside of a watch
from nanlab import safe
from nanlab.analysis.compare import compare_step as compare
from nanlab.analysis.difference import diff
from nanlab.analysis.epsilon import advise_eps
from nanlab.capture import FaultFound, watch
from nanlab.errors import CapsuleError, NanlabError, NotReplayable
from nanlab.explanations import explain
from nanlab.guards import guard
from nanlab.program.capsule import load
from nanlab.trace import Trace

last: Trace | None = None  # the most recent trace
__version__ = "0.1.0"


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext nanlab``"""
    from nanlab.notebook import magics

    magics.load_ipython_extension(shell)


def unload_ipython_extension(shell: Any) -> None:
    """``%unload_ext nanlab``"""
    from nanlab.notebook import magics

    magics.unload_ipython_extension(shell)


__all__ = [
    "CapsuleError",
    "FaultFound",
    "NanlabError",
    "NotReplayable",
    "Trace",
    "advise_eps",
    "compare",
    "diff",
    "explain",
    "guard",
    "last",
    "load",
    "safe",
    "watch",
]
