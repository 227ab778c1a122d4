"""Changes in place, views, and whose memory an output is."""

from __future__ import annotations

from reported.case import Case, held

CASES = {
    "read before the change": Case(
        94777, "x", "y = torch.log(x)\nx.log_()\nreturn y", "torch.rand(3, 4) + 0.5", kernels=False),
    "view of other type before the change": Case(
        198101, "x", "y = x.view(torch.int32) * 2\ny.sub_(-4)\nx[:, 2:5] = 2\nreturn y.view(torch.int64)",
        "torch.arange(-12, 12).reshape(4, 6)", kernels=False),
    "copy before the source changes": Case(
        198131, "dst, src", "dst[0:, :] = src[0:, :]\nsrc.add_(1)\nreturn src * 1",
        "torch.zeros(3, 4), torch.rand(3, 4)", kernels=False),
    "dropout that is the input": Case(
        195422, "x", "y = F.dropout(x, 0.5, False)\ny += y\nreturn y.tanh()", "torch.randn(2, 3)", kernels=False),
    "put and then read elsewhere": Case(
        198270, "x", "x.index_put_((torch.arange(x.size(0)),), x * 2.0)\nx.add_(x.flip(0))\nreturn x.sigmoid()",
        "torch.rand(4, 8)", kernels=False),
    "many at once from themselves": Case(
        198033, "x", "torch._foreach_add_([x], [x.flip(0)])\nreturn x.exp()", "torch.randn(8, 8)", kernels=False),
    "one memory under many elements": Case(
        152425, "x", "a = x.clone().expand(5)\na[-1] = 3\nreturn a * 2", "torch.tensor(1.5)", kernels=False),
    "copy at the end": Case(
        94693, "x, y", "z = (x[1:] * 2).tanh()\ny.copy_(torch.cat([z, z[:1]]) + y)\nreturn z",
        "torch.randn(5, 4), torch.randn(5, 4)", kernels=False),
    "one row added to itself twice": Case(
        174074, "x", "x[[0, 0]] += x[[0, 0]]\nreturn x.relu()", "torch.randn(2, 5)", kernels=False),
    "added into an expanded tensor": Case(
        183986, "x, i", "torch.zeros(1, 8).expand(4, 8).index_add(0, i, x).square()",
        "torch.rand(3, 8), torch.tensor([0, 2, 0])", kernels=False),
    "stored through a flat view": Case(
        184543, "values, store, i", "store.view(-1)[i] = values\nreturn store + 1",
        "torch.rand(6), torch.zeros(4, 5), torch.tensor([3, 1, 19, 7, 0, 4])", kernels=False),
    "the input itself": Case(102970, "x", "return x, x.sin() + 1", "torch.randn(3, 4)"),
    "views of one result": Case(198095, "x", "y = x * 2 + 1\nreturn y[0], y.view(-1), y", "torch.randn(3, 6)"),
    "one result twice": Case(191844, "x", "y = x.exp() + 1\nreturn y, y, y.view(y.shape)", "torch.randn(2, 7)"),
    "two columns of one matrix": Case(
        106457, "x, y", "x.add_(1)\ny.mul_(2)\nreturn x * y", "*torch.randn(2, 4).unbind(1)[:2]", kernels=False),
    "the same tensor given twice": Case(
        190938, "x, y", "return (x * y).sum(-1), (x - y).exp()", "*[torch.randn(3, 5)] * 2"),
    "slice scattered": Case(
        180164, "x, y", "torch.slice_scatter(x, y, dim=1, start=0, end=6).tanh().sum(1)",
        "torch.randn(4, 13, 3), torch.randn(4, 6, 3)"),
    "diagonal scattered": Case(
        182012, "x, y", "torch.diagonal_scatter(x.tanh(), y).sum()", "torch.randn(6, 6), torch.randn(6)"),
    "column added to": Case(
        136662, "x", "y = torch.zeros_like(x)\ny[:, 0] += x[:, 2].abs()\nreturn y.exp()", "torch.randn(2, 3)"),
    "alias by a full slice": Case(
        94773, "x", "z = x[:]\ny = z * 3\nz.zero_()\nreturn y + 1, x + 2", "torch.randn(2, 3)", kernels=False),
    "relu in place of an input": Case(
        158643, "x", "return F.relu(x * 2, inplace=True) + 1, F.relu_(x)", "torch.randn(3, 4)", kernels=False),
    "written into a given tensor": Case(
        126474, "x, y", "torch.addcmul(x[:-1], y, y, out=y)\nreturn x + 1, y * 2", "torch.randn(5), torch.randn(4)",
        kernels=False),
}

test_reported = held("changes", CASES)
