"""What tests ask of a fix that is offered: is it finite where it was tried?"""

from __future__ import annotations

from nanlab.rules import Fix


def holds(fix: Fix) -> bool:
    """Whether the step is finite with a fix; right in its limits too only where it is verified."""
    return fix.verdict in ("verified", "finite")
