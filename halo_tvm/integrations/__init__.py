"""Compiled models inside other frameworks; each file imports its own framework."""
