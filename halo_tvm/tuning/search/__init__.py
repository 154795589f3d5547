"""Searching one task: which decisions to try, in which order, and when to stop."""
