"""timm: more than forty families, a member of each."""

from __future__ import annotations

from typing import Any

from network_lists.declaration import Network


def _timm(name: str, batch: int = 16, size: int = 224, tiny_size: int = 64, **tiny: Any) -> Network:
    """A model of timm. tiny: options of the tiny one."""
    return Network(f"timm_{name}", "timm", f"timm.create_model({name!r}, pretrained=False, **OPTIONS)",
                   {"x": "torch.randn(BATCH, 3, SIZE, SIZE, dtype=FLOAT)"},
                   {"BATCH": batch, "SIZE": size, "OPTIONS": {}},
                   {"BATCH": 2, "SIZE": tiny_size, "OPTIONS": {"num_classes": 10, **tiny}}, "import timm")


_SMALL = {"img_size": 64, "depth": 2}

NETWORKS = (
    _timm("beit_base_patch16_224", **_SMALL, embed_dim=48, num_heads=3),
    _timm("botnet26t_256", size=256, img_size=64),
    _timm("caformer_s18"),
    _timm("cait_xxs24_224", **_SMALL, depth_token_only=1),
    _timm("coat_lite_tiny", img_size=64),
    _timm("coatnet_nano_rw_224", img_size=64, tiny_size=64),
    _timm("convit_tiny", **_SMALL),
    _timm("convnextv2_atto", depths=(1, 1, 1, 1)),
    _timm("crossvit_9_240", size=240, tiny_size=240),
    _timm("cspresnet50"),
    _timm("davit_tiny", depths=(1, 1, 1, 1)),
    _timm("deit_small_patch16_224", 32, **_SMALL, embed_dim=48, num_heads=3),
    _timm("dla34"),
    _timm("dpn48b"),
    _timm("eca_nfnet_l0"),
    _timm("edgenext_xx_small"),
    _timm("efficientformerv2_s0", tiny_size=224),
    _timm("efficientnet_lite0"),
    _timm("efficientvit_b0"),
    _timm("efficientvit_m0", tiny_size=224),
    _timm("ese_vovnet19b_dw"),
    _timm("eva02_tiny_patch14_224", img_size=56, depth=2, tiny_size=56),
    _timm("fastvit_t8"),
    _timm("focalnet_tiny_srf"),
    _timm("gcvit_xxtiny", img_size=64, window_size=(2, 2, 2, 2)),
    _timm("ghostnet_100"),
    _timm("gmixer_24_224", img_size=64),
    _timm("gmlp_s16_224", img_size=64),
    _timm("halonet26t", size=256, tiny_size=256),
    _timm("hgnetv2_b0"),
    _timm("hiera_tiny_224", img_size=64, stages=(1, 1, 1, 1)),
    _timm("hrnet_w18_small"),
    _timm("inception_next_atto"),
    _timm("inception_v4", size=299, tiny_size=96),
    _timm("lambda_resnet26t", size=256, img_size=64),
    _timm("levit_128s", tiny_size=224),
    _timm("mambaout_femto", depths=(1, 1, 1, 1)),
    _timm("maxxvit_rmlp_nano_rw_256", size=256, img_size=64),
    _timm("mixer_b16_224", img_size=64),
    _timm("mobilenetv4_hybrid_medium"),
    _timm("mobileone_s0"),
    _timm("mobilevit_xxs"),
    _timm("mobilevitv2_050"),
    _timm("mvitv2_tiny", img_size=64),
    _timm("nest_tiny", img_size=64),
    _timm("nextvit_small"),
    _timm("pit_ti_224", img_size=64, depth=(1, 1, 1)),
    _timm("poolformer_s12", 32),
    _timm("pvt_v2_b0"),
    _timm("rdnet_tiny"),
    _timm("repvgg_a0"),
    _timm("repvit_m1"),
    _timm("res2net50_26w_4s"),
    _timm("resmlp_12_224", 32, img_size=64),
    _timm("resnest14d"),
    _timm("resnetv2_50"),
    _timm("rexnet_100"),
    _timm("selecsls42"),
    _timm("sequencer2d_s", img_size=56, layers=(1, 1, 1, 1), tiny_size=56),
    _timm("skresnet18"),
    _timm("starnet_s1"),
    _timm("swinv2_cr_tiny_224", img_size=64, depths=(2, 2), num_heads=(3, 6), window_size=4),
    _timm("tnt_s_patch16_224", **_SMALL),
    _timm("tresnet_m"),
    _timm("twins_svt_small", img_size=64, depths=(1, 1, 1, 1)),
    _timm("visformer_tiny", img_size=64),
    _timm("vitamin_small_224", tiny_size=64, img_size=64),
    _timm("volo_d1_224", img_size=64),
    _timm("xception41", size=299),
    _timm("xcit_nano_12_p16_224", **_SMALL),
)
