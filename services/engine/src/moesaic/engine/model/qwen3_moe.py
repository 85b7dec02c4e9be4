"""Qwen3-MoE: what its `config.json` means and how its tensors are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from moesaic.engine.model.config import Fields, ModelConfig, eos_ids

ARCHITECTURE = "Qwen3MoeForCausalLM"


def read_config(folder: Path, raw: dict[str, Any]) -> ModelConfig:
    """The sizes. Raises ModelError naming every missing or unsupported setting."""
    fields = Fields(raw)
    fields.require("hidden_act", "silu")
    fields.require("attention_bias", False)
    fields.require("use_sliding_window", False)
    layers = fields.whole("num_hidden_layers")
    heads = fields.whole("num_attention_heads")
    hidden = fields.whole("hidden_size")
    sparse_step = fields.whole("decoder_sparse_step", default=1)
    dense = set(raw.get("mlp_only_layers") or ())
    config = ModelConfig(
        architecture=ARCHITECTURE,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=fields.whole("num_key_value_heads", default=heads),
        head_dim=fields.whole("head_dim", default=max(1, hidden // heads)),
        vocab=fields.whole("vocab_size"),
        context=fields.whole("max_position_embeddings", default=32768),
        norm_eps=float(fields.number("rms_norm_eps", default=1e-6)),
        rope_theta=fields.rope_theta(),
        tied=bool(raw.get("tie_word_embeddings", False)),
        dense_width=fields.whole("intermediate_size", default=1),
        moe_layers=tuple(i for i in range(layers) if i not in dense and (i + 1) % sparse_step == 0),
        experts=fields.whole("num_experts", "num_local_experts"),
        top_k=fields.whole("num_experts_per_tok"),
        expert_width=fields.whole("moe_intermediate_size"),
        renormalise=bool(raw.get("norm_topk_prob", False)),
        eos=eos_ids(folder, raw),
    )
    if not config.moe_layers:
        fields.problems.append("no layer has experts")
    if config.top_k > config.experts:
        fields.problems.append(f"num_experts_per_tok={config.top_k} exceeds {config.experts} experts")
    if config.heads % config.kv_heads:
        fields.problems.append(f"{config.heads} heads do not divide into {config.kv_heads} KV heads")
    fields.done(ARCHITECTURE)
    return config


def tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of the checkpoint with its shape."""
    c = config
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (c.vocab, c.hidden),
        "model.norm.weight": (c.hidden,),
    }
    if not c.tied:
        shapes["lm_head.weight"] = (c.vocab, c.hidden)
    for layer in range(c.layers):
        at = f"model.layers.{layer}."
        shapes |= {
            at + "input_layernorm.weight": (c.hidden,),
            at + "post_attention_layernorm.weight": (c.hidden,),
            at + "self_attn.q_proj.weight": (c.heads * c.head_dim, c.hidden),
            at + "self_attn.k_proj.weight": (c.kv_heads * c.head_dim, c.hidden),
            at + "self_attn.v_proj.weight": (c.kv_heads * c.head_dim, c.hidden),
            at + "self_attn.o_proj.weight": (c.hidden, c.heads * c.head_dim),
            at + "self_attn.q_norm.weight": (c.head_dim,),
            at + "self_attn.k_norm.weight": (c.head_dim,),
        }
        if layer in c.moe_layers:
            shapes[at + "mlp.gate.weight"] = (c.experts, c.hidden)
            for expert in range(c.experts):
                shapes |= mlp(f"{at}mlp.experts.{expert}.", c.hidden, c.expert_width)
        else:
            shapes |= mlp(at + "mlp.", c.hidden, c.dense_width)
    return shapes


def mlp(at: str, hidden: int, width: int) -> dict[str, tuple[int, ...]]:
    """The three tensors of a gated MLP."""
    return {
        at + "gate_proj.weight": (width, hidden),
        at + "up_proj.weight": (width, hidden),
        at + "down_proj.weight": (hidden, width),
    }
