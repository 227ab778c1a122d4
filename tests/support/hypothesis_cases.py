"""Models, and candidates that get one thing of them wrong."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.ConvTranspose2d(4, 8, 3, stride=2, padding=1, output_padding=1)
        self.bias = nn.Parameter(torch.randn(8, 1, 1))

    def forward(self, x):
        x = self.conv(x).mean((2, 3), keepdim=True) + self.bias
        x = torch.logsumexp(x, 1, keepdim=True).sum((2, 3))
        return x * 10.0

    @staticmethod
    def inputs(random):
        return [random(3, 4, 9, 9)]


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(37, 37), nn.Linear(37, 20)

    def forward(self, x):
        return F.gelu(self.second(F.relu(self.first(x)))) * 0.5

    @staticmethod
    def inputs(random):
        return [random(16, 37)]


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 8, 3, padding=1, groups=2), nn.BatchNorm2d(8)

    def forward(self, x):
        return F.max_pool2d(F.leaky_relu(self.norm(self.conv(x)), 0.1), 3, 2, 1)

    @staticmethod
    def inputs(random):
        return [random(2, 4, 12, 12)]

    def end(self, x):
        return F.max_pool2d(F.leaky_relu(self.norm(x), 0.1), 3, 2, 1)

    def convolved(self, x, weight=None, padding=1):
        return F.conv2d(x, self.conv.weight if weight is None else weight, self.conv.bias, 1, padding, 1, 2)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(50), nn.Linear(50, 50)
        nn.init.normal_(self.norm.weight, 1.0, 0.3)
        nn.init.normal_(self.norm.bias)

    def forward(self, x):
        return x + self.linear(self.norm(x))

    @staticmethod
    def inputs(random):
        return [random(8, 50)]

    def normed(self, x, variance, mean):
        return x + self.linear((x - mean) * torch.rsqrt(variance + 1e-5) * self.norm.weight + self.norm.bias)


class Attention(nn.Module):
    def forward(self, q, k, v):
        return torch.softmax(q @ k.transpose(-1, -2) / 8.0, -1) @ v

    @staticmethod
    def inputs(random):
        return [random(2, 16, 64), random(2, 16, 64), random(2, 16, 64)]


class Causal(nn.Module):
    def forward(self, q, k, v):
        later = torch.ones(16, 16, dtype=torch.bool).triu(1)
        return torch.softmax((q @ k.mT).masked_fill(later, -torch.inf), -1) @ v

    @staticmethod
    def inputs(random):
        return [random(2, 16, 64) for _ in range(3)]


class Tied(nn.Module):
    """One weight in two layers, and a layer under two names."""

    def __init__(self):
        super().__init__()
        self.table, self.block, self.head = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 20, bias=False)
        self.head.weight, self.again = self.table.weight, self.block

    def forward(self, i):
        return self.head(F.gelu(self.again(self.block(self.table(i)))))

    @staticmethod
    def inputs(random):
        return [torch.arange(30) * 7 % 20]


class Normed(nn.Module):
    """A weight that is divided by its norm, in an operator that stays a call."""

    def __init__(self):
        super().__init__()
        self.layer = nn.utils.parametrizations.weight_norm(nn.Linear(40, 30))

    def forward(self, x):
        return torch.logsumexp(self.layer(x), 1, keepdim=True) + x

    @staticmethod
    def inputs(random):
        return [random(64, 40)]


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(24, 31), nn.Linear(24, 31)
        self.low, self.high = nn.Parameter(torch.rand(31)), nn.Parameter(torch.rand(31) + 1)

    def forward(self, x):
        return F.silu(self.gate(x)) * self.up(x) * self.high + self.low

    @staticmethod
    def inputs(random):
        return [random(16, 24)]


class Reductions(nn.Module):
    def forward(self, x):
        return x.sum(1), x.var(1), x.argmax(1)

    @staticmethod
    def inputs(random):
        return [random(8, 101)]


class Scan(nn.Module):
    def forward(self, x):
        return torch.cumsum(x, 1) * 2

    @staticmethod
    def inputs(random):
        return [random(4, 300)]


class Highest(nn.Module):
    def forward(self, x):
        return x - torch.cummax(x, 1).values

    @staticmethod
    def inputs(random):
        return [random(4, 40)]


class Loss(nn.Module):
    def forward(self, x, target):
        return F.smooth_l1_loss(x, target)

    @staticmethod
    def inputs(random):
        return [random(8, 20), random(8, 20)]


class OfSquares(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(50, eps=1e-5)
        nn.init.normal_(self.norm.weight, 1.0, 0.3)

    def forward(self, x):
        return torch.tanh(self.norm(x)) + x

    @staticmethod
    def inputs(random):
        return [random(8, 50)]

    def by(self, x, root):
        return torch.tanh(x / root * self.norm.weight) + x


class RootMeanSquare(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(64) + 0.5)

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight

    @staticmethod
    def inputs(random):
        return [random(4, 64)]


class Pool(nn.Module):
    def forward(self, x):
        return F.avg_pool2d(torch.sigmoid(x), 3, 2, 1)

    @staticmethod
    def inputs(random):
        return [random(2, 3, 11, 11)]


class Difference(nn.Module):
    def forward(self, a, b):
        return torch.clamp((a - b) / 3.0, -0.5, 0.8)

    @staticmethod
    def inputs(random):
        return [random(16, 16), random(16, 16)]


class Groups(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv1d(6, 12, 5, dilation=2), nn.GroupNorm(3, 12)
        nn.init.normal_(self.norm.weight, 1.0, 0.3)
        nn.init.normal_(self.norm.bias)

    def forward(self, x):
        return torch.tanh(self.norm(self.conv(x)))

    @staticmethod
    def inputs(random):
        return [random(3, 6, 40)]


class Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 8)

    def forward(self, i):
        return self.table(i) * 2

    @staticmethod
    def inputs(random):
        return [torch.arange(30) * 7 % 20]


class NormByHand(nn.Module):
    """A norm in operators: its mean is read by the variance and by what is divided."""

    def forward(self, x):
        mean = x.mean(1, keepdim=True)
        return (x - mean) / torch.sqrt((x - mean).pow(2).mean(1, keepdim=True) + 1e-6)

    @staticmethod
    def inputs(random):
        return [random(6, 40) + 0.2]


class Entropy(nn.Module):
    def forward(self, x):
        logarithm = F.log_softmax(x, -1)
        return -(logarithm.exp() * logarithm).sum(-1)

    @staticmethod
    def inputs(random):
        return [random(12, 30)]


class Weighted(nn.Module):
    """Two numbers that are taken for one another: the weight of what is true, and of what is not."""

    def forward(self, x, target):
        return (0.25 * target + 0.75 * (1 - target)) * torch.tanh(x)

    @staticmethod
    def inputs(random):
        return [random(8, 20), (random(8, 20) > 0.5).float()]


class Pair(nn.Module):
    """Two results of one mean, each with its own operators."""

    def forward(self, x):
        return x.mean(1), (x - x.sort(1).values.mean(1, keepdim=True)).abs().amax(1)

    @staticmethod
    def inputs(random):
        return [random(40, 30)]


def last_element(self, x):
    weight = self.second.weight[:, :36]
    return F.gelu(F.linear(F.relu(self.first(x))[:, :36], weight, self.second.bias)) * 0.5


def head(self, x, change="", convolved=None):
    x = self.conv(x) if convolved is None else convolved
    x = x.sum((2, 3), keepdim=True) if change == "sum" else x.mean((2, 3), keepdim=True)
    x = x if change == "bias" else x + self.bias
    return x if change == "early" else torch.logsumexp(x, 1, keepdim=True).sum((2, 3)) * (1 if change == "ten" else 10)


# Model, kinds of finding that name the fault, words of the sentence, forward of the candidate.
CASES = [
    (Head, "missing-bias", "without adding bias", lambda s, x: head(s, x, "bias")),
    (Head, "missing-factor missing-last-operators", "multiplication by 10", lambda s, x: head(s, x, "ten")),
    (Head, "sum-for-mean", "the sum in place of the mean over axes 2, 3", lambda s, x: head(s, x, "sum")),
    (Head, "missing-last-operators shape", "", lambda s, x: torch.logsumexp(head(s, x, "early"), 1, keepdim=True)),
    (Head, "output-padding", "output_padding 0 instead of 1",
     lambda s, x: head(s, x, "", F.conv_transpose2d(x, s.conv.weight, s.conv.bias, 2, 1))),
    (Head, "missing-bias", "parameter conv.bias",
     lambda s, x: head(s, x, "", F.conv_transpose2d(x, s.conv.weight, None, 2, 1, 1))),
    (Perceptron, "missing-activation", "without the ReLU", lambda s, x: F.gelu(s.second(s.first(x))) * 0.5),
    (Perceptron, "wrong-activation", "GELU (tanh form)",
     lambda s, x: F.gelu(s.second(F.relu(s.first(x))), approximate="tanh") * 0.5),
    (Perceptron, "transposed-weight", "first.weight",
     lambda s, x: F.gelu(s.second(F.relu(F.linear(x, s.first.weight.t(), s.first.bias)))) * 0.5),
    (Perceptron, "reduction-cut", "leaving out its last position", last_element),
    (Perceptron, "wrong-constant", "0.37 in place of the 0.5", lambda s,
     x: F.gelu(s.second(F.relu(s.first(x)))) * 0.37),
    (Perceptron, "order-exchanged", "", lambda s, x: F.gelu(s.second(F.relu(s.first(x))) * 0.5)),
    (Perceptron, "precision-bfloat16", "rounded to bfloat16", lambda s, x: F.gelu(F.linear(
        F.relu(s.first(x)).bfloat16().float(), s.second.weight.bfloat16().float(), s.second.bias)) * 0.5),
    (Perceptron, "bias-index", "one further", lambda s, x: F.gelu(F.linear(
        F.relu(s.first(x)), s.second.weight, s.second.bias.roll(-1))) * 0.5),
    (Convolution, "eval-for-training", "running statistics", lambda s, x: F.max_pool2d(F.leaky_relu(F.batch_norm(
        s.conv(x), s.norm.running_mean, s.norm.running_var, s.norm.weight, s.norm.bias, False), 0.1), 3, 2, 1)),
    (Convolution, "wrong-constant", "0.02 in place of the 0.1",
     lambda s, x: F.max_pool2d(F.leaky_relu(s.norm(s.conv(x)), 0.02), 3, 2, 1)),
    (Convolution, "padding-value", "zeros in place of -infinity",
     lambda s, x: F.max_pool2d(F.pad(F.leaky_relu(s.norm(s.conv(x)), 0.1), (1, 1, 1, 1)), 3, 2)),
    (Convolution, "extremum-start", "starting at 0", lambda s, x: s.end(s.conv(x)).clamp_min(0)),
    (Convolution, "groups", "the first group's channels", lambda s, x: s.end(s.convolved(x[:, :2].repeat(1, 2, 1, 1)))),
    (Convolution, "kernel-flipped", "flipped along axes 2, 3", lambda s,
     x: s.end(s.convolved(x, s.conv.weight.flip(2, 3)))),
    (Convolution, "padding", "too far to the right", lambda s,
     x: s.end(s.convolved(F.pad(x, (0, 2, 0, 2)), padding=0))),
    (Residual, "affine-ignored", "without the weight and bias", lambda s, x: x + s.linear(F.layer_norm(x, (50,)))),
    (Residual, "missing-addend", "input x", lambda s, x: s.linear(s.norm(x))),
    (Residual, "biased-variance", "unbiased variance",
     lambda s, x: s.normed(x, x.var(-1, keepdim=True), x.mean(-1, keepdim=True))),
    (Residual, "mean-not-subtracted", "",
     lambda s, x: s.normed(x, x.pow(2).mean(-1, keepdim=True), x.mean(-1, keepdim=True))),
    (Residual, "wrong-axis", "the variance of the layer norm", lambda s, x: s.normed(
        x, x.var(0, correction=0, keepdim=True), x.mean(-1, keepdim=True))),
    (Residual, "eps wrong-constant", "eps = 0.01",
     lambda s, x: x + s.linear(F.layer_norm(x, (50,), s.norm.weight, s.norm.bias, 1e-2))),
    (Attention, "missing-factor", "without the division by 8", lambda s, q, k, v: torch.softmax(q @ k.mT, -1) @ v),
    (Causal, "triangle", "with the diagonal of", lambda s, q, k, v: torch.softmax((q @ k.mT).masked_fill(
        torch.ones(16, 16, dtype=torch.bool).triu(2), -torch.inf), -1) @ v),
    (Gate, "parameters-exchanged", "with gate and up exchanged",
     lambda s, x: F.silu(s.up(x)) * s.gate(x) * s.high + s.low),
    (Gate, "parameters-exchanged", "with high and low exchanged",
     lambda s, x: F.silu(s.gate(x)) * s.up(x) * s.low + s.high),
    (Tied, "wrong-activation", "GELU (tanh form)", lambda s, i: s.head(F.gelu(
        s.again(s.block(s.table(i))), approximate="tanh"))),
    (Normed, "missing-operator", "without the _weight_norm", lambda s, x: torch.logsumexp(F.linear(
        x, s.layer.parametrizations.weight.original1, s.layer.bias), 1, keepdim=True) + x),
    (Attention, "wrong-axis", "softmax over axis 2", lambda s, q, k, v: torch.softmax(q @ k.mT / 8, -2) @ v),
    (Attention, "not-normalised", "without the division by the sum", lambda s, q, k, v: torch.exp(q @ k.mT / 8) @ v),
    (Reductions, "biased-variance factor", "", lambda s, x: (x.sum(1), x.var(1, correction=0), x.argmax(1))),
    (Reductions, "reduction-cut", "leaving out", lambda s, x: (x[:, :96].sum(1), x.var(1), x.argmax(1))),
    (Reductions, "other-extremum", "", lambda s, x: (x.sum(1), x.var(1), x.argmin(1))),
    (Scan, "exclusive-scan shifted", "", lambda s, x: (torch.cumsum(x, 1) - x) * 2),
    (Scan, "scan-not-carried", "every 128 positions", lambda s,
     x: torch.cat([p.cumsum(1) for p in x.split(128, 1)], 1) * 2),
    (Highest, "other-extremum", "cumulative minimum", lambda s, x: x - torch.cummin(x, 1).values),
    (Scan, "wrong-reduction", "cumulative product", lambda s, x: torch.cumprod(x, 1) * 2),
    (Loss, "mean-for-sum sum-for-mean", 'reduction="sum"', lambda s, x, t: F.smooth_l1_loss(x, t, reduction="sum")),
    (Loss, "wrong-constant", "beta = 0.5", lambda s, x, t: F.smooth_l1_loss(x, t, beta=0.5)),
    (OfSquares, "mean-subtracted", "the mean subtracted first", lambda s, x: torch.tanh(F.layer_norm(
        x, (50,), s.norm.weight, eps=1e-5)) + x),
    (OfSquares, "mean-subtracted", "the deviation in place", lambda s, x: s.by(
        x, torch.sqrt(x.var(-1, correction=0, keepdim=True) + 1e-5))),
    (OfSquares, "missing-root", "in place of its root", lambda s, x: s.by(x, x.square().mean(-1, keepdim=True) + 1e-5)),
    (OfSquares, "sum-for-mean", "the sum in place", lambda s, x: s.by(x, torch.sqrt(x.square().sum(-1, keepdim=True)))),
    (OfSquares, "missing-weight", "weight of the RMS norm", lambda s, x: torch.tanh(F.rms_norm(
        x, (50,), eps=1e-5)) + x),
    (OfSquares, "reduction-cut", "mean of squares", lambda s, x: s.by(
        x, torch.sqrt(x[:, :49].square().sum(-1, keepdim=True) / 50 + 1e-5))),
    (OfSquares, "wrong-axis", "over axes 0", lambda s, x: s.by(x, torch.sqrt(x.square().mean(0, keepdim=True) + 1e-5))),
    (OfSquares, "weight-index", "the weight of the RMS norm", lambda s, x: torch.tanh(F.rms_norm(
        x, (50,), s.norm.weight.roll(1), 1e-5)) + x),
    (RootMeanSquare, "missing-weight", "weight", lambda s, x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)),
    (RootMeanSquare, "wrong-divisor", "63 instead of 64",
     lambda s, x: x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) / 63 + 1e-5) * s.weight),
    (Pool, "count-include-pad", "", lambda s, x: F.avg_pool2d(torch.sigmoid(x), 3, 2, 1, count_include_pad=False)),
    (Pool, "missing-activation", "without the sigmoid", lambda s, x: F.avg_pool2d(x, 3, 2, 1)),
    (Difference, "operands-exchanged inputs-exchanged", "", lambda s, a, b: torch.clamp((b - a) / 3.0, -0.5, 0.8)),
    (Difference, "missing-clamp", "clamp from above at 0.8", lambda s, a, b: torch.clamp((a - b) / 3.0, min=-0.5)),
    (Difference, "wrong-constant", "0.6 in place of the 0.8", lambda s, a, b: torch.clamp((a - b) / 3.0, -0.5, 0.6)),
    (Groups, "dilation", "dilation 1 instead of 2",
     lambda s, x: torch.tanh(s.norm(F.conv1d(x, s.conv.weight, s.conv.bias)[..., :32]))),
    (Groups, "groups", "with 1 groups", lambda s, x: torch.tanh(F.group_norm(s.conv(x), 1, s.norm.weight,
                                                                             s.norm.bias))),
    (Residual, "weight-index", "the weight of the layer norm", lambda s, x: x + s.linear(
        F.layer_norm(x, (50,), s.norm.weight.roll(1), s.norm.bias))),
    (Residual, "reduction-cut", "sum for the mean", lambda s, x: (lambda m: s.normed(
        x, (x - m).square().mean(-1, keepdim=True), m))(x[:, :49].sum(-1, keepdim=True) / 50)),
    (Attention, "input-index", "at its first entry always", lambda s, q, k, v: Attention.forward(
        s, q, k, v[:1].expand_as(v))),
    (Reductions, "counted-twice", "last position", lambda s, x: (x.sum(1) + x[:, 100], x.var(1), x.argmax(1))),
    (Reductions, "not-reset", "carried from one result", lambda s, x: (x.sum(1).cumsum(0), x.var(1), x.argmax(1))),
    (Reductions, "wrong-summand", "absolute values", lambda s, x: (x.abs().sum(1), x.var(1), x.argmax(1))),
    (Convolution, "reduction-cut", "missing from the max pooling", lambda s, x: F.max_pool2d(F.pad(
        F.leaky_relu(s.norm(s.conv(x)), 0.1), (1, 0, 1, 1), value=-9e9), (3, 2), 2)),
    (Perceptron, "order-exchanged", "first.bias added after", lambda s, x: F.gelu(s.second(
        F.relu(F.linear(x, s.first.weight)) + s.first.bias)) * 0.5),
    (Groups, "reduction-cut", "last tap", lambda s, x: torch.tanh(s.norm(F.conv1d(
        x[..., :-2], s.conv.weight[..., :4], s.conv.bias, dilation=2)))),
    (Residual, "bias-subtracted", "the bias of the layer norm", lambda s, x: x + s.linear(
        F.layer_norm(x, (50,), s.norm.weight, -s.norm.bias))),
    (Residual, "sum-for-mean", "the sum in place of the mean", lambda s, x: s.normed(
        x, x.var(-1, correction=0, keepdim=True), x.sum(-1, keepdim=True))),
    (Groups, "order-exchanged", "norm.bias added after", lambda s, x: torch.tanh(F.group_norm(
        s.conv(x), s.norm.num_groups, s.norm.weight)) + s.norm.bias[:, None]),
    (RootMeanSquare, "missing-root", "reciprocal",
     lambda s, x: x / (x.pow(2).mean(-1, keepdim=True) + 1e-5) * s.weight),
    (Reductions, "reduction-cut", "all but the last tile", lambda s, x: (x[:, 96:].sum(1), x.var(1), x.argmax(1))),
    (Reductions, "reduction-cut", "every second tile of 16", lambda s, x: (
        x[:, torch.arange(101) // 16 % 2 == 0].sum(1), x.var(1), x.argmax(1))),
    (Perceptron, "reduction-cut", "every second tile of 8", lambda s, x: (lambda h, k: F.gelu(F.linear(
        h[:, k], s.second.weight[:, k], s.second.bias)) * 0.5)(F.relu(s.first(x)), torch.arange(37) // 8 % 2 == 0)),
    (Attention, "wrong-axis", "over axis 0 subtracted", lambda s, q, k, v: (
        lambda a: torch.softmax(a - a.amax(0, keepdim=True), -1) @ v)(q @ k.mT / 8.0)),
    (Residual, "sign", "added instead of subtracted", lambda s, x: s.normed(
        x, x.var(-1, correction=0, keepdim=True), -x.mean(-1, keepdim=True))),
    (Pool, "wrong-divisor", "count +1", lambda s, x: F.avg_pool2d(torch.sigmoid(x), 3, 2, 1, divisor_override=10)),
    (Pool, "padding", "shifted by 1 along axis 2", lambda s, x: F.avg_pool2d(F.pad(
        torch.sigmoid(x), (1, 1, 0, 2)), 3, 2)),
    (Pool, "reduction-cut sum-for-mean count-include-pad factor", "", lambda s, x: 9 * F.avg_pool2d(
        torch.sigmoid(x), 3, 2, 1)),
    (NormByHand, "sum-for-mean mean-for-sum", "but only as the division", lambda s, x: (
        x - x.sum(1, keepdim=True)) / torch.sqrt(x.var(1, correction=0, keepdim=True) + 1e-6)),
    (Entropy, "not-normalised", "but only as the exp", lambda s, x: -(
        (x - x.amax(-1, keepdim=True)).exp() * F.log_softmax(x, -1)).sum(-1)),
    (Weighted, "constants-exchanged", "0.75 in", lambda s, x, t: (0.75 * t + 0.25 * (1 - t)) * torch.tanh(x)),
    (Highest, "input-index", "one position back along axis 1", lambda s, x: Highest.forward(s, x.roll(1, 1))),
    (Scan, "input-index", "modulo 4 along axis 1", lambda s, x: Scan.forward(s, x[:, torch.arange(300) % 4])),
    (Rows, "input-index", "one too large (modulo 20)", lambda s, i: s.table.weight[(i + 1) % 20] * 2),
    (Pair, "sum-for-mean", "and so in 1 more of this line", lambda s, x: (
        x.sum(1), (x - x.sum(1, keepdim=True)).abs().amax(1))),
    (Pair, "sum-for-mean", "output[0] is what", lambda s, x: (x.sum(1), (x - x[:, :7].sum(1, keepdim=True)).square(
        ).amax(1))),
]
