"""Models in the manner of public ones, for benchmarks/training.py: what a step of training of each consists of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F

Tensors = tuple[torch.Tensor, ...]


class Of(nn.Module):
    """A module with layers, which a function puts together."""

    def __init__(self, function: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(self, *inputs)


@dataclass(frozen=True)
class Case:
    """A model and its inputs. of_inputs: whether inputs require gradients, too, as within a larger model."""

    make: Callable[[], nn.Module]
    inputs: Callable[[], Tensors]
    of_inputs: bool = True


def rows(n: int = 2048, d: int = 1024, count: int = 1) -> Callable[[], Tensors]:
    return lambda: tuple(torch.randn(n, d) for _ in range(count))


def tokens(batch: int = 4, length: int = 128, d: int = 256, count: int = 1) -> Callable[[], Tensors]:
    return lambda: tuple(torch.randn(batch, length, d) for _ in range(count))


def image(n: int = 16, c: int = 64, s: int = 56) -> Callable[[], Tensors]:
    return lambda: (torch.randn(n, c, s, s),)


def labelled(n: int, d: int, classes: int) -> Callable[[], Tensors]:
    return lambda: (torch.randn(n, d), torch.randint(0, classes, (n,)))


def labelled_image(n: int, c: int, s: int, classes: int) -> Callable[[], Tensors]:
    return lambda: (torch.randn(n, c, s, s), torch.randint(0, classes, (n,)))


def conv(i: int, o: int, k: int = 3, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(i, o, k, stride, k // 2, groups=groups, bias=False)


def conv_norm(i: int, o: int, k: int = 3, stride: int = 1, groups: int = 1, act: type[nn.Module] = nn.ReLU
              ) -> nn.Sequential:
    return nn.Sequential(conv(i, o, k, stride, groups), nn.BatchNorm2d(o), act())


# Norms, activations and other chains --------------------------------------------------------------------------------

def _norm_gelu(m: Any, x: torch.Tensor) -> torch.Tensor:
    return F.gelu(m.norm(x)) * torch.sigmoid(x)


def _scaled_loss(m: Any, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(m.norm(x) * 2.0, t)


def _rotated(m: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def _focal(m: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    p = torch.sigmoid(x)
    return (F.binary_cross_entropy_with_logits(x, y, reduction="none") * (1 - p) * (1 - p)).mean()


CHAINS = {
    "layer norm, gelu, gate": Case(lambda: Of(_norm_gelu, norm=nn.LayerNorm(1024)), rows()),
    "layer norm of a first layer": Case(lambda: Of(_norm_gelu, norm=nn.LayerNorm(1024)), rows(), of_inputs=False),
    "RMS norm, silu": Case(lambda: Of(lambda m, x: F.silu(m.norm(x)) + x, norm=nn.RMSNorm(1024, eps=1e-6)), rows()),
    "softmax of scaled rows": Case(lambda: Of(lambda m, x: torch.softmax(torch.tanh(x) * 3.0, 1)), rows()),
    "log softmax and cross entropy": Case(lambda: Of(_scaled_loss, norm=nn.LayerNorm(1024)),
                                          labelled(2048, 1024, 1024)),
    "huber of a mish": Case(lambda: Of(lambda m, x, y: F.huber_loss(F.mish(x), torch.sigmoid(y))), rows(count=2)),
    "focal loss": Case(lambda: Of(_focal), lambda: (torch.randn(2048, 512), torch.rand(2048, 512))),
    "variance and deviation": Case(lambda: Of(lambda m, x: x.std(1) / (x.var(1) + 1.0) + x.amax(1)), rows()),
    "pointwise chain": Case(lambda: Of(lambda m, x, y: torch.where(x > y, F.mish(x) * y, F.softplus(y)) + x.exp()),
                            rows(count=2)),
    "rotary embedding": Case(lambda: Of(_rotated), tokens(8, 256, 256, 3)),
    "group norm, mish": Case(lambda: Of(lambda m, x: F.mish(m.norm(x)) * 0.5 + x, norm=nn.GroupNorm(8, 64)), image()),
    "batch norm, relu, residual": Case(lambda: Of(lambda m, x: F.relu(m.norm(x) + x), norm=nn.BatchNorm2d(64)),
                                       image()),
    "batch norm, relu, max pool": Case(lambda: Of(lambda m, x: F.max_pool2d(F.relu(m.norm(x)), 2) * 2.0,
                                                  norm=nn.BatchNorm2d(64)), image()),
}


# Layers of products -------------------------------------------------------------------------------------------------

def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


def _normed_mlp() -> nn.Module:
    def layer(i: int, o: int) -> list[nn.Module]:
        return [nn.Linear(i, o), nn.BatchNorm1d(o), nn.SiLU()]
    return nn.Sequential(*layer(256, 512), *layer(512, 512), nn.Linear(512, 64))


def _gated(m: Any, x: torch.Tensor) -> torch.Tensor:
    return F.silu(m.gate(x)) * m.up(x) + x


def _swiglu(m: Any, x: torch.Tensor) -> torch.Tensor:
    h = m.norm(x)
    return x + m.down(F.silu(m.gate(h)) * m.up(h))


def _tied_autoencoder(m: Any, x: torch.Tensor) -> torch.Tensor:
    h = torch.tanh(m.encode(x))
    return F.mse_loss(F.linear(h, m.encode.weight.t()), x)


def _vae(m: Any, x: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    h = F.relu(m.encode(x))
    mean, log_variance = m.mean(h), m.log_variance(h)
    z = mean + noise * torch.exp(0.5 * log_variance)
    made = torch.sigmoid(m.out(F.relu(m.decode(z))))
    divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
    return (made - torch.sigmoid(x)).square().sum(1).mean(), divergence


def _contrastive(m: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    a, b = F.normalize(m.one(x), dim=1), F.normalize(m.other(y), dim=1)
    scores = a @ b.t() * 10.0
    return -torch.log_softmax(scores, 1).diagonal().mean() - torch.log_softmax(scores, 0).diagonal().mean()


def _vocabulary(m: Any, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(m.head(m.norm(x)), t)


def _distilled(m: Any, x: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    return F.kl_div(torch.log_softmax(m.head(x) / 2.0, 1), torch.softmax(teacher / 2.0, 1), reduction="batchmean")


def _value_and_policy(m: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    h = torch.tanh(m.second(torch.tanh(m.first(x))))
    return torch.log_softmax(m.policy(h), 1), m.value(h)


def _cross(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = x * m.one(x) + x
    return x * m.two(y) + y


PRODUCTS = {
    "MLP": Case(_mlp, rows(512, 512), of_inputs=False),
    "MLP with batch norms": Case(_normed_mlp, rows(1024, 256), of_inputs=False),
    "gated products": Case(lambda: Of(_gated, gate=nn.Linear(512, 512), up=nn.Linear(512, 512)), rows(1024, 512)),
    "SwiGLU block": Case(lambda: Of(_swiglu, norm=nn.RMSNorm(256, eps=1e-6), gate=nn.Linear(256, 688, bias=False),
                                    up=nn.Linear(256, 688, bias=False), down=nn.Linear(688, 256, bias=False)),
                         rows(1024, 256)),
    "tied autoencoder": Case(lambda: Of(_tied_autoencoder, encode=nn.Linear(784, 128)), rows(512, 784),
                             of_inputs=False),
    "VAE": Case(lambda: Of(_vae, encode=nn.Linear(784, 400), mean=nn.Linear(400, 20), log_variance=nn.Linear(400, 20),
                           decode=nn.Linear(20, 400), out=nn.Linear(400, 784)),
                lambda: (torch.randn(256, 784), torch.randn(256, 20)), of_inputs=False),
    "contrastive pairs": Case(lambda: Of(_contrastive, one=nn.Linear(512, 128), other=nn.Linear(384, 128)),
                              lambda: (torch.randn(256, 512), torch.randn(256, 384)), of_inputs=False),
    "loss over a vocabulary": Case(lambda: Of(_vocabulary, norm=nn.LayerNorm(256), head=nn.Linear(256, 8192)),
                                   labelled(256, 256, 8192)),
    "distillation": Case(lambda: Of(_distilled, head=nn.Linear(256, 1000)),
                         lambda: (torch.randn(512, 256), torch.randn(512, 1000)), of_inputs=False),
    "policy and value": Case(lambda: Of(_value_and_policy, first=nn.Linear(64, 256), second=nn.Linear(256, 256),
                                        policy=nn.Linear(256, 18), value=nn.Linear(256, 1)), rows(2048, 64),
                             of_inputs=False),
    "deep and cross": Case(lambda: Of(_cross, one=nn.Linear(256, 256), two=nn.Linear(256, 256)), rows(2048, 256)),
}


# Blocks of transformers and mixers ----------------------------------------------------------------------------------

def _heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    return x.view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


def _attended(m: Any, x: torch.Tensor, causal: bool) -> torch.Tensor:
    q, k, v = (_heads(part, 4) for part in m.qkv(x).chunk(3, -1))
    scores = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5
    if causal:
        scores = scores + m.mask
    return m.out((torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(x.shape))


def _encoder(m: Any, x: torch.Tensor) -> torch.Tensor:
    x = m.norm1(x + _attended(m, x, causal=False))
    return m.norm2(x + m.second(F.relu(m.first(x))))


def _decoder(m: Any, x: torch.Tensor) -> torch.Tensor:
    x = x + _attended(m, m.norm1(x), causal=True)
    return x + m.second(F.gelu(m.first(m.norm2(x)), approximate="tanh"))


def _transformer(function: Callable[..., Any], d: int = 256, length: int = 128) -> nn.Module:
    made = Of(function, qkv=nn.Linear(d, 3 * d), out=nn.Linear(d, d), norm1=nn.LayerNorm(d), norm2=nn.LayerNorm(d),
              first=nn.Linear(d, 4 * d), second=nn.Linear(4 * d, d))
    made.register_buffer("mask", torch.full((length, length), -1e9).triu(1))
    return made


def _feed_forward(m: Any, x: torch.Tensor) -> torch.Tensor:
    return x + m.second(F.gelu(m.first(m.norm(x))))


def _mixer(m: Any, x: torch.Tensor) -> torch.Tensor:
    x = x + m.t2(F.gelu(m.t1(m.norm1(x).transpose(1, 2)))).transpose(1, 2)
    return x + m.c2(F.gelu(m.c1(m.norm2(x))))


def _linear_attention(m: Any, x: torch.Tensor) -> torch.Tensor:
    q, k, v = (_heads(part, 4) for part in m.qkv(x).chunk(3, -1))
    q, k = F.elu(q) + 1.0, F.elu(k) + 1.0
    found = q @ (k.transpose(2, 3) @ v) / (q * k.sum(2, keepdim=True)).sum(-1, keepdim=True)
    return x + m.out(found.transpose(1, 2).reshape(x.shape))


def _gmlp(m: Any, x: torch.Tensor) -> torch.Tensor:
    u, v = F.gelu(m.first(m.norm1(x))).chunk(2, -1)
    return x + m.second(u * m.along(m.norm2(v).transpose(1, 2)).transpose(1, 2))


def _adapted(m: Any, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
    shift, scale, gate = m.condition(F.silu(condition)).unsqueeze(1).chunk(3, -1)
    return x + gate * m.second(F.gelu(m.first(m.norm(x) * (1.0 + scale) + shift), approximate="tanh"))


BLOCKS = {
    "encoder block, norms last": Case(lambda: _transformer(_encoder), tokens()),
    "decoder block, norms first": Case(lambda: _transformer(_decoder), tokens()),
    "feed-forward block": Case(lambda: Of(_feed_forward, norm=nn.LayerNorm(256), first=nn.Linear(256, 1024),
                                          second=nn.Linear(1024, 256)), tokens()),
    "MLP mixer": Case(lambda: Of(_mixer, norm1=nn.LayerNorm(256), norm2=nn.LayerNorm(256), t1=nn.Linear(64, 128),
                                 t2=nn.Linear(128, 64), c1=nn.Linear(256, 512), c2=nn.Linear(512, 256)),
                      tokens(8, 64, 256)),
    "linear attention": Case(lambda: Of(_linear_attention, qkv=nn.Linear(256, 768), out=nn.Linear(256, 256)), tokens()),
    "gMLP": Case(lambda: Of(_gmlp, norm1=nn.LayerNorm(256), norm2=nn.LayerNorm(256), first=nn.Linear(256, 512),
                            second=nn.Linear(256, 256), along=nn.Linear(64, 64)), tokens(8, 64, 256)),
    "adaptive norm of a diffusion block": Case(
        lambda: Of(_adapted, norm=nn.LayerNorm(256, elementwise_affine=False), condition=nn.Linear(128, 768),
                   first=nn.Linear(256, 1024), second=nn.Linear(1024, 256)),
        lambda: (torch.randn(4, 128, 256), torch.randn(4, 128))),
}


# Convolutions -------------------------------------------------------------------------------------------------------

def _residual(m: Any, x: torch.Tensor) -> torch.Tensor:
    return F.relu(m.norm2(m.conv2(F.relu(m.norm1(m.conv1(x))))) + x)


def _bottleneck(m: Any, x: torch.Tensor) -> torch.Tensor:
    return F.relu(m.norm(m.widen(m.middle(m.narrow(x)))) + x)


def _inverted(m: Any, x: torch.Tensor) -> torch.Tensor:
    return x + m.norm(m.project(m.depth(m.expand(x))))


def _excited(m: Any, x: torch.Tensor) -> torch.Tensor:
    h = m.body(x)
    return x + h * torch.sigmoid(m.up(F.silu(m.down(h.mean((2, 3), keepdim=True)))))


def _convnext(m: Any, x: torch.Tensor) -> torch.Tensor:
    h = m.norm(m.depth(x).permute(0, 2, 3, 1))
    return x + (m.second(F.gelu(m.first(h))) * m.scale.weight[0]).permute(0, 3, 1, 2)


def _dense(m: Any, x: torch.Tensor) -> torch.Tensor:
    one = torch.cat([x, m.first(x)], 1)
    return torch.cat([one, m.second(one)], 1)


def _unet(m: Any, x: torch.Tensor) -> torch.Tensor:
    one = m.enter(x)
    two = m.low(F.max_pool2d(one, 2))
    return m.out(m.leave(torch.cat([one, m.up(two)], 1)))


def _diffused(m: Any, x: torch.Tensor) -> torch.Tensor:
    h = m.conv1(F.silu(m.norm1(x)))
    return x + m.conv2(F.silu(m.norm2(h)))


def _collapsed(m: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.logsumexp(m.conv(x).mean((2, 3), keepdim=True) * 2.0, 1)


def _classified(m: Any, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(m.head(m.body(x).mean((2, 3))), t)


def _small_body() -> nn.Sequential:
    return nn.Sequential(conv_norm(3, 32), conv_norm(32, 32), nn.MaxPool2d(2), conv_norm(32, 64), conv_norm(64, 64))


CONVOLUTIONS = {
    "batch-norm ConvNet with its loss": Case(lambda: Of(_classified, body=_small_body(), head=nn.Linear(64, 10)),
                                             labelled_image(16, 3, 32, 10), of_inputs=False),
    "residual block": Case(lambda: Of(_residual, conv1=conv(64, 64), norm1=nn.BatchNorm2d(64), conv2=conv(64, 64),
                                      norm2=nn.BatchNorm2d(64)), image(8, 64, 28)),
    "bottleneck block": Case(lambda: Of(_bottleneck, narrow=conv_norm(128, 32, 1), middle=conv_norm(32, 32),
                                        widen=conv(32, 128, 1), norm=nn.BatchNorm2d(128)), image(8, 128, 28)),
    "inverted residual block": Case(lambda: Of(_inverted, expand=conv_norm(32, 128, 1, act=nn.Hardswish),
                                               depth=conv_norm(128, 128, groups=128, act=nn.Hardswish),
                                               project=conv(128, 32, 1), norm=nn.BatchNorm2d(32)), image(8, 32, 28)),
    "squeeze and excitation": Case(lambda: Of(_excited, body=conv_norm(64, 64, act=nn.SiLU), down=nn.Conv2d(64, 16, 1),
                                              up=nn.Conv2d(16, 64, 1)), image(8, 64, 28)),
    "ConvNeXt block": Case(lambda: Of(_convnext, depth=nn.Conv2d(64, 64, 7, padding=3, groups=64),
                                      norm=nn.LayerNorm(64), first=nn.Linear(64, 256), second=nn.Linear(256, 64),
                                      scale=nn.Embedding(1, 64)),
                           image(8, 64, 28)),
    "dense block": Case(lambda: Of(_dense, first=conv_norm(64, 32), second=conv_norm(96, 32)), image(8, 64, 28)),
    "U-Net of two levels": Case(lambda: Of(_unet, enter=conv_norm(3, 32), low=conv_norm(32, 64),
                                           up=nn.ConvTranspose2d(64, 32, 2, 2), leave=conv_norm(64, 32),
                                           out=nn.Conv2d(32, 2, 1)), image(4, 3, 64), of_inputs=False),
    "block of a diffusion U-Net": Case(lambda: Of(_diffused, norm1=nn.GroupNorm(8, 64), conv1=conv(64, 64),
                                                  norm2=nn.GroupNorm(8, 64), conv2=conv(64, 64)), image(8, 64, 28)),
    "mean of a transposed convolution": Case(
        lambda: Of(_collapsed, conv=nn.ConvTranspose2d(64, 128, 3, 2, 1, 1)), image(8, 64, 32)),
}

CASES = {**CHAINS, **PRODUCTS, **BLOCKS, **CONVOLUTIONS}
