"""Products of many small matrices as single nodes: a matmul or an einsum of a batch, with the views, copies and
pointwise operators below its operands, and with the pointwise operators and views that alone read its results.

PyTorch's library multiplies matrices that lie at one distance from each other: heads, chunks and windows that a model
only shows in another order are copied first, factors and masks of operands are stored, and so are results that the next
operator changes. Products this small are bound by memory, so all of that counts. Bytes decide: a product becomes a
kernel where it is predicted to move fewer of them than the library's call with what that needs around it.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise
from math import prod

from kernelwright.algebra.views import chain_below, laid_out
from kernelwright.ir.node import Node, make, rebuild, walk
from kernelwright.ir.ops.batched import ProductForm
from kernelwright.plan.compile.attentions import MOST_NODES
from kernelwright.plan.compile.batched import compile_batched
from kernelwright.plan.compile.recurrences import NoForm
from kernelwright.plan.contraction.products import NARROW_TYPES
from kernelwright.plan.contraction.products import TYPES as PRODUCT_TYPES
from kernelwright.plan.kernels import BatchedProduct
from kernelwright.plan.lowering.forms import PRODUCTS, TYPES, Entering, Forms
from kernelwright.plan.reading.pieces import COPIES
from kernelwright.plan.rolling.roll import Rolled

#: Products of a batch at least: fewer leave most multiprocessors without one.
_LEAST_PRODUCTS = 16
#: Points of depth at most: longer sums are the library's, and tensor cores'.
_MOST_DEPTH = 256
#: Bytes that the library's way moves at least: less is over before a launch is.
_LEAST_BYTES = 1 << 17
#: A kernel must be predicted to take less than this share of the library's time.
_WIN = 0.9
#: Operations in the time of one byte of memory: of a kernel's multiply-adds in float32 with both operands from shared
#: memory, of the library's, and of the library's for 16-bit operands, as an H200 does them.
_OURS, _LIBRARY, _LIBRARY_NARROW = 8, 12, 160
#: Multiply-adds in the time of one byte that functions of an operand or of results may take, as they hide behind it.
_BEARABLE = 2.0


class BatchedProducts(Forms):
    """The batched products of a graph."""

    def found(self) -> Rolled | None:
        """What becomes of the graph."""
        done: set[Node] = set()
        for node in self.order:
            if not self._may_be(node, done):
                continue
            for absorbs in (True, False):
                chain = self._chain(node, done)
                form, operands, covered, theirs = self._form(chain, absorbs=absorbs)
                last = chain[-1]
                if done.isdisjoint(covered) and self._pays(last, form, operands, theirs):
                    self.taken[last] = form, operands, covered
                    done |= set(covered)
                    break
        return self.rolled("batched_product")

    def _may_be(self, node: Node, done: Collection[Node]) -> bool:
        return node.op in PRODUCTS and node not in self.apart and node not in done and len(node.inputs) == 2 and \
            node.dtype in PRODUCT_TYPES and all(i.dtype == node.dtype and i.rank >= 2 for i in node.inputs) and \
            0 not in node.shape and node.size >= _LEAST_PRODUCTS and node.operator.operations(node) // node.size <= \
            2 * _MOST_DEPTH and all(0 not in i.shape for i in node.inputs)

    def _chain(self, product: Node, done: Collection[Node]) -> list[Node]:
        """The product and what alone reads it, element by element and through views: it is stored in the order that
        readers see. A permutation that the caller sees at the end has no memory of its own."""
        chain, best = [product], 0
        while self.is_inner(chain[-1]):
            (reader,) = self.readers[chain[-1]]
            pointwise = reader.kind == "pointwise" and reader.shape == chain[-1].shape and \
                reader.inputs.count(chain[-1]) == 1 and reader.dtype == product.dtype and reader.op != "cast"
            if reader in self.apart or reader in done or not (pointwise or reader.op in ("permute", "reshape")):
                break
            chain.append(reader)
            best = best if reader.op == "permute" and reader in self.shown else len(chain) - 1
        return chain[:best + 1]

    def _form(self, chain: list[Node], *, absorbs: bool) -> tuple[ProductForm, list[Node], list[Node], float]:
        """The form of a product with its chain, its operands, what it does the work of, and the bytes that PyTorch's
        calls for that move, in whose time the library's operations stand as well."""
        product, last = chain[0], chain[-1]
        own = product.bytes + sum(i.bytes for i in product.inputs)
        entering = Entering(self, chain, {}, absorbs=absorbs, bearable=_BEARABLE * own,
                            types=(*TYPES, product.dtype))
        rate = _LIBRARY_NARROW if product.dtype in NARROW_TYPES else _LIBRARY
        theirs = max(float(own), product.operator.operations(product) / rate)
        inputs = []
        for operand in product.inputs:
            before = set(entering.operands)
            inputs.append(entering.enter(operand, operand.size))
            theirs += _copied_bytes(operand, product)
            top = chain_below(operand)[0]
            if top in entering.body:
                theirs += top.bytes + sum(n.bytes for n in entering.operands if n not in before)
        entering.known[product] = rebuild(product, tuple(inputs))
        before = set(entering.operands)
        result = entering.enter(last, last.size)
        if any(n.kind == "pointwise" for n in chain):
            theirs += product.bytes + last.bytes + sum(n.bytes for n in entering.operands if n not in before)
        elif last is not product:
            theirs += 2 * sum(n.bytes for n in laid_out(product, chain[1:])[1])
        form = ProductForm(tuple(entering.operands.values()), entering.known[product], result)
        return form, list(entering.operands), [*chain, *self.gone(list(entering.body), chain)], theirs

    def _pays(self, node: Node, form: ProductForm, operands: list[Node], theirs: float) -> bool:
        """Whether there is a kernel for a form, which is predicted to take less time than PyTorch's calls."""
        if theirs < _LEAST_BYTES or len(list(walk([form.result]))) > MOST_NODES:
            return False
        ours = node.bytes + sum(o.bytes for o in operands)
        if max(ours, form.product.operator.operations(form.product) / _OURS) > _WIN * theirs:
            return False
        try:
            kernel = compile_batched(make("batched_product", *operands, form=form, origin=node.origin),
                                     range(len(operands)))
        except NoForm:
            return False
        return fits(kernel)


def fits(kernel: BatchedProduct) -> bool:
    """Whether a kernel is of products of which a batch has many."""
    return kernel.groups >= _LEAST_PRODUCTS and kernel.sizes[2] <= _MOST_DEPTH


def _copied_bytes(operand: Node, product: Node) -> int:
    """Bytes that are moved so that the library finds an operand's matrices: by views and copies that need memory, and
    where batches lie at other than one distance."""
    source, chain = chain_below(operand)
    strides, copying = laid_out(source, chain)
    is_batch = product.op == "matmul" and _is_batch(operand.shape, strides, product.shape)
    moved = 2 * sum(n.bytes for n in copying) + (0 if is_batch else 2 * operand.bytes)
    while source.op in COPIES:
        moved += 2 * source.bytes
        source, chain = chain_below(source.inputs[0])
        moved += 2 * sum(n.bytes for n in laid_out(source, chain)[1])
    return moved


def _is_batch(shape: tuple[int, ...], strides: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether matrices of a tensor are a batch to the library as they lie: at one distance from each other, with
    neighbours along one of their axes."""
    lead = len(shape) - 2
    batch = [(size, stride) for size, stride in zip(shape[:lead], strides[:lead], strict=True) if size > 1]
    even = all(one == size * stride for (_, one), (size, stride) in pairwise(batch))
    if prod(shape[:lead]) != prod(wanted[:-2]) and prod(shape[:lead]) > 1:
        return False
    return even and any(stride == 1 or size == 1 for size, stride in zip(shape[lead:], strides[lead:], strict=True))
