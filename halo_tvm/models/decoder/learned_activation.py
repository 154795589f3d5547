"""An activation whose shape every layer has learned: xIELU (arXiv:2411.13010).

Computation
    p = softplus(alpha_p)   n = beta + softplus(alpha_n)
    y = p x^2 + beta x for x > 0, else n (exp(min(x, eps)) - 1 - x) + beta x
"""

from __future__ import annotations

from tvm import relax

from ..builder import ModelBuilder
from .state_spaces import softplus


def xielu(m: ModelBuilder, x: relax.Var, stem: str) -> relax.Var:
    """xIELU of x [batch, tokens, channels] with the tensors `alpha_p` and `alpha_n` of `stem`.

    `beta` and `eps` are the usual ones where a checkpoint does not keep them.
    """

    def kept(name: str, usual: float) -> relax.Expr:
        stored = f"{stem}.{name}"
        if not m.weights.has(stored):
            return relax.const(usual, "float32")
        return m.stored(m.reshaped(f"{stored}:one", m.source(stored, ()), (1,)))

    def sum_of(a: relax.Expr, b: relax.Expr) -> relax.Var:
        return m.emit(relax.op.add(a, b))

    def product(a: relax.Expr, b: relax.Expr) -> relax.Var:
        return m.emit(relax.op.multiply(a, b))

    beta, eps = kept("beta", 0.5), kept("eps", -1e-6)
    above = softplus(m, m.weight(f"{stem}.alpha_p", (1,), scale=0.1, offset=0.2))
    below = sum_of(beta, softplus(m, m.weight(f"{stem}.alpha_n", (1,), scale=0.1, offset=-1.0)))
    fallen = m.emit(relax.op.exp(m.emit(relax.op.minimum(x, eps))))
    fallen = m.emit(relax.op.subtract(sum_of(fallen, relax.const(-1.0, "float32")), x))
    zero = relax.const(0.0, "float32")
    positive = m.emit(relax.op.not_equal(m.emit(relax.op.maximum(x, zero)), zero))
    chosen = m.emit(relax.op.where(positive, product(product(x, x), above), product(fallen, below)))
    return sum_of(chosen, product(x, beta))
