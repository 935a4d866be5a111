"""What is wrong with a run although each operation may be right: Trace -> Findings."""
