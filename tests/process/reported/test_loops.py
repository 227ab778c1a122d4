"""Loops, recurrences and states that are carried along."""

from __future__ import annotations

from reported.case import Case, held

CASES = {
    "an unrolled loop": Case(
        96064, "x", "for i in range(6):\n    x = x + torch.sin(x) * (i - 2)\nreturn x", "torch.randn(3, 4)"),
    "a state read twice": Case(
        188074, "x",
        "v = torch.zeros_like(x[:, 0])\nn = v\nfor t in range(x.shape[1]):\n    v = v * 0.9 + x[:, t]\n"
        "    s = (v > 1.0).float()\n    v = v - s\n    n = n + s\nreturn v, n",
        "torch.rand(5, 7)"),
    "a state that decays": Case(
        188074, "x",
        "v = x[:, 0]\nfor t in range(1, x.shape[1]):\n    v = torch.where(v > 0.5, v * 0.5, v + x[:, t])\nreturn v",
        "torch.rand(4, 6)"),
    "a long short-term memory": Case(
        158007, "x", "y, (h, c) = self.r(x)\nreturn y.relu(), h, c * 2", "torch.randn(3, 2, 4)",
        members="self.r = nn.LSTM(4, 5)", kernels=False),
    "both directions": Case(
        17656, "x", "self.r(x)[0].tanh()", "torch.randn(2, 4, 3)",
        members="self.r = nn.GRU(3, 4, 2, batch_first=True, bidirectional=True)"),
    "layers with dropout between": Case(
        190056, "x", "self.r(x)[0] * 2", "torch.randn(4, 2, 3)", members="self.r = nn.LSTM(3, 3, 2, dropout=0.5)",
        kernels=False),
    "a recurrent layer of one image": Case(
        116858, "x, h", "y, g = self.r(x, h)\nreturn y.exp(), g", "torch.randn(4, 3), torch.randn(1, 3)",
        members="self.r = nn.RNN(3, 3, nonlinearity='relu')"),
    "a cell called often": Case(
        181690, "x", "h = torch.zeros(2, 4)\nfor t in range(x.shape[0]):\n    h = self.c(x[t], h)\nreturn h.tanh()",
        "torch.randn(4, 2, 3)", members="self.c = nn.GRUCell(3, 4)"),
    "a cell with two states": Case(
        120626, "x",
        "h = c = x.new_zeros(2, 4)\nys = []\nfor t in x.unbind(0):\n    h, c = self.c(t, (h, c))\n    ys.append(h)\n"
        "return torch.stack(ys), c",
        "torch.randn(3, 2, 3)", members="self.c = nn.LSTMCell(3, 4)", kernels=False),
    "steps of a solver": Case(
        96064, "x", "y = x\nfor _ in range(60):\n    y = y - 0.05 * (torch.tanh(y) - x)\nreturn y",
        "torch.randn(4, 8)"),
    "a list that grows": Case(
        96064, "x",
        "ys = [x]\nwhile len(ys) < 5:\n    ys.append((ys[-1] * 2).tanh() + ys[0])\nreturn torch.stack(ys, 1)",
        "torch.randn(3, 4)"),
    "a loop over parameters": Case(
        139476, "x", "for w, b in zip(self.w, self.b):\n    x = torch.relu(x @ w + b)\nreturn x", "torch.randn(3, 4)",
        members="self.w = nn.ParameterList(torch.randn(4, 4) for _ in range(3))\n"
                "self.b = nn.ParameterList(torch.randn(4) for _ in range(3))"),
}

test_reported = held("loops", CASES)
