"""Questions across many operations."""
