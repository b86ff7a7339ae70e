"""Arithmetic of CED models: one module per operation, each a reference in plain torch.

Knows tensors and formulas; knows no model, no checkpoint and no cache. Every operation is
deterministic on a CPU: its bits depend on its inputs' values and shapes alone, not on threads.
"""
