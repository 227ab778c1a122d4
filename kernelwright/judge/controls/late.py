"""Known asynchronous: returns first and computes afterwards, on a thread or on a stream that nobody waits for."""

import threading
import time

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.stream = None

    def forward(self, x):
        result = torch.empty_like(x)
        if x.is_cuda:
            if self.stream is None:
                self.stream = torch.cuda.Stream()
            with torch.cuda.stream(self.stream):
                torch.cuda._sleep(5_000_000)
                self.compute(x, result)
        else:
            threading.Thread(target=self.later, args=(x, result)).start()
        return result

    def compute(self, x, result):
        result.copy_(torch.relu_(self.linear(x)).add_(x, alpha=0.5))

    def later(self, x, result):
        time.sleep(0.02)
        with torch.no_grad():
            self.compute(x, result)
