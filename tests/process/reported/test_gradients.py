"""Gradients: which outputs have them, of whom, and their values where functions turn."""

from __future__ import annotations

from reported.case import Case, held

_FUNCTION = '''
class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g * 0.5
'''

CASES = {
    "an output that is cut off": Case(
        176854, "x", "y = x * 2.0\nz = y.detach() + 1\nreturn z.exp(), y + 1", "torch.randn(4)"),
    "cut off in place": Case(176854, "x", "y = x * 2.0\ny.detach_()\nreturn y + 1.0, x.tanh()", "torch.randn(4)"),
    "whole numbers beside": Case(
        186339, "x", "return x.argmax(1), x.tanh() * 2, (x > 0).sum(1), x > 0", "torch.randn(3, 5)"),
    "an output without a parameter": Case(
        139476, "x", "return (x * self.a).relu(), self.b * 2, self.a + 1", "torch.randn(3, 4)",
        members="self.a = nn.Parameter(torch.randn(4))\nself.register_buffer('b', torch.randn(4))"),
    "a frozen parameter": Case(
        139476, "x", "(self.l(x) * self.a).tanh()", "torch.randn(3, 4)",
        members="self.l = nn.Linear(4, 4)\nself.l.weight.requires_grad_(False)\nself.a = nn.Parameter(torch.randn(4))"),
    "a gradient of one's own": Case(102970, "x", "Scaled.apply(x.tanh()) * 2", "torch.randn(3, 4)", before=_FUNCTION),
    "a hook on a value": Case(
        91468, "x", "y = x * x\nif y.requires_grad:\n    y.register_hook(lambda g: g * 3)\nreturn (y * 2).tanh()",
        "torch.randn(3, 4)"),
    "a tensor made inside": Case(
        99455, "x", "w = torch.ones(4, requires_grad=True)\nreturn x * w + 1, (w * 2).exp()", "torch.randn(3, 4)"),
    "where functions turn": Case(
        100794, "x",
        "return x.abs(), F.relu(x), x.clamp(-1, 1), F.hardtanh(x), x.sign() * x, F.leaky_relu(x, 0.1), "
        "x.clamp_min(0), F.elu(x), F.softplus(x), F.relu6(x)",
        "torch.tensor([0.0, -0.0, 1.0, -1.0, 6.0, 2.0, -3.0])"),
    "more of where functions turn": Case(
        100794, "x, y",
        "return torch.maximum(x, y), torch.minimum(x, y), F.hardswish(x * 3), F.threshold(x, 0.0, 1.0), "
        "F.softshrink(x, 1.0), x.round() * x",
        "torch.tensor([0.0, 1.0, -1.0, 2.0]).repeat(4), torch.tensor([0.0, 1.0, 1.0, 3.0]).repeat(4)"),
    "a root of zero behind where": Case(
        178080, "x", "torch.where(x > 0, x.sqrt(), torch.zeros_like(x))", "torch.tensor([4.0, 0.0, -1.0])"),
    "average pools that overhang": Case(
        198119, "x", "F.avg_pool1d(x, 3, 3, ceil_mode=True) * 2", "torch.randn(2, 3, 8)", kernels=False),
    "interpolation, convolution and pool": Case(
        185509, "x",
        "y = F.interpolate(x, scale_factor=(1.5, 1.25), mode='bilinear', align_corners=False)\n"
        "c = self.c(y[:, :, 1:7, 1:8])\np = F.max_pool2d(c, 3, 1, 1)\n"
        "return torch.where(c > p.mean((2, 3), keepdim=True), c, p)",
        "torch.randn(1, 2, 8, 8)", members="self.c = nn.Conv2d(2, 3, 3, padding=1)"),
    "a convolution shrunk to a point": Case(
        100794, "x", "F.interpolate(self.c(x), size=[1, 1], mode='nearest') + 1", "torch.ones(1, 1, 6, 6)",
        members="self.c = nn.Conv2d(1, 1, 4)", kernels=False),
    "a second gradient": Case(
        132929, "x",
        "y = (x ** 3).sum()\nwith torch.enable_grad():\n    z = x.detach().requires_grad_()\n"
        "    g, = torch.autograd.grad((z ** 3).sum(), z)\nreturn y + 1, g * 2",
        "torch.randn(5)"),
    "computed again in the backward": Case(
        171665, "x", "torch.utils.checkpoint.checkpoint(self.l, x, use_reentrant=False).relu() * 2",
        "torch.randn(3, 4)", members="self.l = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))",
        before="import torch.utils.checkpoint"),
}

test_reported = held("gradients", CASES)
