"""Signs of zeros, infinities, NaN, and functions at the ends of their range."""

from __future__ import annotations

from reported.case import Case, held

_ENDS = "torch.tensor([0.0, -0.0, float('inf'), -float('inf'), float('nan'), 1.0, -1.0, 1e-40, -1e-40, 3e38])"

CASES = {
    "fraction of a negative zero": Case(
        183606, "x", "y = torch.frac(x)\nreturn y, 1 / y", "torch.tensor([-0.0, 0.0, -1.5])"),
    "angle of a root": Case(
        143978, "x", "torch.rsqrt(x).angle().atan().positive().sin()",
        "torch.tensor([0.78, -1.17, 0.51, 1.41, -2.29, 0.0])"),
    "root of negative numbers": Case(
        189808, "x", "return torch.sqrt(x), (x.sqrt() * 0 + 1).nan_to_num(3.0)",
        "torch.tensor([4.0, -4.0, -0.0, 0.0])"),
    "negative zero plus zero": Case(
        189799, "x",
        "v = torch.ceil(x)\nw = v + torch.zeros_like(v)\nreturn v, w, w.reciprocal(), F.elu(v), v.rsqrt()",
        "torch.tensor([-0.5, -0.1, 0.5])"),
    "quotient by what relu left": Case(101009, "x", "(x * -3) / F.relu(x)", "torch.tensor([[1.5, -2.0], [-0.5, 0.0]])"),
    "inverse sine far out": Case(
        113151, "x", "return torch.asinh(x), torch.acosh(x.abs() + 1), torch.atanh(x / 1e6)",
        "torch.tensor([4.8e5, -9.5e5, 6.3e5, -1.6e5, 1.0])"),
    "sine over its argument": Case(
        118176, "x", "torch.sinc(x)", "torch.tensor([0.0, 1e-20, 0.5, 1.0, 251.5, -0.25])", kernels=False),
    "times zero is no zero": Case(187580, "x", "return x * 0, 0 * x + 1, x - x, x / x", _ENDS),
    "zeros by both zeros": Case(
        188680, "x", "return x * 0.0, x * -0.0, x + 0.0, x - 0.0, -0.0 - x, 0.0 - x, -x, x + -0.0", _ENDS),
    "divided by zeros": Case(101009, "x", "return x / 0.0, x / -0.0, 1 / x, -1 / x, torch.reciprocal(-x)", _ENDS),
    "bounds and NaN": Case(
        93784, "x, y",
        "return x.clamp(-1, 1), x.clamp_min(0.5), torch.maximum(x, y), torch.minimum(y, x), torch.fmax(x, y), "
        "x.relu(), F.hardtanh(x), F.relu6(x)",
        f"{_ENDS}, {_ENDS}.flip(0)"),
    "bounds of both zeros": Case(
        195675, "x",
        "return x.clamp(max=-0.0), x.clamp(-0.0, 5.0), x.clamp_min(-0.0), torch.maximum(x, torch.tensor(-0.0)), "
        "x.abs(), -x.abs(), x.sign()",
        _ENDS),
    "functions at their ends": Case(
        189808, "x",
        "return x.exp(), x.expm1(), x.log1p(), x.tanh(), x.sigmoid(), F.softplus(x), F.gelu(x), F.silu(x), "
        "F.mish(x), F.elu(x), F.hardswish(x), F.softsign(x), F.logsigmoid(x)",
        _ENDS),
    "more functions at their ends": Case(
        189808, "x",
        "return x.sin(), x.cos(), x.atan(), x.erf(), x.erfc(), x.log(), x.log2(), x.log10(), x.exp2(), "
        "x.square(), x.sinh(), x.cosh(), x.tan(), F.leaky_relu(x, 0.1), F.tanhshrink(x)",
        _ENDS),
    "powers of ends": Case(
        188680, "x", "return x ** 2, x ** 3, x ** -1, x ** 0, x ** 0.5, x ** 1.0, x.pow(-2), 2 ** x, 0.0 ** x", _ENDS),
    "signs kept by rounding": Case(
        143978, "x", "return x.round(), x.trunc(), x.floor(), x.ceil(), x.fmod(1.0), x.remainder(1.0), x.frac()",
        "torch.tensor([-0.4, 0.4, -0.0, 0.0, -1.0, 2.0])"),
    "signs given to others": Case(
        188680, "x, y",
        "return torch.copysign(x, y), torch.copysign(x, -0.0), x.signbit(), torch.heaviside(x, y), torch.sgn(x)",
        f"{_ENDS}, {_ENDS}.flip(0)", kernels=False),
    "two arguments of an angle": Case(
        186799, "x, y", "return torch.atan2(x, y), torch.hypot(x, y), torch.atan2(y, x)", f"{_ENDS}, {_ENDS}.roll(3)",
        kernels=False),
    "NaN replaced": Case(
        101967, "x", "return x.nan_to_num(), x.nan_to_num(1.0, 2.0, -2.0), x.isnan(), x.isinf(), x.isfinite(), x == x",
        _ENDS),
    "infinities of one sum": Case(
        134650, "x", "return x.sum(1), x.mean(1), x.amax(1), x.amin(1), x.prod(1), x.logsumexp(1), x.softmax(1)",
        "torch.tensor([[float('inf'), 1.0], [-float('inf'), 2.0], [-float('inf')] * 2, [float('nan'), 0.0]])"),
    "norms of zeros without a shift": Case(
        189799, "x",
        "return F.layer_norm(x, (4,)) * 2, F.instance_norm(x), self.n(x).transpose(1, 2), F.group_norm(x, 2)",
        "torch.tensor([[[0.0] * 4, [-0.0] * 4], [[0.0, -0.0, 1.0, -1.0], [-0.0, 0.0, -0.0, -0.0]]])",
        members="self.n = nn.BatchNorm1d(2, affine=False)"),
    "large angles": Case(
        145266, "x", "return x.sin() * 2, x.cos() + 1, x.tan()",
        "torch.tensor([1e5, -1e8, 1e12, 3e18, 1e30, 3e38, 0.5])"),
    "large angles of doubles": Case(
        145266, "x", "return x.sin() * 2, x.cos() + 1",
        "torch.tensor([1e5, -1e8, 1e12, 3e18, 1e30, 1e300, 0.5], dtype=torch.float64)"),
}

test_reported = held("signs", CASES)
