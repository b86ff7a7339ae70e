"""What a `deepseek_v41` config.json must not say beside the fields that are read.

Fields that other models have and that would change the arithmetic, copies that contradict the field
that is read, and spellings of the rotary frequencies that differ from rope_scaling (config.json of
the release, technical report arXiv 2609.19969). Values that mean "off" are accepted, and fields
that only describe are ignored. Every refusal is a ConfigError of one line that names the field.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ced_kernels.rope import Yarn
from cedagent.errors import ConfigError
from cedagent.model.config_fields import shown
from cedagent.model.rope_scaling import yarn_as_json
from cedagent.model.v41_rules import QUANTIZATION

if TYPE_CHECKING:
    from cedagent.model.v41_config import V41Config

_OFF: Mapping[str, tuple[object, ...]] = {
    **dict.fromkeys(("attention_bias", "mlp_bias", "use_qk_norm", "qk_norm"), (False,)),
    **dict.fromkeys(("final_logit_softcapping", "attn_logit_softcapping"), (0,)),
    **dict.fromkeys(("logit_scale", "logits_scaling", "attention_multiplier"), (1,)),
    **dict.fromkeys(("embedding_multiplier", "residual_multiplier"), (1,)),
    **dict.fromkeys(("n_group", "topk_group"), (1, 0)),
    **dict.fromkeys(("moe_layer_freq", "decoder_sparse_step"), (1,)),
    **dict.fromkeys(("first_k_dense_replace", "num_hash_layers"), (0,)),
    **dict.fromkeys(("rope_interleave", "use_sliding_window"), (True,)),
    "mlp_only_layers": ([],),
}
"""Fields that other models have, with the values beside null that change nothing here."""


def check_unserved(
    values: Mapping[str, Any], text: Mapping[str, Any], *, names: Iterable[str], where: str
) -> None:
    """Refuse what would change the arithmetic, and copies at the top that contradict text_config.

    `names` are the fields that are read. Raises ConfigError.
    """
    for place in (text, values):
        for name, off in _OFF.items():
            if place.get(name) is not None and place[name] not in off:
                raise ConfigError(
                    f"{where}: {name} = {shown(place[name])} is not served; expected {off[0]!r} or "
                    "nothing"
                )
    for name in names:
        top, inner = values.get(name), text.get(name)
        if top is not None and inner is not None and _plain(top) != _plain(inner):
            raise ConfigError(
                f"{where}: {name} = {shown(top)} beside text_config, which says {shown(inner)}; "
                "expected one value"
            )
    _check_quantization("quantization_config", values.get("quantization_config"), where=where)
    inner = text.get("quantization_config")
    _check_quantization("text_config.quantization_config", inner, where=where)


def check_agreement(
    config: V41Config, values: Mapping[str, Any], text: Mapping[str, Any], *, where: str
) -> None:
    """Refuse fields that say in other words what the config says, and say it differently.

    Raises ConfigError.
    """
    sources = config.kv_source_layer_ids
    said: dict[str, tuple[object, ...]] = {
        "layer_types": (
            [
                "shared_compressed_attention" if layer in sources else "sliding_attention"
                for layer in range(config.num_hidden_layers)
            ],
        ),
        "num_local_experts": (config.n_routed_experts,),
        "query_pre_attn_scalar": (config.head_dim,),
        "partial_rotary_factor": _rotated_parts(config),
    }
    for place in (text, values):
        for name, served in said.items():
            if place.get(name) is not None and place[name] not in served:
                raise ConfigError(
                    f"{where}: {name} = {shown(place[name])} contradicts the other fields; "
                    f"expected {shown(served[-1])} or nothing"
                )
        for name in ("rope_scaling", "rope_parameters"):
            if place.get(name) is not None:
                _check_rope(config, name, place[name], where=where)


def _check_quantization(name: str, values: object, *, where: str) -> None:
    if values is None:
        return
    if not isinstance(values, dict):
        raise ConfigError(f"{where}: {name} must be an object, got {shown(values)}")
    for key, served in QUANTIZATION.items():
        if key in values and values[key] != served:
            raise ConfigError(
                f"{where}: {name}.{key} = {shown(values[key])} is not served; expected {served!r}"
            )


def _check_rope(config: V41Config, name: str, said: object, *, where: str) -> None:
    """Compare one spelling of the rotary frequencies, whole or by kind of layer."""
    if not isinstance(said, dict):
        raise ConfigError(f"{where}: {name} must be an object or null, got {shown(said)}")
    plain, compressed = config.rope_theta, config.compress_rope_theta
    thetas = (compressed,) if name == "rope_scaling" else (compressed, plain)
    parts: list[tuple[str, object, Yarn | None, tuple[float, ...]]]
    parts = [("", said, config.rope_scaling, thetas)]
    if "main" in said or "compress" in said:
        parts = [
            (".main", said.get("main"), None, (plain,)),
            (".compress", said.get("compress"), config.rope_scaling, (compressed,)),
        ]
    for part, given, yarn, bases in parts:
        if given is None:
            continue
        if not isinstance(given, dict):
            raise ConfigError(f"{where}: {name}{part} must be an object, got {shown(given)}")
        expected = _rope_fields(yarn) | {
            "rope_theta": bases,
            "partial_rotary_factor": _rotated_parts(config),
            "attention_factor": (1,),
            "truncate": (True,),
        }
        for key, served in expected.items():
            if given.get(key) is not None and given[key] not in served:
                raise ConfigError(
                    f"{where}: {name}{part}.{key} = {shown(given[key])} contradicts the other "
                    f"fields; expected {served[0]!r}"
                )


def _rope_fields(yarn: Yarn | None) -> dict[str, tuple[object, ...]]:
    said = yarn_as_json(yarn) or {"rope_type": "default", "factor": 1}
    said["type"] = said["rope_type"]
    return {key: (value,) for key, value in said.items()}


def _rotated_parts(config: V41Config) -> tuple[object, ...]:
    # Some count the channels of a head, some those that may turn at all.
    return (1, config.qk_rope_head_dim / config.head_dim)


def _plain(value: object) -> object:
    return value[0] if isinstance(value, list) and len(value) == 1 else value
