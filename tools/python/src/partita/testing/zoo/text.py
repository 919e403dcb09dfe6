"""Language models of transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .case import Case

WORDS, LENGTH = 96, 16
_SMALL: dict[str, Any] = dict(
    vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, max_position_embeddings=64,
    bos_token_id=1, eos_token_id=2, pad_token_id=0, use_cache=False)  # fmt: skip
_GROUPED = dict(num_key_value_heads=2)
_DECODER = dict(d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64,
                decoder_ffn_dim=64, decoder_start_token_id=2)  # fmt: skip
_GPT = dict(n_embd=32, n_layer=2, n_head=4, n_positions=64)

# Prefix of its classes in transformers, what its configuration is called otherwise, and how it is judged.
CAUSAL: dict[str, dict[str, Any]] = {
    "GPT2": _GPT, "GPTNeo": dict(num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]], window_size=8), "GPTNeoX": {},
    "GPTJ": {**_GPT, "rotary_dim": 4}, "GPTBigCode": _GPT, "CodeGen": {**_GPT, "rotary_dim": 4}, "OPT": dict(ffn_dim=64, word_embed_proj_dim=32),
    "Bloom": dict(n_layer=2, n_head=4), "Mpt": dict(d_model=32, n_heads=4, n_layers=2, max_seq_len=64), "Falcon": {}, "Llama": _GROUPED,
    "Mistral": _GROUPED, "Mixtral": {**_GROUPED, "num_local_experts": 4}, "Qwen2": _GROUPED, "Qwen2Moe": {**_GROUPED, "num_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}, "Qwen3": {**_GROUPED, "head_dim": 8}, "Gemma": {**_GROUPED, "head_dim": 8},
    "Gemma2": {**_GROUPED, "head_dim": 8}, "Gemma3": {**_GROUPED, "head_dim": 8}, "Phi": {}, "Phi3": _GROUPED, "StableLm": _GROUPED, "Olmo": _GROUPED,
    "Olmo2": _GROUPED, "Cohere": _GROUPED, "Granite": _GROUPED, "SmolLM3": _GROUPED, "Starcoder2": _GROUPED, "Helium": {**_GROUPED, "head_dim": 8},
    "Glm": {**_GROUPED, "head_dim": 8}, "Nemotron": _GROUPED, "Persimmon": {},
    "BioGpt": {}, "Ernie4_5": _GROUPED, "Arcee": _GROUPED, "Mamba": dict(state_size=4, expand=2, time_step_rank=4),
    "DeepseekV3": dict(moe_intermediate_size=32, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1, kv_lora_rank=8, q_lora_rank=16,
                       qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8, first_k_dense_replace=1, num_key_value_heads=4),
    "OpenAIGPT": _GPT, "CTRL": {**_GPT, "dff": 64}, "XLNet": dict(d_model=32,
    n_layer=2, n_head=4, d_inner=64, max_position_embeddings=None), "Olmoe": {**_GROUPED, "num_experts": 4, "num_experts_per_tok": 2}, "GraniteMoe": {**_GROUPED, "num_local_experts": 4},
    "Qwen3Moe": {**_GROUPED, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 8}, "DiffLlama": _GROUPED,
    "GptOss": {**_GROUPED, "num_local_experts": 4, "head_dim": 8}, "Apertus": _GROUPED, "Exaone4": _GROUPED, "FalconMamba": dict(state_size=4, expand=2,
    time_step_rank=4), "Mamba2": dict(num_heads=8, head_dim=8, state_size=4, n_groups=1, chunk_size=8),
    "Olmo3": _GROUPED, "Cohere2": _GROUPED, "NanoChat": _GROUPED, "BitNet": _GROUPED, "ModernBertDecoder": dict(local_attention=8),
    "Lfm2": {**_GROUPED, "layer_types": ["conv", "full_attention"]}, "RecurrentGemma": dict(num_hidden_layers=3, lru_width=32, num_key_value_heads=1,
    attention_window_size=8, head_dim=8), "Rwkv": dict(attention_hidden_size=32, context_length=64), "Jamba": {**_GROUPED, "attn_layer_period": 2,
    "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1, "num_experts": 4, "mamba_d_state": 4, "mamba_dt_rank": 4, "use_mamba_kernels": False},
    "Bamba": {**_GROUPED, "attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 4, "mamba_n_groups": 1, "mamba_chunk_size": 8},
    "xLSTM": dict(num_heads=4, num_blocks=2, embedding_dim=32, chunkwise_kernel="chunkwise--native_autograd", sequence_kernel="native_sequence__native",
    step_kernel="native"), "MiniMax": {**_GROUPED, "num_local_experts": 4, "layer_types": ["linear_attention", "full_attention"], "block_size": 8, "head_dim": 8},
    "Qwen3Next": {**_GROUPED, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "layer_types": ["linear_attention", "full_attention"]},
    "DeepseekV2": dict(moe_intermediate_size=32, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1, kv_lora_rank=8, q_lora_rank=16,
                       qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8, first_k_dense_replace=1, num_key_value_heads=4),
}  # fmt: skip
MASKED: dict[str, dict[str, Any]] = {
    "Bert": {}, "Roberta": {}, "XLMRoberta": {}, "Camembert": {}, "DistilBert": dict(dim=32, n_layers=2, n_heads=4, hidden_dim=64),
    "Albert": dict(embedding_size=16), "Electra": dict(embedding_size=16), "DebertaV2": {}, "MPNet": {}, "ModernBert": dict(local_attention=8),
    "ConvBert": dict(embedding_size=16), "SqueezeBert": dict(embedding_size=32, q_groups=1, k_groups=1, v_groups=1, post_attention_groups=1,
    intermediate_groups=1, output_groups=1), "RoFormer": dict(embedding_size=16), "MobileBert": dict(embedding_size=16, intra_bottleneck_size=16,
    true_hidden_size=16), "BigBird": dict(attention_type="original_full"), "FNet": {}, "Ernie": {}, "Nystromformer": dict(num_landmarks=4, segment_means_seq_len=16),
    "RemBert": dict(input_embedding_size=16, output_embedding_size=16), "IBert": {}, "Data2VecText": {}, "Esm": dict(mask_token_id=3, position_embedding_type="rotary"), "Deberta": {}, "MegatronBert": {},
    "Longformer": dict(attention_window=8), "Funnel": dict(block_sizes=[1, 1], d_model=32, n_head=4, d_head=8, d_inner=64, num_hidden_layers=None), "LayoutLM": {},
    "Xmod": dict(default_language="en_XX", languages=["en_XX"]), "RobertaPreLayerNorm": {}, "NomicBert": {}, "EuroBert": _GROUPED,
    "XLM": dict(emb_dim=32, n_layers=2, n_heads=4, n_words=WORDS), "Flaubert": dict(emb_dim=32, n_layers=2, n_heads=4, n_words=WORDS),
}  # fmt: skip
TRANSLATION: dict[str, dict[str, Any]] = {
    "T5": dict(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0),
    "MT5": dict(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0),
    "UMT5": dict(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0), "LED": {**_DECODER, "attention_window": 8},
    "Bart": _DECODER, "MBart": _DECODER, "Pegasus": _DECODER, "Marian": _DECODER, "BlenderbotSmall": _DECODER, "PLBart": _DECODER, "M2M100": _DECODER,
    "BigBirdPegasus": {**_DECODER, "attention_type": "original_full"}, "PegasusX": {**_DECODER, "block_size": 8}, "Blenderbot": _DECODER,
}  # fmt: skip
_SUFFIX = {**dict.fromkeys(("GPT2", "OpenAIGPT", "CTRL", "XLNet"), "LMHeadModel"), "Gemma3": "ForCausalLM"}
_CONFIG = {"Gemma3": "Gemma3TextConfig"}
# Others that have another attention by their configuration.
_WINDOWS: dict[str, dict[str, Any]] = {"Mistral": dict(sliding_window=8), "Gemma3": dict(sliding_window=8, num_hidden_layers=6)}
_RELATIVE = dict(relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8)


def cases() -> list[Case]:
    found = [Case(f"transformers.{n}", _maker(n, _SUFFIX.get(n, "ForCausalLM"), k), _tokens) for n, k in CAUSAL.items()]
    found += [Case(f"transformers.{n} (masked)", _maker(n, "WithLMHeadModel" if n in ("XLM", "Flaubert") else "ForMaskedLM", k), _tokens) for n, k in MASKED.items()]
    found += [Case(f"transformers.{n}", _maker(n, "MTModel" if n == "Marian" else "ForConditionalGeneration", k), _tokens) for n, k in TRANSLATION.items()]
    found += [Case(f"transformers.{n} (windows)", _maker(n, "ForCausalLM", {**CAUSAL[n], **k}), _tokens) for n, k in _WINDOWS.items()]
    found += [Case("transformers.DebertaV2 (masked, relative)", _maker("DebertaV2", "ForMaskedLM", _RELATIVE), _tokens)]
    found += [Case("transformers.Bert (classes)", _maker("Bert", "ForSequenceClassification", {"num_labels": 3}), _classified)]
    return found


def _maker(name: str, suffix: str, keys: dict[str, Any]) -> Any:
    def make() -> nn.Module:
        import transformers

        config = getattr(transformers, _CONFIG.get(name, name + "Config"))(**{k: v for k, v in {**_SMALL, **keys}.items() if v is not None})
        config._experts_implementation = "batched_mm"  # fp64 has no grouped products
        return getattr(transformers, name + suffix)(config)

    return make


def _tokens(samples: int) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(4, WORDS, (samples, LENGTH)), "labels": torch.randint(4, WORDS, (samples, LENGTH))}


def _classified(samples: int) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(4, WORDS, (samples, LENGTH)), "labels": torch.randint(0, 3, (samples,))}
