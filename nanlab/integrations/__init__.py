"""Callbacks for trainers: the step is a method there, so it can be run again without its source."""
