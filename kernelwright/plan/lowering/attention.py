"""Attention as one kernel: PyTorch's own operator, and what models write out of products, pointwise operators, softmax.

What is looked for is a product of which one operand is made of another product's results, element by element and
perhaps by a softmax: ``softmax(q k^T / c + mask) v``, ``relu(q k^T) v``, ``(q k^T * decays) v``. The results of the
first product are many, and are nowhere stored. Views and copies below the operands are index arithmetic, as are those
above the result; pointwise operators that nobody else reads are computed where operands are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kernelwright.ir.node import Node, constant, make, rebuild, walk
from kernelwright.ir.ops.attention import Form
from kernelwright.ir.ops.leaves import fill
from kernelwright.plan.compile.attentions import MOST_NODES, compile_attention
from kernelwright.plan.compile.recurrences import NoForm
from kernelwright.plan.contraction.products import NARROW_TYPES
from kernelwright.plan.lowering.forms import PRODUCTS, TYPES, Entering, Forms
from kernelwright.plan.rolling.roll import Rolled

#: PyTorch's own operator.
ATTENTION = "aten.scaled_dot_product_attention.default"
#: Results of the first product from which on it is worth a kernel not to store them.
_LEAST_SCORES = 1 << 14


class Attentions(Forms):
    """The attentions of a graph, in float32. result_types: of what it gives, of its values, and of both factors of the
    first product."""

    result_types: tuple[str, ...] = ("float32",)

    def found(self) -> Rolled | None:
        """What becomes of the graph."""
        done: set[Node] = set()
        for node in self.order:
            for form, operands, covered in self._forms(node):
                last, form = self._shown(form, node)
                if done.isdisjoint(covered) and self._has_kernel(last, form, operands):
                    self.taken[last] = form, operands, covered
                    done |= set(covered)
                    break
        return self.rolled("attention")

    def _shown(self, form: Form, node: Node) -> tuple[Node, Form]:
        """The last node that shows a result, permuted and reshaped by nothing else, and the form of that."""
        chain, best = [node], 0
        while chain[-1] not in self.shown and len(self.readers[chain[-1]]) == 1 and \
                (reader := self.readers[chain[-1]][0]).op in ("permute", "reshape") and reader not in self.apart:
            chain.append(reader)
            best = len(chain) - 1 if reader.op == "reshape" else best  # a permutation alone needs no memory of its own
        shown = form.result
        for view in chain[1:best + 1]:
            shown = rebuild(view, (shown,))
        return chain[best], replace(form, shown=shown)

    def _has_kernel(self, node: Node, form: Form, operands: list[Node]) -> bool:
        try:
            compile_attention(make("attention", *operands, form=form, origin=node.origin), range(len(operands)))
        except NoForm:
            return False
        return True

    def _forms(self, node: Node) -> Iterator[tuple[Form, list[Node], list[Node]]]:
        """What a node may be the result of."""
        if node in self.apart or node.dtype not in self.result_types or 0 in node.shape:
            return
        if node.op == "opaque" and node["target"] == ATTENTION:
            written = _written_out(node)
            if written is not None and written[0].size >= _LEAST_SCORES:
                yield from self._of(*written, covered=[node])
        elif node.op in PRODUCTS and len(node.inputs) == 2:
            for side in (0, 1):
                yield from self._around(node, side)

    def _around(self, node: Node, side: int) -> Iterator[tuple[Form, list[Node], list[Node]]]:
        """The forms in which operand number ``side`` of a product has the weights."""
        chain, top = [node], node.inputs[side]
        while self._passes(top, node) and self.is_inner(top):
            chain.append(top)
            top = top.inputs[0]
        score, axis = top, None
        if top.op == "softmax":
            if not self.is_inner(top):
                return
            chain.append(top)
            score, axis = top.inputs[0], top["axis"]
        between = self._between(score, node.dtype)
        if between is None:
            return
        product, body = between
        if axis is None and len(body) == 1:
            return  # three matrices, which are multiplied in either order
        weights = _leaf("weights", score, node.dtype)
        known = {top if axis is not None else score: weights}
        for part in reversed(chain[:-1] if axis is not None else chain):
            known[part] = known[part.inputs[0]] if part.op == "cast" else \
                rebuild(part, tuple(known.get(i, i) for i in part.inputs))
        yield from self._of(product, score, weights, known[node], axis, covered=[*body, *chain])

    def _score(self, score: Node, product: Node) -> Node:
        """A score as the form has it, of its product."""
        return score

    @staticmethod
    def _passes(top: Node, result: Node) -> bool:
        """Whether an operator above weights is nothing but a view, or the rounding that the kernel makes anyway."""
        return top.kind == "view" or (top.op == "cast" and top.dtype == result.dtype in NARROW_TYPES
                                      and top.inputs[0].dtype == "float32")

    def _between(self, score: Node, dtype: str) -> tuple[Node, list[Node]] | None:
        """The product, of type ``dtype``, of which a score is made, element by element, and all that depends on it up
        to there; None where there is none, or not one, or something else reads of it. What is far below is not looked
        at: a residual stream has all blocks before it."""
        seen: dict[Node, None] = {}
        near: list[Node] = []  # inputs first
        stack, products = [(score, False)], dict[Node, None]()
        while stack:
            node, ready = stack.pop()
            if ready:
                near.append(node)
            elif node not in seen:
                seen[node] = None
                if len(seen) > MOST_NODES:
                    return None
                stack.append((node, True))
                if node.op in PRODUCTS and node.size == score.size and node.dtype == dtype:
                    products[node] = None
                elif node.kind in ("pointwise", "view") or node.op == "cast":
                    stack += [(i, False) for i in reversed(node.inputs)]
        if len(products) != 1:
            return None
        (product,) = products
        dependent = {product}
        body = [product]
        for node in near:
            if node is not product and not dependent.isdisjoint(node.inputs):
                dependent.add(node)
                body.append(node)
        if score not in dependent or product.size < _LEAST_SCORES or any(
                n in self.apart or n.dtype not in (*TYPES, dtype) for n in body) or any(
                n in self.shown or not dependent.issuperset(self.readers[n]) for n in body if n is not score):
            return None
        return (product, body) if self.is_inner(score) else None

    def _of(self, *parts: Any, covered: list[Node]) -> Iterator[tuple[Form, list[Node], list[Node]]]:
        """The form of these parts with what its operands are made of, where that is cheap, and without it."""
        for absorbs in (True, False):
            yield self._form(*parts, absorbs=absorbs, covered=covered)

    def _form(self, product: Node, score: Node, weights: Node, result: Node, axis: int | None, causal: bool = False,
              empty_rows: bool = False, *, absorbs: bool, covered: list[Node]
              ) -> tuple[Form, list[Node], list[Node]]:
        """The form of a graph above nodes of this one, its operands, and what it does the work of."""
        entering = Entering(self, covered, {weights: weights}, absorbs=absorbs, types=(*TYPES, *self.result_types))
        enter, known = entering.enter, entering.known
        form_product = rebuild(product, tuple(_widened(enter(i, i.size)) for i in product.inputs))
        known[product] = form_product
        form_score = self._score(enter(score, score.size), form_product)
        form_result = enter(result, sum(i.size for i in result.inputs if i is not weights))
        form = Form(tuple(entering.operands.values()), form_product, form_score, weights, form_result, form_result,
                    axis, causal, empty_rows)
        return form, list(entering.operands), [*covered, *self.gone(entering.body, covered)]


class NarrowAttentions(Attentions):
    """Those in bfloat16 and float16. Scores are float32 up to the softmax, as PyTorch's own kernels have them: what a
    model rounds on the way, or converts, is not rounded."""

    result_types = NARROW_TYPES

    def _score(self, score: Node, product: Node) -> Node:
        return _unrounded(score, product)


def _leaf(name: str, node: Node, dtype: str) -> Node:
    return make("input", name=name, shape=node.shape, dtype=dtype)


def _widened(node: Node) -> Node:
    """An operand of a product, in float32."""
    return make("cast", node, to="float32", shape=node.shape, dtype="float32") if node.dtype in NARROW_TYPES else node


def _unrounded(score: Node, product: Node) -> Node:
    """A score without the conversions between floating types that what is made of the product goes through."""
    known = {product: product}
    for node in walk([score]):
        if node in known or known.keys().isdisjoint(node.inputs):
            continue
        if node.op == "cast" and node.dtype in (*NARROW_TYPES, "float32"):
            known[node] = known[node.inputs[0]]
        else:
            known[node] = rebuild(node, tuple(known.get(i, i) for i in node.inputs))
    return known.get(score, score)


@dataclass(frozen=True)
class Operands:
    """Those of PyTorch's attention, keys and values with as many heads as queries. scale: of products."""

    query: Node
    key: Node
    value: Node
    mask: Node | None
    causal: bool
    scale: float

    def product(self) -> Node:
        """Queries by keys."""
        return make("matmul", self.query, make("permute", self.key, axes=(
            *range(self.key.rank - 2), self.key.rank - 1, self.key.rank - 2)))

    def score(self, product: Node | None = None) -> Node:
        """What the softmax is of, but for what causality hides. product: that of queries and keys."""
        score = make("mul", product or self.product(), constant(self.scale))
        if self.mask is None:
            return score
        if self.mask.dtype != "bool":
            return make("add", score, self.mask)
        # As PyTorch's own: of a score that is NaN more is left than where it is replaced.
        return make("add", score, make("where", self.mask, constant(0.0), constant(float("-inf"))))


def operands_of(node: Node) -> Operands | None:
    """The operands of a call of `ATTENTION`; None where something is dropped out, or types are mixed."""
    given = list(fill(node["template"], node.inputs))
    more: Mapping[str, object] = {name: fill(value, node.inputs) for name, value in node["keywords"]}
    query, key, value, mask, dropped, causal = given + [None, 0.0, False][len(given) - 3:]
    mask = more.get("attn_mask", mask)
    scale, grouped = more.get("scale"), more.get("enable_gqa", False)
    if dropped or more.get("dropout_p") or len({n.dtype for n in (query, key, value)}) > 1 or query.rank < 2:
        return None
    causal = bool(more.get("is_causal", causal))
    if grouped:
        key, value = (_repeated(x, query.shape[-3]) for x in (key, value))
    if mask is not None and (not isinstance(mask, Node) or mask.dtype not in ("bool", query.dtype) or causal):
        return None
    number = float(scale) if isinstance(scale, (int, float)) else query.shape[-1] ** -0.5
    return Operands(query, key, value, mask if isinstance(mask, Node) else None, causal, number)


def _written_out(node: Node) -> tuple[Node, Node, Node, Node, int, bool, bool] | None:
    """PyTorch's attention as product, score, weights, result, axis, causal and empty rows, above its own operands; None
    where something is dropped out, or types are mixed."""
    given = operands_of(node)
    if given is None or given.query.dtype != node.dtype:
        return None
    product = given.product()
    score = given.score(product)
    weights = _leaf("weights", score, node.dtype)
    return (product, score, weights, make("matmul", weights, given.value), score.rank - 1, given.causal,
            given.mask is not None)


def _repeated(x: Node, heads: int) -> Node:
    """Heads of keys or values, each for as many heads of queries."""
    lead, own, rest = x.shape[:-3], x.shape[-3], x.shape[-2:]
    apart = make("reshape", x, shape=(*lead, own, 1, *rest))
    wide = make("expand", apart, shape=(*lead, own, heads // own, *rest))
    return make("reshape", wide, shape=(*lead, heads, *rest))
