"""Rewriting by example: what a program writes, and the form of it that stays in range."""

from __future__ import annotations

from nanlab.fixes.candidates import Candidate, candidates
from nanlab.fixes.catalogue import CATALOGUE, Rule
from nanlab.fixes.match import Rewriting, rewritings
from nanlab.fixes.removable import Removable, removables

__all__ = [
    "CATALOGUE",
    "Candidate",
    "Removable",
    "Rewriting",
    "Rule",
    "candidates",
    "removables",
    "rewritings",
]
