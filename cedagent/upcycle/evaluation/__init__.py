"""Judges a model: closeness to its parent by position, tool use, needles, and what it costs."""
