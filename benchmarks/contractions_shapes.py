"""What `contractions.py` measures: shapes of contractions, each with what PyTorch calls it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

import torch
import torch.nn.functional as F
from contraction_cases import ContractionCase, convolution, matmul

from kernelwright.plan.contraction.record import in_groups
from kernelwright.plan.expressions import Apply, Constant, Index, Reduced
from kernelwright.plan.kernels import Reduction, Store
from kernelwright.plan.reading.access import strides_of


@dataclass(frozen=True)
class Shape:
    """A case with what PyTorch calls it: ``call`` makes its result from the inputs."""

    case: ContractionCase
    call: Callable[..., torch.Tensor]
    positive: bool = False


def linear(rows: int, depth: int, columns: int, **options) -> Shape:
    """A linear layer without bias."""
    positive = options.pop("positive", False)
    return Shape(matmul(rows, depth, columns, transposed=(False, True), **options),
                 lambda x, w: x.reshape(-1, depth) @ w.reshape(columns, depth).T, positive)


def product(rows: int, depth: int, columns: int, **options) -> Shape:
    """A product of two row-major matrices, or a batch of them."""
    return Shape(matmul(rows, depth, columns, **options), torch.matmul)


def conv(*sizes, **options) -> Shape:
    """A convolution or transposed convolution; as `convolution`."""
    case = convolution(*sizes, **options)
    spatial, keys = len(sizes[4]), ("stride", "padding", "dilation", "output_padding")
    transposed = options.get("transposed", False)
    function = getattr(F, f"conv{'_transpose' * transposed}{spatial}d")
    kept = {k: options[k] for k in keys if k in options and (k != "output_padding" or transposed)}
    return Shape(case, lambda x, w: function(x, w, groups=sizes[1], **kept))


def averaged(shape: Shape) -> Shape:
    """The mean over positions in place of the result."""
    kernel = shape.case.kernel
    positions, spatial = prod(kernel.domain[3:]), tuple(range(2, 2 + len(kernel.axes)))
    place = Index((kernel.groups * kernel.out_channels, kernel.out_channels, 1, *(0 for _ in kernel.axes)))
    mean = Store(0, place, Apply("mul", (Reduced(1), Constant(1.0 / positions))))
    case = replace(shape.case, kernel=replace(kernel, position_reductions=(Reduction("sum", Reduced(0)),),
                                              stores=(mean,)))
    return Shape(case, lambda x, w: shape.call(x, w).mean(spatial))


def pooled(shape: Shape, size: int, lines: int = 1) -> Shape:
    """The largest of each ``size`` neighbours along the last axis, of one line or of two, in place of the result."""
    kernel = replace(shape.case.kernel, pools=(Reduction("max", Reduced(0)),), pool_size=size, pool_lines=lines)
    rank = len(kernel.axes)
    if lines > 1:
        axes = list(kernel.axes)
        axes[kernel.parity_axis] = in_groups(axes[kernel.parity_axis])
        kernel = replace(kernel, axes=tuple(axes))
    window = (*(1,) * (rank - 2), lines, size) if rank > 1 else (size,)
    pool = getattr(F, f"max_pool{rank}d")
    kernel = replace(kernel, stores=(Store(0, Index(strides_of(kernel.pooled_domain)), Reduced(1)),))
    return Shape(replace(shape.case, kernel=kernel), lambda x, w: pool(shape.call(x, w), window))


#: Transposed convolutions to twice the size, or one more.
DOUBLED = {"stride": 2, "padding": 1, "output_padding": 1, "transposed": True}
SHAPES: dict[str, Shape] = {
    "linear_1024x8192x8192": linear(1024, 8192, 8192, positive=True),
    "matmul_4096": product(4096, 4096, 4096),
    "positive_2048x8192x4096": linear(2048, 8192, 4096, positive=True),
    "conv_64_128": conv(128, 1, 64, 128, (126, 126), (3, 3), padding=1),
    "conv_64_128_fp16": conv(128, 1, 64, 128, (126, 126), (3, 3), padding=1, scheme="fp16"),
    "conv_64_64_fp16": conv(64, 1, 64, 64, (256, 256), (3, 3), scheme="fp16"),
    "conv_64_64_same_fp16": conv(64, 1, 64, 64, (256, 256), (3, 3), padding=1, scheme="fp16"),
    "conv_64_64_pool2_fp16": pooled(conv(64, 1, 64, 64, (256, 256), (3, 3), padding=1, scheme="fp16"), 2),
    "conv_128_256": conv(64, 1, 128, 256, (128, 128), (3, 3), padding=1),
    "conv_128_256_fp16": conv(64, 1, 128, 256, (128, 128), (3, 3), padding=1, scheme="fp16"),
    "conv_8_64": conv(128, 1, 8, 64, (256, 256), (3, 3), padding=1),
    "conv_8_64_valid": conv(128, 1, 8, 64, (128, 128), (3, 3)),
    "conv_8_64_fp16": conv(128, 1, 8, 64, (256, 256), (3, 3), padding=1, scheme="fp16"),
    "conv_8_64_mean_fp16": averaged(conv(128, 1, 8, 64, (256, 256), (3, 3), padding=1, scheme="fp16")),
    "conv_8_64_mean": averaged(conv(128, 1, 8, 64, (256, 256), (3, 3), padding=1)),
    "conv_8_64_pool4": pooled(conv(128, 1, 8, 64, (256, 256), (3, 3), padding=1), 4),
    "conv_8_64_lines4": pooled(conv(128, 1, 8, 64, (256, 256), (3, 3), padding=1), 4, 2),
    "conv_64_64_lines2_fp16": pooled(conv(64, 1, 64, 64, (256, 256), (3, 3), padding=1, scheme="fp16"), 2, 2),
    "conv_64_128_lines2_fp16": pooled(conv(128, 1, 64, 128, (126, 126), (3, 3), padding=1, scheme="fp16"), 2, 2),
    "conv_64_128_mean_fp16": averaged(conv(128, 1, 64, 128, (126, 126), (3, 3), padding=1, scheme="fp16")),
    "conv_64_128_pool2_fp16": pooled(conv(128, 1, 64, 128, (126, 126), (3, 3), padding=1, scheme="fp16"), 2),
    "convt_128x128_pool2_fp16": pooled(conv(128, 1, 64, 64, (128, 128), (3, 3), **DOUBLED, scheme="fp16"), 2),
    "conv3d_32_64": conv(16, 1, 32, 64, (32, 32, 32), (3, 3, 3), padding=1),
    "convt_64_64": conv(32, 1, 64, 64, (64, 64), (3, 3), stride=2, padding=1, output_padding=1, transposed=True),
    "convt_128x128": conv(128, 1, 64, 64, (128, 128), (3, 3), **DOUBLED),
    "convt_128x128_fp16": conv(128, 1, 64, 64, (128, 128), (3, 3), **DOUBLED, scheme="fp16"),
    "convt_4x4_64_128": conv(128, 1, 64, 128, (64, 64), (4, 4), **DOUBLED),
    "convt_4x4_64_128_fp16": conv(128, 1, 64, 128, (64, 64), (4, 4), **DOUBLED, scheme="fp16"),
    "convt_4x4_odd_fp16": conv(32, 1, 64, 64, (256, 256), (4, 4), **DOUBLED, scheme="fp16"),
    "convt_130_fp16": conv(128, 1, 64, 128, (64, 64), (4, 4), stride=2, transposed=True, scheme="fp16"),
    "convt3d_odd_fp16": conv(16, 1, 64, 128, (24, 48, 48), (3, 3, 3), stride=2, padding=1, transposed=True,
                             scheme="fp16"),
    "conv_64_128_valid_fp16": conv(128, 1, 64, 128, (128, 128), (3, 3), scheme="fp16"),
    "conv3d_8_32_fp16": conv(64, 1, 8, 32, (32, 64, 64), (3, 3, 3), scheme="fp16"),
    "convt3d_32_64": conv(8, 1, 32, 64, (32, 64, 64), (3, 3, 3), **DOUBLED),
    "convt3d_32_64_fp16": conv(8, 1, 32, 64, (32, 64, 64), (3, 3, 3), **DOUBLED, scheme="fp16"),
    "convt3d_48_24": conv(8, 1, 48, 24, (24, 32, 32), (3, 3, 3), stride=2, padding=1, transposed=True),
    "conv3d_3_24": conv(128, 1, 3, 24, (24, 32, 32), (3, 3, 3)),
    "conv3d_3_16": conv(128, 1, 3, 16, (16, 32, 32), (3, 3, 3)),
    "conv3d_3_16_4x4x4": conv(256, 1, 3, 16, (16, 32, 32), (4, 4, 4)),
    "conv3d_8_32_lines": conv(32, 1, 8, 32, (24, 32, 32), (3, 3, 3)),
    "conv_3_64_7x7": conv(64, 1, 3, 64, (224, 224), (7, 7), stride=2, padding=3),
    "conv_3_64_7x7_fp16": conv(64, 1, 3, 64, (224, 224), (7, 7), stride=2, padding=3, scheme="fp16"),
    "conv_3_96_11x11_fp16": conv(128, 1, 3, 96, (227, 227), (11, 11), stride=4, padding=2, scheme="fp16"),
    "conv_3_64_fp16": conv(32, 1, 3, 64, (224, 224), (3, 3), padding=1, scheme="fp16"),
    "conv_1_32_5x5": conv(256, 1, 1, 32, (128, 128), (5, 5), padding=2),
    "conv_64_128_lines": conv(512, 1, 64, 128, (32, 32), (3, 3)),
    "conv_64_128_lines_fp16": conv(512, 1, 64, 128, (32, 32), (3, 3), scheme="fp16"),
    "conv_strided": conv(32, 1, 96, 192, (56, 56), (3, 3), stride=2, padding=1),
    "conv_small_images": conv(256, 1, 256, 256, (14, 14), (3, 3), padding=1),
    "matmul_4096_fp16": product(4096, 4096, 4096, scheme="fp16"),
    "matmul_8192_float16": product(8192, 8192, 8192, scheme="native", dtype="float16"),
    "matmul_4096_bfloat16": product(4096, 4096, 4096, scheme="native", dtype="bfloat16"),
    "batched_64x512x512x512": product(512, 512, 512, groups=64),
    "wide_128x32768x32768": linear(128, 32768, 32768),
    "long_256x131072x256": product(256, 131072, 256),
    "long_256x524288x256": product(256, 524288, 256),
    "long_512x65536x512": product(512, 65536, 512),
    "long_64x100000x1000": linear(64, 100000, 1000, positive=True),
    "output_32768x64x16384": product(32768, 64, 16384),
}
