"""The sizes of Engram's tables: one prime for each layer, n-gram order and head.

Technical report arXiv 2609.19969, the part on Engram; fields engram_layer_ids,
engram_max_ngram_size, engram_n_heads, engram_vocab_size and engram_num_embeddings. Knows integers
alone. Invariant: no prime serves twice, and a layer's primes add up to the rows of its table.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from math import isqrt
from typing import TYPE_CHECKING, Any

from cedagent.errors import ConfigError
from cedagent.model.engram_map import config_field

if TYPE_CHECKING:
    from cedagent.model.v41_config import V41Config


def primes(config: Mapping[str, Any] | V41Config) -> list[list[list[int]]]:
    """Return the table sizes [layer][n-gram order][head]: the primes from engram_vocab_size on.

    Raises ConfigError when a layer's sizes do not add up to its engram_num_embeddings, which a
    mapping may leave out.
    """
    layers = config_field(config, "engram_layer_ids")
    n_orders = config_field(config, "engram_max_ngram_size") - 1
    n_heads = config_field(config, "engram_n_heads")
    smallest = config_field(config, "engram_vocab_size")
    rows = _table_rows(config, layers)
    found = (n for n in count(smallest) if _is_prime(n))
    sizes = []
    for layer, n_rows in zip(layers, rows, strict=True):
        least = smallest * n_orders * n_heads
        # Searching for so many primes could take hours.
        if n_rows is not None and least > n_rows:
            raise _another_size(layer, f"at least {least}", n_rows)
        orders = [[next(found) for _ in range(n_heads)] for _ in range(n_orders)]
        needed = sum(map(sum, orders))
        if n_rows is not None and needed != n_rows:
            raise _another_size(layer, str(needed), n_rows)
        sizes.append(orders)
    return sizes


def _table_rows(
    config: Mapping[str, Any] | V41Config, layers: tuple[int, ...]
) -> tuple[int | None, ...]:
    if isinstance(config, Mapping) and config.get("engram_num_embeddings") is None:
        return (None,) * len(layers)
    rows: tuple[int, ...] = config_field(config, "engram_num_embeddings")
    if len(rows) != len(layers):
        raise ConfigError(
            f"expected one engram_num_embeddings per engram_layer_ids, got {len(rows)} and "
            f"{len(layers)}"
        )
    return rows


def _another_size(layer: int, needed: str, n_rows: int) -> ConfigError:
    return ConfigError(
        f"Engram of layer {layer}: hashes reach {needed} table rows, but engram_num_embeddings "
        f"is {n_rows}"
    )


def _is_prime(n: int) -> bool:
    # Trial division: candidates are near 16 million, where 2,000 divisors settle it for certain.
    if n < 4:
        return n >= 2
    return n % 2 == 1 and all(n % divisor for divisor in range(3, isqrt(n) + 1, 2))
