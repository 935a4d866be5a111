"""Long runs: nothing is recorded while healthy; a failing step runs again under a watch."""

from nanlab.guards.loader import guard

__all__ = ["guard"]
