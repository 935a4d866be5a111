"""Long runs: nothing is recorded until a step fails; that step runs again under a watch."""

from nanlab.guards.loader import guard

__all__ = ["guard"]
