"""Running code -> Trace."""

from nanlab.capture.watching import FaultFound, StepsDone, watch

__all__ = ["FaultFound", "StepsDone", "watch"]
