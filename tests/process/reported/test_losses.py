"""Losses, their options and what they refuse."""

from __future__ import annotations

from reported.case import Case, held

CASES = {
    "classes ignored, weighted and smoothed": Case(
        69339, "x, t", "F.cross_entropy(x, t, weight=self.w, ignore_index=1, label_smoothing=0.1)",
        "torch.randn(4, 3), torch.tensor([0, 1, 2, 1])",
        members="self.register_buffer('w', torch.tensor([0.2, 0.3, 1.0]))"),
    "all classes ignored": Case(
        20406, "x, t",
        "return F.cross_entropy(x, t, ignore_index=-1), F.nll_loss(x, t, ignore_index=-1, reduction='sum')",
        "torch.randn(3, 4), torch.full((3,), -1)"),
    "a class that is not there": Case(
        135546, "x, t", "F.cross_entropy(x.tanh(), t)", "torch.randn(3, 4), torch.tensor([0, 3, 1])",
        also=("torch.randn(3, 4), torch.tensor([0, 4, 1])", "torch.randn(3, 4), torch.tensor([0, -1, 1])")),
    "ignored places of images": Case(
        72056, "x, t", "F.cross_entropy(x, t, ignore_index=2, reduction='none') * 2",
        "torch.randn(2, 3, 2, 2), torch.randint(3, (2, 2, 2))"),
    "probabilities as classes": Case(
        98571, "x, t", "F.cross_entropy(x, t.softmax(1), label_smoothing=0.2)", "torch.randn(4, 5), torch.randn(4, 5)"),
    "targets that are no probabilities": Case(
        193757, "x, t", "F.binary_cross_entropy(x.sigmoid(), t)", "torch.randn(3, 4), torch.rand(3, 4)",
        also=("torch.randn(3, 4), torch.full((3, 4), 1.5)",)),
    "inputs that are no probabilities": Case(
        193757, "x, t", "F.binary_cross_entropy(x, t) * 2", "torch.rand(3, 4), torch.rand(3, 4)",
        also=("torch.rand(3, 4) + 1, torch.rand(3, 4)",)),
    "logits with weights": Case(
        98571, "x, t", "F.binary_cross_entropy_with_logits(x, t, weight=t.detach() + 1, pos_weight=self.p)",
        "torch.randn(3, 4) * 30, torch.rand(3, 4)",
        members="self.register_buffer('p', torch.tensor([1.0, 2.0, 0.5, 3.0]))"),
    "smooth absolute error of beta zero": Case(
        194501, "x, y",
        "return F.smooth_l1_loss(x, y, beta=0.0), F.smooth_l1_loss(x, y, beta=1e-9), F.huber_loss(x, y, delta=0.5)",
        "torch.randn(8), torch.randn(8)"),
    "divergence with zeros": Case(
        106118, "x, t",
        "return F.kl_div(x.log_softmax(1), t, reduction='batchmean'), F.kl_div(x.log_softmax(1), "
        "t.clamp_min(1e-3).log(), log_target=True, reduction='sum')",
        "torch.randn(2, 3), torch.tensor([[0.0, 0.5, 0.5], [1.0, 0.0, 0.0]])"),
    "a loss beside its detached self": Case(
        100348, "x", "loss = x.square().mean()\nreturn {'loss': loss, 'shown': loss.detach()}", "torch.randn(4, 4)"),
    "poisson with large counts": Case(
        193757, "x, t", "F.poisson_nll_loss(x, t, full=True)",
        "torch.randn(6), torch.tensor([0.0, 1.0, 2.0, 20.0, 5.0, 1.5])"),
    "gaussian likelihood": Case(
        193757, "x, t, v", "F.gaussian_nll_loss(x, t, v)", "torch.randn(6), torch.randn(6), torch.rand(6) + 0.1",
        also=("torch.randn(6), torch.randn(6), -torch.rand(6)",)),
    "triplets and margins": Case(
        185509, "a, p, n",
        "return F.triplet_margin_loss(a, p, n), F.margin_ranking_loss(a[:, 0], p[:, 0], n[:, 0].sign()), "
        "F.hinge_embedding_loss(a, n.sign())",
        "torch.randn(4, 5), torch.randn(4, 5), torch.randn(4, 5)"),
    "a loss kept as it was": Case(
        185509, "x, y",
        "return F.mse_loss(x, y, reduction='none'), F.l1_loss(x, y), F.soft_margin_loss(x, y.detach().sign())",
        "torch.randn(3, 4), torch.randn(3, 4)"),
    "connectionist alignments": Case(
        20406, "x, t", "F.ctc_loss(x.log_softmax(2), t, (6, 5), (3, 2))",
        "torch.randn(6, 2, 4), torch.randint(1, 4, (2, 3))", kernels=False),
}

test_reported = held("losses", CASES)
