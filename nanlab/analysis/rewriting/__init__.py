"""Rewriting by example: what a program writes, and the form of it that stays in range."""

from __future__ import annotations

from nanlab.analysis.rewriting.candidates import Candidate, candidates
from nanlab.analysis.rewriting.catalogue import CATALOGUE, Rule
from nanlab.analysis.rewriting.match import Rewriting, rewritings
from nanlab.analysis.rewriting.removable import Removable, removables

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
