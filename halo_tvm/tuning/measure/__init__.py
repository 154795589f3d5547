"""Measuring candidates: the worker process, and the tuner's side of it."""
