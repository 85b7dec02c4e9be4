"""Small random checkpoints of real Hugging Face classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

transformers.logging.set_verbosity_error()

CONFIGS: dict[str, dict[str, Any]] = {
    "sixteen experts": {"num_experts": 16, "num_experts_per_tok": 4},
    "odd sizes, untied, not renormalised": {
        "num_experts": 7,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 36,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "head_dim": 20,
        "norm_topk_prob": False,
    },
    "dense layers between, tied": {
        "num_experts": 8,
        "num_experts_per_tok": 1,
        "decoder_sparse_step": 2,
        "num_hidden_layers": 4,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    },
}


def make(folder: Path, name: str, shards: int = 1) -> Qwen3MoeForCausalLM:
    """Save a random model with weights large enough for routers that choose; the model itself."""
    settings = {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
        "max_position_embeddings": 256,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
        "mlp_only_layers": [],
    }
    torch.manual_seed(sum(map(ord, name)))
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**settings | CONFIGS[name])).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, parameter.shape[-1] ** -0.5 * 1.2)
    size = sum(p.numel() * 4 for p in model.parameters())
    model.save_pretrained(folder, max_shard_size=size if shards == 1 else size // shards)
    (folder / "tokenizer.json").write_text("{}")
    return model
