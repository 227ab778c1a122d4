"""Two of PyTorch's encoder layers under a causal mask made on the way and a padding mask that is given."""

import torch
from torch import nn

sentences = 16
tokens = 128
features = 256
TINY = {"sentences": 2, "tokens": 5, "features": 16}


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        layer = nn.TransformerEncoderLayer(features, 4, 2 * features, dropout=0.0, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(features))

    def forward(self, x, lengths):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device).isinf()
        padding = torch.arange(x.shape[1], device=x.device) >= lengths[:, None]
        return self.encoder(x, mask=mask, src_key_padding_mask=padding)


def get_inputs():
    return [torch.randn(sentences, tokens, features), torch.randint(1, tokens + 1, (sentences,))]


def get_init_inputs():
    return [features]
