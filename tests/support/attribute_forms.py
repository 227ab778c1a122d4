"""Models whose forward keeps tensors in plain attributes, in the forms that people write."""

from __future__ import annotations

#: By what a forward does with attributes: the model, and how many of its first calls run the original computation.
FORMS = {
    "a membrane": ('''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.mem = torch.zeros(8, 16)
                self.layer = nn.Linear(16, 16)

            def forward(self, x):
                self.mem = 0.9 * self.mem + torch.tanh(self.layer(x))
                return torch.sigmoid(self.mem) * 2 - 1
    ''', 0),
    "a membrane that a first call makes": ('''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.mem = None

            def forward(self, x):
                if self.mem is None:
                    self.mem = torch.zeros_like(x)
                self.mem = 0.9 * self.mem + torch.tanh(x)
                spikes = (self.mem > 0.5).float()
                self.mem = self.mem - spikes * 0.5
                return spikes, torch.sigmoid(self.mem * 2)
    ''', 1),
    "one that has no attribute yet": ('''
        class Model(nn.Module):
            def forward(self, x):
                if not hasattr(self, "mem"):
                    self.mem = x.new_zeros(16)
                self.mem = torch.tanh(self.mem + x.sum(0))
                return torch.sigmoid(x * self.mem) + 1
    ''', 1),
    "written in place": ('''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.mem = torch.zeros(8, 16)

            def forward(self, x):
                self.mem.mul_(0.9).add_(torch.tanh(x))
                return torch.sigmoid(self.mem * 2) + 1
    ''', 0),
    "written in place and returned": ('''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.mem = torch.zeros(8, 16)

            def forward(self, x):
                self.mem.mul_(0.9).add_(torch.tanh(x))
                return self.mem, torch.sigmoid(self.mem * 2) + 1
    ''', 0),
    "a counter": ('''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.calls = torch.tensor(0)

            def forward(self, x):
                self.calls += 1
                return torch.tanh(x) * self.calls + torch.sigmoid(x)
    ''', 0),
    "a counter that is made anew": ('''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.calls = torch.tensor(0.0)

            def forward(self, x):
                self.calls = self.calls + 1
                return torch.tanh(x) * self.calls + torch.sigmoid(x)
    ''', 0),
    "the result, kept": ('''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.last = None

            def forward(self, x):
                self.last = torch.tanh(x) * torch.sigmoid(x)
                return self.last
    ''', 0),
    "the result, detached": ('''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.last = None
                self.scale = nn.Parameter(torch.ones(16))

            def forward(self, x):
                y = torch.tanh(x * self.scale) * torch.sigmoid(x)
                self.last = y.detach()
                return y
    ''', 0),
    "the input, kept": ('''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.given = None

            def forward(self, x):
                self.given = x
                return torch.tanh(x) * torch.sigmoid(x)
    ''', 0),
    "the last input, read": ('''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.before = torch.zeros(8, 16)

            def forward(self, x):
                y = torch.tanh(x - self.before) * torch.sigmoid(x)
                self.before = x
                return y
    ''', 0),
    "two that hand on": ('''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.now = torch.zeros(8, 16)
                self.before = torch.ones(8, 16)

            def forward(self, x):
                self.before = self.now
                self.now = torch.tanh(x + self.now) * torch.sigmoid(self.before)
                return self.now - self.before
    ''', 0),
    "a view": ('''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.state = torch.zeros(16, 8)

            def forward(self, x):
                y = torch.tanh(x + self.state.t()) * torch.sigmoid(x)
                self.state = y.t()
                return y
    ''', 1),
    "a window of the last rows": ('''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.rows = torch.zeros(12, 16)

            def forward(self, x):
                self.rows = torch.cat([self.rows, torch.tanh(x)])[-12:]
                return torch.sigmoid(self.rows) * 2 - 1
    ''', 0),
    "attention weights of a submodule": ('''
        class Attention(nn.Module):
            def __init__(self):
                super().__init__()
                self.query = nn.Linear(16, 16)
                self.weights = None

            def forward(self, x):
                weights = torch.softmax(self.query(x) @ x.t() * 0.25, dim=-1)
                self.weights = weights
                return weights @ x

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.blocks = nn.ModuleList([Attention(), Attention()])
                self.norm = nn.LayerNorm(16)

            def forward(self, x):
                for block in self.blocks:
                    x = x + torch.tanh(block(x)) * 0.5
                return self.norm(x) * torch.sigmoid(x)
    ''', 0),
    "other type in the constructor": ('''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.mem = torch.zeros(1, dtype=torch.float64)

            def forward(self, x):
                self.mem = (0.9 * self.mem.to(x.dtype) + torch.tanh(x)) * torch.sigmoid(x)
                return self.mem * 2 - 1
    ''', 1),
    "under no_grad": ('''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.mean = torch.zeros(16)

            def forward(self, x):
                y = torch.tanh(x - self.mean) * torch.sigmoid(x)
                with torch.no_grad():
                    self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
                return y
    ''', 0),
    "a cell that a loop calls": ('''
        class Cell(nn.Module):
            def __init__(self):
                super().__init__()
                self.mem = None
                self.decay = nn.Parameter(torch.tensor(0.9))

            def forward(self, x):
                if self.mem is None:
                    self.mem = torch.zeros_like(x)
                self.mem = self.decay.clamp(0, 1) * self.mem + x
                spikes = (self.mem > 1).float()
                self.mem = self.mem - spikes
                return spikes

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(4, 16)
                self.cell = Cell()

            def forward(self, x):
                x = x.view(8, 4, 4)
                return torch.stack([self.cell(torch.tanh(self.layer(x[:, t])) * 2) for t in range(4)]).mean(0)
    ''', 1),
    "one cell in two places": ('''
        class Cell(nn.Module):
            def __init__(self):
                super().__init__()
                self.mem = torch.zeros(8, 16)

            def forward(self, x):
                self.mem = 0.9 * self.mem + torch.tanh(x)
                return torch.sigmoid(self.mem)

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                cell = Cell()
                self.cells = nn.ModuleList([cell, cell])

            def forward(self, x):
                for cell in self.cells:
                    x = cell(x) * 2
                return x
    ''', 0),
    "two that begin as one": ('''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.first = self.second = torch.zeros(8, 16)

            def forward(self, x):
                self.first = torch.tanh(x) + self.first * 0.5
                self.second = torch.sigmoid(x) + self.second * 0.5
                return self.first * self.second
    ''', 0),
    "parts are written": ('''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.cache = torch.zeros(4, 8, 16)

            def forward(self, x):
                self.cache[1] = torch.tanh(x)
                self.cache[2:] = self.cache[1:3].clone() * 0.5
                return torch.sigmoid(self.cache).sum(0) * 2 + torch.tanh(x)
    ''', 0),
    "equal values for once": ('''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.shift = torch.zeros(16)
                self.register_buffer("mean", torch.zeros(16))

            def forward(self, x):
                self.shift = self.mean * 1.0
                self.mean.mul_(0.5).add_(x.detach().mean(0))
                self.last = self.mean
                return torch.sigmoid(x + self.shift) * 2
    ''', 0),
    "the calls of one mode": ('''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.shift = torch.zeros(8, 16)

            def forward(self, x):
                y = torch.tanh(x) * torch.sigmoid(x) + self.shift
                if not self.training:
                    self.shift = y * 0.5
                return y * 2
    ''', 0),
    "a property": ('''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self._state = torch.zeros(8, 16)

            @property
            def state(self):
                return self._state

            @state.setter
            def state(self, value):
                self._state = value * 0.5

            def forward(self, x):
                self.state = torch.tanh(x) + self.state
                return torch.sigmoid(self.state) * 2
    ''', 0),
    "a tuple": ('''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.state = None

            def forward(self, x):
                hidden, cell = self.state if self.state is not None else (torch.zeros_like(x), torch.zeros_like(x))
                cell = torch.sigmoid(x) * cell + torch.tanh(x + hidden)
                hidden = torch.tanh(cell) * torch.sigmoid(x)
                self.state = (hidden, cell)
                return hidden
    ''', 1),
    "a list that is changed": ('''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.mems = [torch.zeros(8, 16), torch.zeros(8, 16)]

            def forward(self, x):
                for i in range(2):
                    self.mems[i] = 0.9 * self.mems[i] + torch.tanh(x)
                    x = torch.sigmoid(self.mems[i]) * 2 - 1
                return x
    ''', 0),
    "a list that is made anew": ('''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.maps = []

            def forward(self, x):
                self.maps = []
                for _ in range(2):
                    x = torch.tanh(x) * torch.sigmoid(x) + 1
                    self.maps.append(x)
                return x * torch.sigmoid(x)
    ''', 0),
    "a dictionary": ('''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.kept = {}

            def forward(self, x):
                old = self.kept.get("x", 0)
                self.kept["x"] = torch.tanh(x) + old * 0.5
                return self.kept["x"] * torch.sigmoid(x)
    ''', 1),
}
INPUTS = '''
        def get_inputs():
            return [torch.randn(8, 16)]
'''
