"""Productions of one line each, so that every operator and every spelling of it is drawn."""

from __future__ import annotations

from kernelwright.fuzz.draw import Draw, Refused, Value
from kernelwright.fuzz.productions import production

#: (least and most axes, magnitude of the result, one text per line). ``{x}``: the operand; ``{y}``: another of its
#: shape; ``{unit}``: numbers in [0, 1) of its shape; ``{whole}``: whole numbers; ``{sign}``: -1 or 1 for each of its
#: entries along axis 0; ``{vector}``: a parameter as long as its last axis; ``{matrix}``: one that it can be
#: multiplied with; ``{axis}``: an axis; ``{first}``: the length of its first.
_LINES: tuple[tuple[tuple[int, int], float, str], ...] = (
    ((0, 5), 4.0, """
        torch.absolute({x})
        torch.negative({x})
        {x}.positive()
        +{x}
        torch.log10({x}.abs() + 0.5)
        torch.heaviside({x}, {y})
        F.softsign({x})
        torch.special.erfc({x})
        torch.sgn({x})
        torch.asinh({x})
        torch.tan(torch.tanh({x}))
        torch.acos(torch.tanh({x}))
        torch.logit({unit}, 0.1)
        torch.sinc({x})
        torch.fmod({x}, 0.7)
        torch.copysign({x}, {y})
        torch.fmax({x}, {y})
        torch.fmin({x}, {y})
        torch.fmod({x}, {y}.abs() + 0.5)
        torch.remainder({x}, {y}.abs() + 0.5)
        torch.div({x}, {y}.abs() + 0.5, rounding_mode='floor')
        torch.div({x}, 0.7, rounding_mode='trunc')
        torch.asin(torch.tanh({x}))
        torch.cosh(torch.tanh({x}))
        torch.acosh({x}.abs() + 1)
        torch.atanh(torch.tanh({x}) * 0.9)
        torch.xlogy({unit}, {y}.abs() + 0.5)
        torch.where(torch.isinf({x}) | torch.signbit({x}), {y}, {x})
        torch.rad2deg(torch.tanh({x}))
        torch.logaddexp2({x}, {y})
     """),
    ((0, 5), 8.0, """
        torch.pow(2.0, {x}.tanh())
        torch.pow(0.5, {x}.clamp(-2, 2))
        torch.true_divide({x}, 3.0)
        torch.divide({x}, {y}.abs() + 0.5)
        torch.multiply({x}, {y})
        torch.multiply({x}, 1.5)
        torch.subtract({x}, {y})
        torch.sub({x}, 2, alpha=3)
        torch.rsub({x}, {y})
        torch.max({x}, {y})
        torch.min({x}, {y})
        torch.clamp({x}, {y} - 1, {y} + 1)
        torch.clamp({x}, min={y})
        torch.lerp({x}, {y}, 0.3)
        torch.lerp({x}, {y}, {unit})
        torch.addcmul({x}, {y}, {unit}, value=-0.5)
        torch.addcdiv({x}, {y}, {unit} + 0.5)
        torch.where({x} > {y}, {x}, {y})
        torch.where({x} < 0, 1.0, 2.0)
        torch.where({y} > 0, 0.25, {x})
        {x}.masked_fill({y} > 0, torch.tensor(2.0))
        {x}.type_as({y}) * 2
        {x}.float() + 1
        {x}.double() * 0.5
        torch.Tensor.float({x}).sum()
     """),
    ((0, 5), 1.0, """
        ({x} > 0) ^ ({y} > 0)
        ({x} > 0) | ({y} < 1)
        ~({x} > 0) & ({y} > 0)
        torch.logical_xor({x} > 0, {y} > 0)
        torch.logical_not({x} > 0) * {y}
        torch.logical_or({x}, {y} > 2)
        torch.logical_and({x} > 0, {y} > 0) * {x}
        torch.bitwise_and({x} > 0, {y} > 0)
        torch.bitwise_or({x} > 0, {y} > 0)
        torch.bitwise_not({x} > 0)
        torch.bitwise_xor({x} > 0, {y} > 0)
        torch.bitwise_and({whole}, 3)
        {whole} | {whole}
        {whole} ^ 5
        ~{whole}
        {whole} // 2 + {whole} % 3
        {whole} // ({whole} + 1) - {whole} % ({whole} + 2)
        torch.div({whole}, {whole} + 1, rounding_mode='trunc')
        torch.fmod({whole}, {whole} + 2)
        {whole}.clamp(1, 3) * {x}
        {whole}.sum()
        {whole}.float().mean() + {x}
        {x} != {y}
        {x} <= {y}
        {x} == 0.5
        {x} >= -0.1
        torch.ne({x}.round(), 1)
        torch.lt({x}, 0.3) * {y}
        torch.isfinite({x}) * {x}
     """),
    ((1, 5), 3.0, """
        torch.swapaxes({x}, 0, {axis})
        torch.swapdims({x}, {axis}, -1)
        torch.moveaxis({x}, 0, {axis})
        torch.movedim({x}, (0,), (-1,))
        torch.ravel({x})
        {x}.reshape_as({y}.flatten())
        {x}.view_as({y}) + 1
        torch.squeeze({x}, (0, {axis}))
        {x}.squeeze().unsqueeze(-1)
        torch.concat([{x}, {y}], {axis})
        torch.broadcast_tensors({x}, {x}.sum())[1]
        torch.diff({x}, dim={axis})
        torch.fliplr({x}.unsqueeze(0))
        torch.roll({x}, 2)
        torch.tril({x}.unsqueeze(0) > 0)
        torch.rot90({x}.unsqueeze(0))
        torch.atleast_2d({x})
        {x}.new_zeros(2).sum() + {x}
        {x}.sum_to_size(1)
        {x}.clone().detach_()
     """),
    ((1, 5), 4.0, """
        torch.std({x})
        torch.var({x})
        {x}.std(unbiased=False)
        torch.linalg.norm({x})
        torch.norm({x}, 1)
        torch.norm({x}, p=3, dim={axis})
        torch.linalg.vector_norm({x}, 1, dim={axis})
        torch.cummin({x}, {axis})[0]
        torch.cummax({x}, {axis})[0]
        torch.cumprod({x}.tanh(), {axis})
        torch.logcumsumexp({x}, {axis})
        torch.cumsum({x}, {axis})
        torch.linalg.vector_norm({x}, float('inf'), {axis})
        torch.nansum({x}, {axis})
        torch.var_mean({x}, {axis}, correction=0)[1]
        torch.aminmax({x}, dim={axis})[0]
        torch.cummax({x}, {axis})[1]
        torch.sum({x}, {axis}, dtype=torch.float64)
        torch.mean({x}, {axis}, dtype=torch.float64)
        torch.amax({x}, ())
        torch.median({x})
        torch.count_nonzero({x} > 0, {axis})
        torch.amin({x}, {axis})
        torch.min({x}, {axis})[0]
        torch.norm({x}, dim=({axis},), keepdim=True)
        torch.argmin({x}, {axis}, True)
        F.softmax({x}, {axis}, dtype=torch.float64)
     """),
    ((1, 4), 8.0, """
        F.mse_loss({x}, {y})
        F.l1_loss({x}, {y})
        F.smooth_l1_loss({x}, {y}, beta=0.5)
        F.huber_loss({x}, {y})
        F.mse_loss({x}, {y}, reduction='none')
        F.l1_loss({x}, {y}, reduction='sum')
        F.soft_margin_loss({x}, {sign})
        F.smooth_l1_loss({x}, {y}, reduction='none')
        F.huber_loss({x}, {y}, 'sum', 0.3)
        F.poisson_nll_loss({x}.tanh(), {unit})
        F.poisson_nll_loss({unit}, {y}.abs(), log_input=False)
        F.kl_div(F.log_softmax({x}, -1), F.softmax({y}, -1), reduction='batchmean')
        F.kl_div(F.log_softmax({x}, -1), F.log_softmax({y}, -1), reduction='sum', log_target=True)
        F.binary_cross_entropy_with_logits({x}, {unit})
        F.binary_cross_entropy(torch.sigmoid({x}), {unit})
        F.hinge_embedding_loss({x}, {sign})
        F.margin_ranking_loss({x}, {y}, {sign}, margin=0.2)
        F.cosine_similarity({x}, {y}, dim={axis})
        torch.mean(torch.clamp(1 - {x} * {sign}, min=0))
     """),
    ((2, 2), 8.0, """
        F.triplet_margin_loss({x}, {y}, {unit})
        F.cosine_embedding_loss({x}, {y}, {sign}.select(1, 0))
        F.pairwise_distance({x}, {y})
        torch.mv({x}, {vector})
        torch.addmv({x}.sum(1), {x}, {vector})
        torch.addmm({x}, {x}, {x}.t() @ {x})
        torch.addmm({vector}.sum(), {x}, {matrix})
        torch.mm({x}, {matrix})
        torch.inner({x}, {vector})
        {x}.T + 1
        torch.cdist({x}, {y})
        torch.linalg.multi_dot([{x}, {matrix}])
        F.multilabel_soft_margin_loss({x}, {unit})
        torch.t({x}) * 2
        torch.einsum('ij,ij->i', {x}, {y})
        torch.einsum('ij,kj->ik', {x}, {y})
        {x}.diagonal().sum()
     """),
    ((1, 1), 8.0, """
        torch.dot({x}, {y})
        torch.vdot({x}, {y})
        torch.outer({x}, {y})
        torch.ger({x}, {y})
        torch.inner({x}, {y}) + 1
        {x} @ {y}
        torch.einsum('i,j->ij', {x}, {y})
     """),
    ((3, 3), 8.0, """
        torch.baddbmm({y}, {x}, {x}.mT @ {y})
        torch.bmm({x}, {matrix}.expand({first}, -1, -1))
        torch.baddbmm({y}, {x}, {x}.mT @ {y}, beta=0.5, alpha=2)
        F.conv1d({x}, {x}[:, :, :1])
        torch.bmm({x}.mT, {y})
        F.adaptive_max_pool1d({x}, 2)
        F.interpolate({x}, size=5)
        F.feature_alpha_dropout({x}, 0.3, self.training)
        torch.einsum('bij,bkj->bik', {x}, {y})
        F.dropout1d({x}, 0.4, self.training)
     """),
    ((4, 4), 4.0, """
        F.interpolate({x}, scale_factor=(2, 2))
        F.pixel_unshuffle(F.pad({x}, (0, {x}.shape[3], 0, {x}.shape[2])), 2)
        torch.channel_shuffle({x}, {x}.shape[1])
        F.adaptive_max_pool2d({x}, (2, 1))
        F.dropout2d({x}, 0.4, self.training)
        F.interpolate({x}, size=(3, 4), mode='bilinear', align_corners=True)
        F.avg_pool2d({x}, 1, 2)
        F.alpha_dropout({x}, 0.2, self.training)
     """),
    ((5, 5), 4.0, """
        F.interpolate({x}, scale_factor=(1, 2, 2))
        F.adaptive_max_pool3d({x}, 1)
        F.adaptive_avg_pool3d({x}, 2)
        F.dropout3d({x}, 0.4, self.training)
     """),
)


def _register(text: str, ranks: tuple[int, int], bits: float) -> None:
    @production(f"line: {text}", 0.06, ranks)
    def _add(d: Draw, x: Value) -> None:
        fields: dict[str, object] = {"x": x, "axis": d.number(0, x.rank - 1) if x.rank else 0}
        if "{axis}" in text and not x.rank:
            raise Refused("no axis")
        if "{y}" in text:
            fields["y"] = d.input(x.shape)
        if "{unit}" in text:
            sizes = ", ".join(map(str, x.shape)) or "()"
            fields["unit"] = d.input(x.shape, f"torch.rand({sizes}{d.type_text})", bits=0.0)
        if "{whole}" in text:
            fields["whole"] = d.indices(x.shape or (2,), 6)
        if "{sign}" in text:
            shape = f"({', '.join(map(str, (x.shape[0], *(1,) * (x.rank - 1))))},)"
            fields["sign"] = d.input((x.shape[0],), f"torch.randint(0, 2, {shape}).to({d.dtype}) * 2 - 1", bits=0.0)
        if "{vector}" in text:
            fields["vector"] = d.parameter(x.shape[-1:])
        if "{matrix}" in text:
            fields["matrix"] = d.parameter((x.shape[-1], 3))
        if "{first}" in text:
            fields["first"] = x.shape[0]
        operand = d.tamed(x, 8.0)
        d.emit(text.format(**{**fields, "x": operand}), bits=bits)


for _ranks, _bits, _texts in _LINES:
    for _text in _texts.strip().splitlines():
        _register(_text.strip(), _ranks, _bits)


def _classes(name: str, template: str) -> None:
    @production(name, 0.5, (2, 4))
    def _add(d: Draw, x: Value) -> None:
        """A loss over class numbers, the classes being axis 1."""
        reduction = d.one_of(["", "", ", reduction='sum'", ", reduction='none'"])
        target = d.indices((x.shape[0], *x.shape[2:]), x.shape[1])
        more = d.one_of(["", "", f", weight={d.buffer([x.shape[1]])}", ", ignore_index=1"])
        smooth = d.one_of(["", ", label_smoothing=0.1"]) if "cross" in template else ""
        d.emit(f"{template.format(x=x)}, {target}{reduction}{more}{smooth})", bits=x.bits + 4)


_classes("cross entropy", "F.cross_entropy({x}")
_classes("likelihood", "F.nll_loss(F.log_softmax({x}, 1)")
