"""V41State: what is in RAM for one sequence of a `deepseek_v41` model, by absolute position.

Source rows below `settled` are a function of the tokens below it alone and never change. Encoder
windows and encoder outputs are kept for the last rows only, as far back as the next replay may
reach; all can be made again from the ids and the source rows. Decoder windows belong to one prefill
and its decoded tokens.
"""

from __future__ import annotations

from ced_kernels.block_codes import WINDOW
from cedagent.engine.v41.outputs import OutputRows
from cedagent.engine.v41.work import Work
from cedagent.model.encoder import EncoderRows
from cedagent.model.source import SourceRows
from cedagent.model.stored_rows import StoredRows
from cedagent.model.v41_config import V41Config


class V41State:
    """Source rows, encoder windows, encoder outputs and decoder windows of one sequence."""

    def __init__(self, config: V41Config) -> None:
        """Start empty."""
        self.config = config
        self.sources = {
            layer: SourceRows(config, layer=layer) for layer in config.kv_source_layer_ids
        }
        self.windows = [self.new_window() for _ in range(config.n_encoder_layers)]
        self.outputs = OutputRows(config.hc_mult, config.hidden_size)
        self.decoder_windows: list[StoredRows] = []
        self.settled = 0
        """F: source rows of the tokens below are settled."""
        self.work = Work(config.num_hidden_layers)

    @property
    def encoder_rows(self) -> EncoderRows:
        """What the encoder reads and writes."""
        return EncoderRows(self.windows, self.sources)

    def new_window(self, base: int = 0) -> StoredRows:
        """Return window rows of one layer, empty, that begin at `base`."""
        return StoredRows(WINDOW, self.config.head_dim, base=base)

    def drop_overlay(self) -> None:
        """Forget rows from `settled` on, decoder windows and the pending tokens."""
        self.decoder_windows = []
        for source in self.sources.values():
            source.latents.cut(self.settled // source.ratio)
            source.keys.cut(self.settled // source.ratio)
            source.pending = None
        for window in self.windows:
            window.cut(self.settled)
        self.outputs.cut(self.settled)

    def copy_settled(self, source: V41State, stop: int) -> None:
        """Copy settled source rows [settled, stop) from another sequence."""
        for layer, mine in self.sources.items():
            theirs = source.sources[layer]
            first, last = self.settled // mine.ratio, stop // mine.ratio
            mine.latents.copy_rows(theirs.latents, first, last)
            mine.keys.copy_rows(theirs.keys, first, last)
        self.settled = stop
