"""Small edits of a program that raised, by what is edited."""
