"""KernelBench's level 4: its twenty Hugging Face models and inputs, of the same sizes, with random weights.

Source: https://github.com/ScalingIntelligence/KernelBench, KernelBench/level4, where configurations are read from a
hub: here they stand written out. As there, tokens are random, the loaded model is in evaluation mode and the module
around it is not, and the result is the logits.
"""

from __future__ import annotations

from typing import Any

from network_lists.declaration import Network

#: By the name in KernelBench: class, configuration, and a tiny one.
_MODELS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "EleutherAI-gpt-neo-2p7B": (
        "GPTNeoForCausalLM", "GPTNeoConfig",
        {"vocab_size": 50257, "hidden_size": 2560, "num_layers": 32, "num_heads": 20,
         "attention_types": [[["global", "local"], 16]], "max_position_embeddings": 2048, "window_size": 256},
        {"vocab_size": 100, "hidden_size": 32, "num_layers": 2, "num_heads": 4,
         "attention_types": [[["global", "local"], 1]], "max_position_embeddings": 64, "window_size": 8}),
    "facebook-opt-1p3b": (
        "OPTForCausalLM", "OPTConfig",
        {"vocab_size": 50272, "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32, "ffn_dim": 8192,
         "max_position_embeddings": 2048, "word_embed_proj_dim": 2048, "prefix": "</s>"},
        {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 64,
         "max_position_embeddings": 64, "word_embed_proj_dim": 32}),
    "google-bigbird-roberta-base": (
        "BigBirdForCausalLM", "BigBirdConfig",
        {"vocab_size": 50358, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
         "intermediate_size": 3072, "max_position_embeddings": 4096, "attention_type": "block_sparse",
         "block_size": 64, "num_random_blocks": 3},
        {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 64, "max_position_embeddings": 128, "attention_type": "block_sparse", "block_size": 4,
         "num_random_blocks": 1}),
    "facebook-bart-large": (
        "BartForCausalLM", "BartConfig",
        {"vocab_size": 50265, "d_model": 1024, "encoder_layers": 12, "decoder_layers": 12,
         "encoder_attention_heads": 16, "decoder_attention_heads": 16, "encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096,
         "max_position_embeddings": 1024},
        {"vocab_size": 100, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
         "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64}),
    "google-electra-small-discriminator": (
        "ElectraForCausalLM", "ElectraConfig",
        {"vocab_size": 30522, "embedding_size": 128, "hidden_size": 256, "num_hidden_layers": 12,
         "num_attention_heads": 4, "intermediate_size": 1024, "max_position_embeddings": 512},
        {"vocab_size": 100, "embedding_size": 16, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 64, "max_position_embeddings": 64}),
    "google-reformer-enwik8": (
        "ReformerModelWithLMHead", "ReformerConfig",
        {"vocab_size": 258, "hidden_size": 1024, "attention_head_size": 128, "num_attention_heads": 8,
         "feed_forward_size": 4096, "attn_layers": ["local", "local", "lsh", "local"] * 3, "axial_pos_embds": True,
         "axial_pos_embds_dim": [256, 768], "axial_pos_shape": [128, 512], "axial_norm_std": 1.0,
         "max_position_embeddings": 65536, "local_attn_chunk_length": 128, "lsh_attn_chunk_length": 256,
         "num_buckets": 512, "num_hashes": 4, "hidden_dropout_prob": 0.2, "lsh_attention_probs_dropout_prob": 0.1,
         "local_attention_probs_dropout_prob": 0.2, "is_decoder": True},
        {"vocab_size": 100, "hidden_size": 32, "attention_head_size": 8, "num_attention_heads": 4,
         "feed_forward_size": 64, "attn_layers": ["local", "lsh"], "axial_pos_embds": True,
         "axial_pos_embds_dim": [8, 24], "axial_pos_shape": [8, 8], "max_position_embeddings": 64,
         "local_attn_chunk_length": 4, "lsh_attn_chunk_length": 4, "num_buckets": 4, "num_hashes": 2,
         "is_decoder": True}),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {"vocab_size": 50257},
             {"vocab_size": 100, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}),
}

#: Number, model, batch and length of each problem.
_PROBLEMS = (
    (1, "EleutherAI-gpt-neo-2p7B", 32, 256), (2, "facebook-opt-1p3b", 1, 2047), (3, "EleutherAI-gpt-neo-2p7B", 1, 2047),
    (4, "facebook-opt-1p3b", 32, 256), (5, "google-bigbird-roberta-base", 1, 4095), (6, "facebook-bart-large", 1, 1023),
    (7, "gpt2", 32, 256), (8, "facebook-opt-1p3b", 512, 32), (9, "google-bigbird-roberta-base", 32, 256),
    (10, "google-bigbird-roberta-base", 1024, 32), (11, "google-electra-small-discriminator", 1, 511),
    (12, "google-electra-small-discriminator", 1024, 32), (13, "google-reformer-enwik8", 32, 256),
    (14, "google-electra-small-discriminator", 32, 256), (15, "google-reformer-enwik8", 1024, 32),
    (16, "gpt2", 1, 1023), (17, "facebook-bart-large", 1024, 32), (18, "EleutherAI-gpt-neo-2p7B", 512, 32),
    (19, "gpt2", 1024, 32), (20, "facebook-bart-large", 32, 256))


def _problem(number: int, name: str, batch: int, length: int) -> Network:
    kind, configuration, options, tiny = _MODELS[name]
    return Network(
        f"{number}_{name}_bs{batch}_seq{length}", "transformers",
        f"transformers.{kind}(transformers.{configuration}(**OPTIONS))",
        {"x": "torch.randint(0, OPTIONS['vocab_size'], (BATCH, LENGTH))"},
        {"BATCH": batch, "LENGTH": length, "OPTIONS": options},
        # Lengths keep their sort: one less than the longest, or a part of it.
        {"BATCH": 1 if batch == 1 else 2, "LENGTH": 63 if batch == 1 else 16, "OPTIONS": tiny}, "import transformers",
        result="self.network(x).logits", outer_training=True)


NETWORKS = tuple(_problem(*row) for row in _PROBLEMS)
