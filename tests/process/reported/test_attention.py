"""Attention, and the paths that PyTorch takes for it in evaluation mode."""

from __future__ import annotations

from reported.case import Case, held

_LAYER = "nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)"

CASES = {
    "an encoder layer": Case(158012, "x", "self.l(x).tanh()", "torch.randn(2, 5, 8)", members=f"self.l = {_LAYER}"),
    "an encoder layer with padding": Case(
        86120, "x, m", "self.l(x, src_key_padding_mask=m) * 2",
        "torch.randn(3, 5, 8), torch.tensor([[False] * 5, [False] * 3 + [True] * 2, [False, True, False, False, "
        "True]])",
        members=f"self.l = {_LAYER}"),
    "an encoder whose last places are padding": Case(
        97111, "x, m", "self.l(x, src_key_padding_mask=m).sigmoid()",
        "torch.randn(2, 6, 8), torch.tensor([[False] * 3 + [True] * 3, [False] * 2 + [True] * 4])",
        members=f"self.l = nn.TransformerEncoder({_LAYER}, 2)", kernels=False),
    "rows without a key": Case(
        190486, "x, m", "self.l(x, src_mask=torch.ones(6, 6).tril().triu(-1) == 0, src_key_padding_mask=m).relu()",
        "torch.randn(2, 6, 8), torch.tensor([[False] * 2 + [True] * 4, [False] * 6])", members=f"self.l = {_LAYER}",
        kernels=False),
    "a bias of attention": Case(
        118628, "x, b", "self.l(x, src_mask=b) * 2", "torch.randn(2, 5, 8), torch.randn(5, 5)",
        members=f"self.l = {_LAYER}", kernels=False),
    "several heads with weights": Case(
        160064, "x, m", "y, w = self.a(x, x, x, key_padding_mask=m)\nreturn y.relu(), w * 2",
        "torch.randn(2, 4, 6), torch.tensor([[False] * 4, [False, False, True, True]])",
        members="self.a = nn.MultiheadAttention(6, 2, batch_first=True)"),
    "several heads without weights": Case(
        107084, "x, k", "self.a(x, k, k, need_weights=False)[0].exp()", "torch.randn(2, 4, 6), torch.randn(2, 3, 6)",
        members="self.a = nn.MultiheadAttention(6, 3, batch_first=True)"),
    "heads that are masked": Case(
        160064, "x, m", "self.a(x, x, x, attn_mask=m)[0] + 1",
        "torch.randn(1, 5, 3), torch.tensor([False, False, True]).view(-1, 1, 1).expand(-1, 5, 5)",
        members="self.a = nn.MultiheadAttention(3, 3, batch_first=True)"),
    "products with a mask of rows": Case(
        103749, "q, k, m", "F.scaled_dot_product_attention(q, k, k, attn_mask=m) * 2",
        "torch.randn(2, 4, 6), torch.randn(2, 3, 6), torch.tensor([[True, False, True], [False] * 3, [True] * 3, "
        "[False, False, True]])",
        kernels=False),
    "NaN behind a mask": Case(
        101967, "q, m", "F.scaled_dot_product_attention(q, q, q, attn_mask=m)",
        "torch.tensor([[[0.0, 1.0], [float('nan'), 2.0]]]), torch.tensor([[True, False], [True, False]])",
        kernels=False),
    "causal products": Case(
        131060, "q, k, v", "F.scaled_dot_product_attention(q, k, v, is_causal=True).tanh()",
        "torch.randn(2, 2, 5, 4), torch.randn(2, 2, 5, 4), torch.randn(2, 2, 5, 4)"),
    "attention of other types": Case(
        150993, "q, k, v", "w = torch.softmax((q @ k.transpose(-2, -1)).float(), -1).to(q.dtype)\nreturn w @ v",
        "torch.randn(2, 4, 6).half(), torch.randn(2, 4, 6).half(), torch.randn(2, 4, 6).half()",
        also=("torch.randn(2, 4, 6).half(), torch.randn(2, 4, 6).half(), torch.randn(2, 4, 6)",)),
    "attention that is a sum": Case(
        179575, "x",
        "q, k, v = (torch.einsum('bsd,dhe->bhse', x, w) for w in (self.q, self.k, self.v))\n"
        "return torch.einsum('bhst,bhte->bshe', torch.einsum('bhse,bhte->bhst', q, k).div(2).softmax(-1), v)",
        "torch.randn(2, 5, 8)",
        members="self.q, self.k, self.v = (nn.Parameter(torch.randn(8, 2, 4)) for _ in range(3))"),
    "a decoder layer": Case(
        94428, "x, m", "self.l(x, m) * 2", "torch.randn(2, 4, 8), torch.randn(2, 5, 8)",
        members="self.l = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)"),
    "a norm first": Case(
        190486, "x", "self.l(x) + 1", "torch.randn(2, 5, 8)",
        members="self.l = nn.TransformerEncoderLayer(8, 2, 16, activation='gelu', norm_first=True, batch_first=True)"),
}

test_reported = held("attention", CASES)
