from itertools import product

import torch

from mcrepar.workbench.training.seeds import generator_of, seed_of


def test_seeds_differ_by_every_word():
    places = list(product((0, 1), ("noise", "order"), ((1, 2), (2, 1), (12,), (1, 22))))
    seeds = [seed_of(seed, purpose, *where) for seed, purpose, where in places]
    assert len(set(seeds)) == len(places)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_seed_is_the_same_in_every_process():
    """A fixed number: another one would change what a run becomes that is resumed by a later version."""
    assert seed_of(0, "noise", 3, 1) == 8066431987024229991
    a, b = (torch.randn(3, generator=generator_of(0, "order", 5)) for _ in range(2))
    assert torch.equal(a, b)
