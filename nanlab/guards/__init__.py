"""Long runs: nothing is recorded while they are healthy, and the step that fails is run again under
a watch."""

from nanlab.guards.loader import guard

__all__ = ["guard"]
