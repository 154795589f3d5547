"""Random numbers of keys that are inputs: the same as jax draws."""

from __future__ import annotations

import numpy as np
import pytest

from halo_tvm.errors import UnsupportedModel
from halo_tvm.in_process import compile_in_process

jax = pytest.importorskip("jax")
import jax.numpy as jnp

from halo_tvm import import_jax


def drawn(key: jax.Array, seed: jax.Array, number: jax.Array) -> dict[str, jax.Array]:
    """Of a raw key, a seed and a number that is folded in: whatever is made of random bits of every width."""
    first, second = jax.random.split(key)
    third = jax.random.fold_in(second, number)
    return {
        "normal": jax.random.normal(first, (3, 5)),
        "uniform": jax.random.uniform(third, (7,)),
        "integers": jax.random.randint(second, (4,), 0, 100),
        "bernoulli": jax.random.bernoulli(first, 0.3, (6,)),
        "permutation": jax.random.permutation(second, 5),
        "categorical": jax.random.categorical(third, jnp.arange(5.0)),
        "seeded": jax.random.normal(jax.random.key(seed), (4,)),
        "several": jax.vmap(lambda k: jax.random.normal(k, (2,)))(jax.random.split(first, 3)),
        "truncated": jax.random.truncated_normal(first, -1, 1, (3,)),
        "bytes": jax.random.bits(first, (5,), "uint8"),
        "folded": jax.random.uniform(jax.random.fold_in(jax.random.key(3), number), (2,)),
        "chosen": jax.random.choice(first, 10, (3,)),
        "wide": jax.random.normal(jax.random.split(jax.random.wrap_key_data(key), 4)[2], (70_000,)),
    }


@pytest.mark.slow
def test_the_same_numbers_as_jax() -> None:
    specs = (("2", "uint32"), ("", "int32"), ("", "int32"))
    program = compile_in_process(import_jax(drawn, None, *specs), threads=2)
    for key, seed, number in (([0, 42], 7, 3), ([3, 2**32 - 5], -9, 0), ([2**31, 1], 123456, 2**31 - 1)):
        given = np.array(key, np.uint32), np.int32(seed), np.int32(number)
        found, wanted = program(*given), drawn(*map(jnp.asarray, given))
        for name, value in wanted.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_other_kinds_of_keys_and_moves_of_keys_are_refused_by_name() -> None:
    def other(seed: jax.Array) -> jax.Array:
        return jax.random.uniform(jax.random.key(seed, impl="rbg"), (2,))

    with pytest.raises(UnsupportedModel, match=r"random_seed with keys of key<rbg>"):
        import_jax(other, None, ("", "int32"))

    def moved(key: jax.Array, which: jax.Array) -> jax.Array:
        return jax.random.uniform(jax.random.split(jax.random.wrap_key_data(key), 4)[which], (2,))

    with pytest.raises(UnsupportedModel, match=r"found (dynamic_slice|gather) of keys"):
        import_jax(moved, None, ("2", "uint32"), ("", "int32"))
