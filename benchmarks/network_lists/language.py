"""transformers: decoders, encoders, both, vision, audio, mixtures of experts, state spaces, and steps with a cache.

Configurations are made here; what is given stands in keywords, and what comes back is the package's own object.
"""

from __future__ import annotations

from typing import Any

from network_lists.declaration import Network

_TOKENS = {"input_ids": "torch.randint(3, VOCABULARY, (BATCH, LENGTH))"}
_MASK = {"attention_mask": "(torch.arange(LENGTH) < torch.randint(LENGTH // 2, LENGTH + 1, (BATCH, 1))).long()"}
_IMAGE = {"pixel_values": "torch.randn(BATCH, 3, SIZE, SIZE, dtype=FLOAT)"}
_WAVE = {"input_values": "torch.randn(BATCH, LENGTH, dtype=FLOAT)"}

#: The names that most configurations share, in a tiny size.
_TINY = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
_TINY_DECODER = {**_TINY, "num_key_value_heads": 2}
_DECODER = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8, "num_attention_heads": 16,
            "num_key_value_heads": 4}
_PLAIN = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def _network(name: str, kind: str, given: dict[str, str], sizes: dict[str, Any], tiny_sizes: dict[str, Any],
             options: dict[str, Any] | None = None, tiny: dict[str, Any] | None = None, *, configuration: str = "",
             **more: Any) -> Network:
    """A model of transformers. kind: its class; configuration: that of its configuration, by default named as it."""
    family = kind
    for suffix in ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "ForSequenceClassification",
                   "EncoderModel", "ForImageClassification", "ForSemanticSegmentation", "ForCTC", "ForObjectDetection",
                   "Model"):
        family = family.removesuffix(suffix)
    options = options or {}
    return Network(f"transformers_{name}", "transformers",
                   f"transformers.{kind}(transformers.{configuration or family + 'Config'}(**OPTIONS))", given,
                   {**sizes, "OPTIONS": options}, {**tiny_sizes, "OPTIONS": {**options, **(tiny or {})}},
                   "import transformers", keywords=True, **more)


def _text(name: str, kind: str, options: dict[str, Any] | None = None, tiny: dict[str, Any] | None = None, *,
          given: dict[str, str] | None = None, batch: int = 8, length: int = 128, tiny_length: int = 16,
          vocabulary: int = 32000, configuration: str = "", **more: Any) -> Network:
    """A model that reads tokens."""
    return _network(name, kind, given or _TOKENS, {"BATCH": batch, "LENGTH": length, "VOCABULARY": vocabulary},
                    {"BATCH": 2, "LENGTH": tiny_length, "VOCABULARY": 100},
                    {"vocab_size": vocabulary, **(options or {})}, {"vocab_size": 100, **(tiny or {})},
                    configuration=configuration, **more)


def _image(name: str, kind: str, options: dict[str, Any] | None = None, tiny: dict[str, Any] | None = None, *,
           batch: int = 16, size: int = 224, tiny_size: int = 32, given: dict[str, str] | None = None, **more: Any
           ) -> Network:
    """A model that sees images."""
    return _network(name, kind, given or _IMAGE, {"BATCH": batch, "SIZE": size}, {"BATCH": 2, "SIZE": tiny_size},
                    options, tiny, **more)


_DECODERS = (
    _text("bloom", "BloomModel", {"hidden_size": 1024, "n_layer": 8, "n_head": 16},
          {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
    _text("cohere", "CohereModel", {**_DECODER, **_PLAIN}, _TINY_DECODER),
    _text("falcon", "FalconModel", {"hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16},
          {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}),
    _text("gemma2", "Gemma2ForCausalLM", {**_DECODER, "head_dim": 64, "use_cache": False},
          {**_TINY_DECODER, "head_dim": 8, "sliding_window": 8}),
    _text("gemma3", "Gemma3ForCausalLM", {**_DECODER, "head_dim": 64}, {**_TINY_DECODER, "head_dim": 8,
          "sliding_window": 8}, configuration="Gemma3TextConfig"),
    _text("gpt2", "GPT2Model", None, {"n_embd": 32, "n_layer": 2, "n_head": 4}, vocabulary=50257),
    _text("gpt2_labels", "GPT2LMHeadModel", {"use_cache": False}, {"n_embd": 32, "n_layer": 2, "n_head": 4},
          given={**_TOKENS, "labels": _TOKENS["input_ids"]}, vocabulary=50257),
    _text("gpt_neo", "GPTNeoForCausalLM", {"num_layers": 8, "attention_types": [[["global", "local"], 4]],
                                           "hidden_size": 1024, "num_heads": 16},
          {"num_layers": 2, "attention_types": [[["global", "local"], 1]], "hidden_size": 32, "num_heads": 4,
           "window_size": 8}),
    _text("gpt_neox", "GPTNeoXModel", {**{k: v for k, v in _DECODER.items() if "key" not in k}}, _TINY),
    _text("gptj", "GPTJModel", {"n_embd": 1024, "n_layer": 8, "n_head": 16, "rotary_dim": 64},
          {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4}),
    _text("llama", "LlamaModel", {**_DECODER, "use_cache": False}, _TINY_DECODER),
    _text("llama_masked", "LlamaForCausalLM", {**_DECODER, "use_cache": False}, _TINY_DECODER,
          given={**_TOKENS, **_MASK}),
    _text("llama_cache", "LlamaModel", _DECODER, _TINY_DECODER),
    _text("llama_step", "LlamaModel", _DECODER, _TINY_DECODER, given={
        "input_ids": "torch.randint(3, VOCABULARY, (BATCH, 1))",
        "past_key_values": "transformers.DynamicCache([(torch.randn(BATCH, OPTIONS['num_key_value_heads'], LENGTH, "
                           "OPTIONS['hidden_size'] // OPTIONS['num_attention_heads'], dtype=FLOAT),) * 2 "
                           "for _ in range(OPTIONS['num_hidden_layers'])])"}),
    _text("mistral", "MistralModel", {**_DECODER, "sliding_window": 64}, {**_TINY_DECODER, "sliding_window": 8}),
    _text("mpt", "MptModel", {"d_model": 1024, "n_layers": 8, "n_heads": 16}, {"d_model": 32, "n_layers": 2,
                                                                               "n_heads": 4}),
    _text("olmo2", "Olmo2Model", {**_DECODER, **_PLAIN}, _TINY_DECODER),
    _text("opt", "OPTForCausalLM", {"hidden_size": 1024, "ffn_dim": 4096, "num_hidden_layers": 8,
                                    "num_attention_heads": 16, "word_embed_proj_dim": 1024},
          {"hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
           "word_embed_proj_dim": 32}, vocabulary=50272),
    _text("phi3", "Phi3Model", {**_DECODER, **_PLAIN}, _TINY_DECODER),
    _text("qwen3", "Qwen3Model", {**_DECODER, "head_dim": 64}, {**_TINY_DECODER, "head_dim": 8}),
    _text("stablelm", "StableLmModel", {**_DECODER, **_PLAIN}, _TINY_DECODER),
)

_ENCODERS = (
    _text("albert", "AlbertModel", {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12},
          {**_TINY, "embedding_size": 16}),
    _text("bert", "BertModel", None, _TINY, vocabulary=30522),
    _text("bert_masked", "BertForSequenceClassification", {"num_labels": 3}, _TINY, vocabulary=30522, given={
        **_TOKENS, **_MASK, "token_type_ids": "torch.randint(0, 2, (BATCH, LENGTH))"}),
    _text("bert_attentions", "BertModel", {"output_attentions": True, "output_hidden_states": True,
                                           "attn_implementation": "eager"}, _TINY, vocabulary=30522),
    _text("big_bird", "BigBirdModel", {"attention_type": "original_full"}, _TINY),
    _text("big_bird_sparse", "BigBirdModel", {"block_size": 16}, {**_TINY, "block_size": 4}, batch=4, length=512,
          tiny_length=64),
    _text("canine", "CanineModel", {"num_hidden_layers": 4}, {
        **_TINY, "num_hash_buckets": 64, "local_transformer_stride": 8, "upsampling_kernel_size": 4,
        "num_hash_functions": 2, "downsampling_rate": 4}, tiny_length=16),
    _text("convbert", "ConvBertModel", None, {**_TINY, "embedding_size": 32}),
    _text("deberta_v2", "DebertaV2Model", {"hidden_size": 768, "num_hidden_layers": 6, "num_attention_heads": 12,
                                           "intermediate_size": 3072, "relative_attention": True,
                                           "pos_att_type": ["p2c", "c2p"]}, _TINY),
    _text("distilbert", "DistilBertModel", None, {"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 4}),
    _text("electra", "ElectraModel", None, {**_TINY, "embedding_size": 16}),
    _text("fnet", "FNetModel", None, {k: v for k, v in _TINY.items() if "heads" not in k}),
    _text("funnel", "FunnelModel", {"block_sizes": [2, 2, 2]}, {"block_sizes": [1, 1], "d_model": 32, "n_head": 4,
                                                                "d_head": 8, "d_inner": 64}),
    _text("longformer", "LongformerModel", {"attention_window": 64}, {**_TINY, "attention_window": 8}, length=256),
    _text("modernbert", "ModernBertModel", {"hidden_size": 768, "num_hidden_layers": 6, **_PLAIN, "cls_token_id": 1,
                                            "sep_token_id": 2}, {**_TINY, "local_attention": 8}),
    _text("mpnet", "MPNetModel", None, _TINY),
    _text("nystromformer", "NystromformerModel", {"num_landmarks": 32, "segment_means_seq_len": 128},
          {**_TINY, "num_landmarks": 4, "segment_means_seq_len": 16}),
    _text("roberta", "RobertaModel", None, _TINY, vocabulary=50265),
    _text("xlnet", "XLNetModel", {"d_model": 768, "n_layer": 6, "n_head": 12, "d_inner": 3072},
          {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64}),
)

_BOTH = {**_TOKENS, "decoder_input_ids": _TOKENS["input_ids"]}
_TINY_BART = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
              "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
_TINY_T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}

_ENCODER_DECODERS = (
    _text("bart", "BartModel", {"d_model": 768, "encoder_layers": 6, "decoder_layers": 6,
                                "encoder_attention_heads": 12, "decoder_attention_heads": 12, "encoder_ffn_dim": 3072,
                                "decoder_ffn_dim": 3072}, _TINY_BART, given=_BOTH, vocabulary=50265),
    _text("marian", "MarianModel", {"d_model": 512, "encoder_layers": 6, "decoder_layers": 6, **_PLAIN,
                                    "encoder_attention_heads": 8, "decoder_attention_heads": 8, "encoder_ffn_dim": 2048,
                                    "decoder_ffn_dim": 2048, "decoder_start_token_id": 0}, _TINY_BART, given=_BOTH),
    _text("t5", "T5ForConditionalGeneration", {"decoder_start_token_id": 0}, _TINY_T5, vocabulary=32128,
          given={**_TOKENS, "labels": _TOKENS["input_ids"]}),
    _text("t5_encoder", "T5EncoderModel", None, _TINY_T5, vocabulary=32128),
)

_VISION = (
    _image("beit", "BeitForImageClassification", {"num_labels": 1000}, {**_TINY, "image_size": 32, "patch_size": 8,
                                                                      "out_indices": [1]}),
    _network("clip", "CLIPModel", {"input_ids": "torch.randint(3, 49408, (BATCH, LENGTH))", **_IMAGE,
                                   "attention_mask": "torch.ones(BATCH, LENGTH, dtype=torch.long)"},
             {"BATCH": 8, "LENGTH": 77, "SIZE": 224}, {"BATCH": 2, "LENGTH": 8, "SIZE": 32}, {},
             {"text_config": {**_TINY, "vocab_size": 49408}, "vision_config": {**_TINY, "image_size": 32,
                                                                               "patch_size": 8}}),
    _image("convnext", "ConvNextModel", None, {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]}),
    _image("detr", "DetrForObjectDetection", {"use_timm_backbone": False, "use_pretrained_backbone": False,
                                             "backbone_config": {"model_type": "resnet", "out_features": ["stage4"]},
                                             "backbone": None},
           {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
            "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "num_queries": 4,
            "backbone_config": {"model_type": "resnet", "out_features": ["stage4"], "embedding_size": 8,
                                "hidden_sizes": [8, 8, 8, 16], "depths": [1, 1, 1, 1], "layer_type": "basic"}},
           batch=2, size=512, tiny_size=64),
    _image("dinov2", "Dinov2Model", None, {**_TINY, "image_size": 28, "patch_size": 14}, tiny_size=28),
    _image("mobilevit", "MobileViTModel", {"image_size": 256}, {"image_size": 64, "hidden_sizes": [16, 24, 32],
           "neck_hidden_sizes": [8, 8, 8, 16, 16, 16, 32], "num_attention_heads": 2}, size=256, tiny_size=64),
    _image("segformer", "SegformerForSemanticSegmentation", {"num_labels": 150}, {
        "depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 16, 32], "num_attention_heads": [1, 2, 2, 4],
        "decoder_hidden_size": 16}, batch=8, size=512, tiny_size=64),
    _image("siglip_vision", "SiglipVisionModel", None, {**_TINY, "image_size": 32, "patch_size": 8}),
    _image("swin", "SwinModel", None, {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2],
                                      "num_heads": [2, 4], "window_size": 4}),
    _image("vit", "ViTModel", None, {**_TINY, "image_size": 32, "patch_size": 8}),
    _network("videomae", "VideoMAEModel", {"pixel_values": "torch.randn(BATCH, FRAMES, 3, SIZE, SIZE, dtype=FLOAT)"},
             {"BATCH": 2, "FRAMES": 16, "SIZE": 224}, {"BATCH": 1, "FRAMES": 4, "SIZE": 32}, {},
             {**_TINY, "image_size": 32, "patch_size": 8, "num_frames": 4}),
)

_TINY_WAVE = {**_TINY, "conv_dim": [16, 16], "conv_stride": [5, 2], "conv_kernel": [10, 3],
              "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "num_feat_extract_layers": 2}
_MELS = "torch.randn(BATCH, 80, 2 * LENGTH, dtype=FLOAT)"

_AUDIO = (
    _network("ast", "ASTModel", {"input_values": "torch.randn(BATCH, LENGTH, MELS, dtype=FLOAT)"},
             {"BATCH": 4, "LENGTH": 1024, "MELS": 128}, {"BATCH": 2, "LENGTH": 32, "MELS": 16}, {},
             {**_TINY, "max_length": 32, "num_mel_bins": 16, "patch_size": 8, "frequency_stride": 8,
              "time_stride": 8}),
    _network("encodec", "EncodecModel", {"input_values": "torch.randn(BATCH, 1, LENGTH, dtype=FLOAT)"},
             {"BATCH": 4, "LENGTH": 24000}, {"BATCH": 1, "LENGTH": 640}, {}, {"num_filters": 4, "hidden_size": 16,
             "codebook_dim": 16, "codebook_size": 32, "upsampling_ratios": [4, 2], "num_lstm_layers": 1}),
    _network("hubert", "HubertModel", _WAVE, {"BATCH": 4, "LENGTH": 16000}, {"BATCH": 2, "LENGTH": 400},
             {"mask_time_prob": 0.0}, _TINY_WAVE),
    _network("wav2vec2", "Wav2Vec2Model", _WAVE, {"BATCH": 4, "LENGTH": 16000}, {"BATCH": 2, "LENGTH": 400},
             {"mask_time_prob": 0.0}, _TINY_WAVE),
    _network("wav2vec2_masked", "Wav2Vec2ForCTC", _WAVE, {"BATCH": 4, "LENGTH": 16000}, {"BATCH": 2, "LENGTH": 400},
             {"vocab_size": 32}, {**_TINY_WAVE, "mask_time_length": 2}),
    _network("whisper", "WhisperModel", {"input_features": _MELS, "decoder_input_ids":
             "torch.randint(3, 1000, (BATCH, 16))"}, {"BATCH": 4, "LENGTH": 1500}, {"BATCH": 2, "LENGTH": 32}, {},
             {**_TINY_BART, "max_source_positions": 32, "vocab_size": 1000, "pad_token_id": 0, "bos_token_id": 1,
              "eos_token_id": 2, "decoder_start_token_id": 1}),
)

_EXPERTS = (
    _text("mixtral", "MixtralModel", {**_DECODER, "hidden_size": 512, "intermediate_size": 1024,
          "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "num_local_experts": 4,
          "use_cache": False}, {**_TINY_DECODER, "num_local_experts": 4}, batch=4, length=64),
    _text("olmoe", "OlmoeModel", {**_DECODER, "hidden_size": 512, "intermediate_size": 512, "num_hidden_layers": 4,
          "num_experts": 16, "num_experts_per_tok": 4, "use_cache": False, **_PLAIN},
          {**_TINY_DECODER, "num_experts": 4, "num_experts_per_tok": 2}, batch=4, length=64),
    _text("qwen3_moe", "Qwen3MoeModel", {**_DECODER, "hidden_size": 512, "moe_intermediate_size": 256, "head_dim": 64,
          "num_hidden_layers": 4, "num_experts": 16, "num_experts_per_tok": 4, "use_cache": False},
          {**_TINY_DECODER, "head_dim": 8, "moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2},
          batch=4, length=64),
    _text("switch_transformers", "SwitchTransformersModel", {"num_layers": 4, "num_decoder_layers": 4},
          {**_TINY_T5, "num_decoder_layers": 2, "num_experts": 4, "num_sparse_encoder_layers": 1,
           "num_sparse_decoder_layers": 1}, given=_BOTH, batch=4, length=64, vocabulary=32128),
)

_STATE_SPACES = (
    _text("falcon_mamba", "FalconMambaModel", {"hidden_size": 512, "num_hidden_layers": 4},
          {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}, length=64, tiny_length=8),
    _text("jamba", "JambaModel", {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4,
          "num_attention_heads": 8, "num_key_value_heads": 2, "attn_layer_period": 4, "attn_layer_offset": 2,
          "expert_layer_period": 2, "expert_layer_offset": 1, "num_experts": 4, "use_mamba_kernels": False},
          {**_TINY_DECODER, "num_hidden_layers": 4, "mamba_d_state": 4, "mamba_dt_rank": 4}, batch=4, length=64,
          tiny_length=8),
    _text("mamba", "MambaModel", {"hidden_size": 512, "num_hidden_layers": 4}, {"hidden_size": 32,
          "num_hidden_layers": 2, "state_size": 4}, length=64, tiny_length=8),
    _text("mamba2", "Mamba2Model", {"hidden_size": 512, "num_hidden_layers": 4, "num_heads": 16, "head_dim": 64,
          "state_size": 64, "n_groups": 1, "chunk_size": 32}, {"hidden_size": 32, "num_hidden_layers": 2,
          "num_heads": 4, "head_dim": 16, "state_size": 8, "chunk_size": 4}, length=128, tiny_length=8),
    _text("recurrent_gemma", "RecurrentGemmaModel", {"hidden_size": 512, "intermediate_size": 1536,
          "num_hidden_layers": 3, "num_attention_heads": 8, "attention_window_size": 64},
          {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "lru_width": 32,
           "attention_window_size": 8}, length=64, tiny_length=8),
    _text("rwkv", "RwkvModel", {"hidden_size": 512, "num_hidden_layers": 4}, {"hidden_size": 32,
          "num_hidden_layers": 2}, length=64, tiny_length=8),
)

NETWORKS = (*_DECODERS, *_ENCODERS, *_ENCODER_DECODERS, *_VISION, *_AUDIO, *_EXPERTS, *_STATE_SPACES)
