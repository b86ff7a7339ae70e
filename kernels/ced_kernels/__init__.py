"""Arithmetic of CED models: references in plain torch, and `native`, which computes the same in C.

Knows tensors and formulas; knows no model, no checkpoint and no cache. Every operation is
deterministic on a CPU: its bits depend on its inputs' values and shapes alone, not on threads.
"""
