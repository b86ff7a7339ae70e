"""Work: how many rows each layer ran for one sequence, by what they were."""

from __future__ import annotations


class Work:
    """Rows by layer; a row is counted once per layer that runs it."""

    def __init__(self, n_layers: int) -> None:
        """Start at zero."""
        self.valid = [0] * n_layers
        """Rows of tokens, each layer's own."""
        self.padded = [0] * n_layers
        """Rows that fill a tile up, and rows before a layer's start."""
        self.rerun = [0] * n_layers
        """Rows of settled tokens, run again for their outputs."""
        self.projected = 0
        """Rows that the decoder's source layer only projected."""

    def count(self, layers: range, *, n_valid: int, n_rows: int) -> None:
        """Count one forward through some layers."""
        for layer in layers:
            self.valid[layer] += n_valid
            self.padded[layer] += n_rows - n_valid

    def count_rerun(self, layers: range, *, n_rows: int) -> None:
        """Count a tile of settled tokens."""
        for layer in layers:
            self.rerun[layer] += n_rows
