"""torchaudio: recognition, synthesis and separation."""

from __future__ import annotations

from typing import Any

from network_lists.declaration import Network

_FRAMES = {"x": "torch.randn(BATCH, LENGTH, FEATURES, dtype=FLOAT)",
           "lengths": "torch.full((BATCH,), LENGTH)"}


def _audio(name: str, kind: str, given: dict[str, str], sizes: dict[str, Any], tiny_sizes: dict[str, Any],
           options: dict[str, Any] | None = None, tiny: dict[str, Any] | None = None) -> Network:
    options = options or {}
    return Network(f"torchaudio_{name}", "torchaudio", f"torchaudio.models.{kind}(**OPTIONS)", given,
                   {**sizes, "OPTIONS": options}, {**tiny_sizes, "OPTIONS": {**options, **(tiny or {})}},
                   "import torchaudio")


NETWORKS = (
    _audio("conformer", "Conformer", _FRAMES, {"BATCH": 8, "LENGTH": 400, "FEATURES": 80},
           {"BATCH": 2, "LENGTH": 16, "FEATURES": 16},
           {"input_dim": 80, "num_heads": 4, "ffn_dim": 320, "num_layers": 8, "depthwise_conv_kernel_size": 31},
           {"input_dim": 16, "ffn_dim": 32, "num_layers": 2, "depthwise_conv_kernel_size": 5}),
    _audio("conv_tasnet", "ConvTasNet", {"x": "torch.randn(BATCH, 1, LENGTH, dtype=FLOAT)"},
           {"BATCH": 4, "LENGTH": 16000}, {"BATCH": 2, "LENGTH": 400}, {},
           {"enc_num_feats": 16, "msk_num_feats": 8, "msk_num_hidden_feats": 16, "msk_num_layers": 2,
            "msk_num_stacks": 1}),
    _audio("deepspeech", "DeepSpeech", {"x": "torch.randn(BATCH, 1, LENGTH, FEATURES, dtype=FLOAT)"},
           {"BATCH": 8, "LENGTH": 200, "FEATURES": 80}, {"BATCH": 2, "LENGTH": 10, "FEATURES": 16},
           {"n_feature": 80}, {"n_feature": 16, "n_hidden": 32, "n_class": 8}),
    _audio("emformer", "Emformer", {"x": "torch.randn(BATCH, LENGTH + 4, FEATURES, dtype=FLOAT)",
                                    "lengths": "torch.full((BATCH,), LENGTH)"},
           {"BATCH": 8, "LENGTH": 64, "FEATURES": 512}, {"BATCH": 2, "LENGTH": 16, "FEATURES": 32},
           {"input_dim": 512, "num_heads": 8, "ffn_dim": 2048, "num_layers": 6, "segment_length": 16,
            "right_context_length": 4},
           {"input_dim": 32, "num_heads": 4, "ffn_dim": 64, "num_layers": 2, "segment_length": 8}),
    _audio("hdemucs", "HDemucs", {"x": "torch.randn(BATCH, 2, LENGTH, dtype=FLOAT)"},
           {"BATCH": 2, "LENGTH": 44100}, {"BATCH": 1, "LENGTH": 16384},
           {"sources": ["drums", "bass", "other", "vocals"]}, {"channels": 4}),
    _audio("tacotron2", "Tacotron2", {
        "tokens": "torch.randint(0, 148, (BATCH, LENGTH))", "token_lengths": "torch.full((BATCH,), LENGTH)",
        "spectrogram": "torch.randn(BATCH, 80, FRAMES, dtype=FLOAT)",
        "spectrogram_lengths": "torch.full((BATCH,), FRAMES)"},
           {"BATCH": 8, "LENGTH": 64, "FRAMES": 64}, {"BATCH": 2, "LENGTH": 6, "FRAMES": 4}, {},
           {"symbol_embedding_dim": 16, "encoder_embedding_dim": 16, "decoder_rnn_dim": 16, "attention_rnn_dim": 16,
            "attention_hidden_dim": 8, "postnet_embedding_dim": 16, "decoder_max_step": 8}),
    _audio("wav2letter", "Wav2Letter", {"x": "torch.randn(BATCH, 1, LENGTH, dtype=FLOAT)"},
           {"BATCH": 8, "LENGTH": 16000}, {"BATCH": 1, "LENGTH": 2000}, {}, {"num_classes": 8}),
    _audio("wav2vec2", "wav2vec2_model", {"x": "torch.randn(BATCH, LENGTH, dtype=FLOAT)"},
           {"BATCH": 4, "LENGTH": 16000}, {"BATCH": 2, "LENGTH": 400},
           {"extractor_mode": "group_norm", "extractor_conv_layer_config": None, "extractor_conv_bias": False,
            "encoder_embed_dim": 768, "encoder_projection_dropout": 0.1, "encoder_pos_conv_kernel": 128,
            "encoder_pos_conv_groups": 16, "encoder_num_layers": 12, "encoder_num_heads": 12,
            "encoder_attention_dropout": 0.1, "encoder_ff_interm_features": 3072, "encoder_ff_interm_dropout": 0.0,
            "encoder_dropout": 0.1, "encoder_layer_norm_first": False, "encoder_layer_drop": 0.05, "aux_num_out": None},
           {"extractor_conv_layer_config": [[16, 10, 5], [16, 3, 2]], "encoder_embed_dim": 32,
            "encoder_pos_conv_kernel": 8, "encoder_pos_conv_groups": 2, "encoder_num_layers": 2,
            "encoder_num_heads": 4, "encoder_ff_interm_features": 64}),
    _audio("wavernn", "WaveRNN", {"waveform": "torch.randn(BATCH, 1, FRAMES * 20, dtype=FLOAT)",
                                  "specgram": "torch.randn(BATCH, 1, 80, FRAMES + 4, dtype=FLOAT)"},
           {"BATCH": 4, "FRAMES": 40}, {"BATCH": 1, "FRAMES": 4}, {"upsample_scales": [5, 4], "n_classes": 256,
                                                                   "hop_length": 20, "n_freq": 80},
           {"n_res_block": 2, "n_rnn": 16, "n_fc": 16, "n_hidden": 16, "n_output": 16, "n_classes": 16}),
)
