"""Running code -> Trace."""

from nanlab.capture.exception_frames import without_ours
from nanlab.capture.watching import FaultFound, StepsDone, watch

__all__ = ["FaultFound", "StepsDone", "watch", "without_ours"]
