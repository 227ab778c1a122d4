"""Convolutions, pools and resampling at their corners."""

from __future__ import annotations

from reported.case import Case, held

CASES = {
    "a transposed convolution with output padding": Case(
        184026, "x", "self.c(x).relu()", "torch.randn(2, 4, 4, 4)",
        members="self.c = nn.ConvTranspose2d(4, 4, 3, stride=2, padding=1, output_padding=1)", kernels=False),
    "a transposed convolution of a given size": Case(
        100344, "x", "self.c(x, output_size=[9, 10]).tanh()", "torch.randn(1, 2, 5, 5)",
        members="self.c = nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1)"),
    "average pool that overhangs": Case(
        100987, "x", "F.avg_pool2d(x, 3, 2, ceil_mode=True) * 2", "torch.randn(1, 2, 6, 6)", kernels=False),
    "average pool without its padding": Case(
        198119, "x",
        "return F.avg_pool2d(x, 3, 2, 1, count_include_pad=False).exp(), F.avg_pool2d(x, 2, divisor_override=3) + 1",
        "torch.randn(1, 2, 7, 7)"),
    "largest of padded minus": Case(
        188218, "x", "return F.max_pool2d(x, 3, 2, 1) * 2, F.max_pool2d(x, 2, ceil_mode=True)",
        "-torch.rand(1, 2, 7, 7) - 1"),
    "largest with places": Case(
        185509, "x", "y, i = F.max_pool2d(x, 2, return_indices=True)\nreturn y.tanh(), i", "torch.randn(1, 2, 6, 6)"),
    "nearest of unchanged size": Case(
        198201, "x", "F.interpolate(x, scale_factor=(1.3, 1.5), mode='nearest') + 1",
        "torch.arange(12.0).reshape(1, 1, 3, 4)", kernels=False),
    "bilinear to a point": Case(
        93262, "x", "F.interpolate(x, size=[1, 1], mode='bilinear') * 2", "torch.rand(2, 3, 7, 10)", kernels=False),
    "bicubic with corners": Case(
        100794, "x", "F.interpolate(x, size=(5, 9), mode='bicubic', align_corners=True).relu()",
        "torch.randn(1, 2, 4, 6)", kernels=False),
    "a grid that samples": Case(
        114226, "x, g", "F.grid_sample(x, g.tanh(), padding_mode='reflection', align_corners=False) + 1",
        "torch.randn(1, 2, 5, 5), torch.randn(1, 3, 4, 2)"),
    "folded columns": Case(148754, "x", "F.fold(x.tanh(), (4, 4), (2, 2), stride=2) * 2", "torch.randn(1, 4, 4)"),
    "columns and back": Case(
        172064, "x", "F.fold(F.unfold(x, 3, padding=1) * 2, (5, 5), 3, padding=1).relu()", "torch.randn(1, 2, 5, 5)",
        kernels=False),
    "padding of every kind": Case(
        99683, "x",
        "return F.pad(x, (1, 2, 0, 1), 'reflect').tanh(), F.pad(x, (1, -1), value=2.0) + 1, F.pad(x, (2, 0, 1, "
        "1), 'circular') * 2, F.pad(x, (0, 3, 1, 0), 'replicate')",
        "torch.randn(1, 2, 4, 4)"),
    "groups and dilation": Case(
        99683, "x", "self.c(x).sigmoid()", "torch.randn(2, 4, 9)",
        members="self.c = nn.Conv1d(4, 8, 3, padding=2, dilation=2, groups=4, padding_mode='circular')"),
    "one by one over volumes": Case(
        99683, "x", "self.c(x).mean((2, 3, 4)) * 2", "torch.randn(1, 4, 2, 3, 3)",
        members="self.c = nn.Conv3d(4, 4, 1, padding=1, groups=4)"),
    "a convolution without a batch": Case(
        184026, "x", "self.c(x).relu()", "torch.randn(3, 6, 6)", members="self.c = nn.Conv2d(3, 2, 3, bias=False)",
        kernels=False),
    "pixels shuffled": Case(
        148754, "x", "F.pixel_shuffle(x.tanh(), 2) + F.pixel_unshuffle(x, 1)[:, :1].repeat(1, 1, 2, 2)",
        "torch.randn(1, 4, 3, 3)"),
    "pools to uneven sizes": Case(
        188218, "x", "return F.adaptive_avg_pool2d(x, (3, 2)) * 2, F.adaptive_max_pool2d(x, (2, 5)).exp()",
        "torch.randn(1, 2, 7, 5)"),
    "fractions of a pool": Case(
        183249, "x", "F.fractional_max_pool2d(x, 2, output_size=3) * 2", "torch.randn(1, 2, 7, 7)", kernels=False),
    "power average": Case(100987, "x", "F.lp_pool2d(x.abs(), 2, 2) + 1", "torch.randn(1, 2, 6, 6)"),
}

test_reported = held("images", CASES)
