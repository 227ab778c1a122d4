"""torchvision: every family of classification models, segmentation and video."""

from __future__ import annotations

from typing import Any

from network_lists.declaration import Network

_IMAGE = {"x": "torch.randn(BATCH, 3, SIZE, SIZE, dtype=FLOAT)"}
_CLIP = {"x": "torch.randn(BATCH, 3, FRAMES, SIZE, SIZE, dtype=FLOAT)"}


def _classifier(name: str, batch: int = 32, size: int = 224, tiny_size: int = 64, maker: str = "",
                options: dict[str, Any] | None = None, tiny: dict[str, Any] | None = None, **more: str) -> Network:
    """A classification model. maker: the function or class of torchvision.models, by default that of the name."""
    network = f"torchvision.models.{maker or name}({'weights=None, ' if not maker else ''}**OPTIONS{_written(more)})"
    return Network(f"torchvision_{name}", "torchvision", network, _IMAGE,
                   {"BATCH": batch, "SIZE": size, "OPTIONS": options or {}},
                   {"BATCH": 2, "SIZE": tiny_size, "OPTIONS": {**(options or {}), "num_classes": 10, **(tiny or {})}},
                   "import torchvision")


def _written(more: dict[str, str]) -> str:
    return "".join(f", {name}={value}" for name, value in more.items())


def _segmentation(name: str, batch: int = 8) -> Network:
    return Network(f"torchvision_{name}", "torchvision",
                   f"torchvision.models.segmentation.{name}(weights=None, weights_backbone=None, num_classes=21)",
                   _IMAGE, {"BATCH": batch, "SIZE": 256}, {"BATCH": 2, "SIZE": 64}, "import torchvision")


def _video(name: str, batch: int = 4, size: int = 112, frames: int = 8, tiny_size: int = 32, maker: str = "",
           options: dict[str, Any] | None = None, tiny: dict[str, Any] | None = None, **more: str) -> Network:
    network = f"torchvision.models.video.{maker or name}({'weights=None, ' if not maker else ''}**OPTIONS" \
              f"{_written(more)})"
    return Network(f"torchvision_{name}", "torchvision", network, _CLIP,
                   {"BATCH": batch, "SIZE": size, "FRAMES": frames, "OPTIONS": options or {}},
                   {"BATCH": 1, "SIZE": tiny_size, "FRAMES": frames, "OPTIONS": {**(options or {}), "num_classes": 10,
                                                                                **(tiny or {})}}, "import torchvision")


_SWIN = {"patch_size": [4, 4], "embed_dim": 96, "depths": [2, 2, 6, 2], "num_heads": [3, 6, 12, 24],
         "window_size": [7, 7], "stochastic_depth_prob": 0.2}
_SMALL_SWIN = {"embed_dim": 24, "depths": [2, 2], "num_heads": [3, 6]}
_SWIN_V2 = {"block": "torchvision.models.swin_transformer.SwinTransformerBlockV2",
            "downsample_layer": "torchvision.models.swin_transformer.PatchMergingV2"}

NETWORKS = (
    _classifier("alexnet", 64),
    _classifier("convnext_tiny", 16, tiny_size=32),
    _classifier("densenet121", 16, maker="DenseNet", tiny={"block_config": (3, 3, 3, 3)}),
    _classifier("efficientnet_b0"),
    _classifier("efficientnet_v2_s", tiny_size=32),
    _classifier("googlenet", options={"init_weights": False}),
    _classifier("inception_v3", size=299, tiny_size=80, options={"init_weights": False}, tiny={"aux_logits": False}),
    _classifier("maxvit_t", 16, maker="MaxVit", options={
        "input_size": (224, 224), "stem_channels": 64, "block_channels": [64, 128, 256, 512],
        "block_layers": [2, 2, 5, 2], "head_dim": 32, "stochastic_depth_prob": 0.2, "partition_size": 7}, tiny={
            "input_size": (64, 64), "stem_channels": 16, "block_channels": [16, 32], "block_layers": [1, 1],
            "head_dim": 8, "partition_size": 4}),
    _classifier("mnasnet1_0"),
    _classifier("mobilenet_v2"),
    _classifier("mobilenet_v3_small"),
    _classifier("mobilenet_v3_large"),
    _classifier("regnet_x_400mf"),
    _classifier("regnet_y_800mf"),
    _classifier("resnet18"),
    _classifier("resnet50"),
    _classifier("resnext50_32x4d"),
    _classifier("wide_resnet50_2"),
    _classifier("shufflenet_v2_x1_0"),
    _classifier("squeezenet1_1"),
    _classifier("swin_t", 16, maker="SwinTransformer", options=_SWIN, tiny=_SMALL_SWIN),
    _classifier("swin_v2_t", 16, maker="SwinTransformer", options={**_SWIN, "window_size": [8, 8]}, size=256,
                tiny={**_SMALL_SWIN, "window_size": [4, 4]}, **_SWIN_V2),
    _classifier("vgg11_bn", 32),
    _classifier("vit_b_16", maker="VisionTransformer", options={
        "image_size": 224, "patch_size": 16, "num_layers": 12, "num_heads": 12, "hidden_dim": 768, "mlp_dim": 3072},
        tiny={"image_size": 64, "num_layers": 2, "num_heads": 2, "hidden_dim": 32, "mlp_dim": 64}),
    _segmentation("deeplabv3_mobilenet_v3_large"),
    _segmentation("deeplabv3_resnet50"),
    _segmentation("fcn_resnet50"),
    _segmentation("lraspp_mobilenet_v3_large", 16),
    _video("r3d_18"),
    _video("mc3_18"),
    _video("r2plus1d_18"),
    _video("s3d", size=224, frames=16, tiny_size=224),
    _video("mvit_v2_s", 2, 224, 16, maker="MViT", options={
        "spatial_size": (224, 224), "temporal_size": 16, "residual_pool": True, "residual_with_cls_embed": False,
        "rel_pos_embed": True, "proj_after_attn": True}, tiny={"spatial_size": (32, 32)},
        block_setting="[torchvision.models.video.mvit.MSBlockConfig(**{'num_heads': 1, 'input_channels': 96, "
                      "'output_channels': 96, 'kernel_q': (3, 3, 3), 'kernel_kv': (3, 3, 3), 'stride_q': (1, 1, 1), "
                      "'stride_kv': (1, 8, 8)})] * 4"),
    _video("swin3d_t", 2, 224, 16, tiny_size=32, maker="SwinTransformer3d", options={
        "patch_size": [2, 4, 4], "embed_dim": 96, "depths": [2, 2, 6, 2], "num_heads": [3, 6, 12, 24],
        "window_size": [8, 7, 7], "stochastic_depth_prob": 0.1}, tiny={**_SMALL_SWIN, "window_size": [4, 4, 4]}),
)
