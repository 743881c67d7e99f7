"""A state_dict carries the priors: a network that was built with others gets the saved ones, or is refused."""

import io
import json
from typing import Any

import pytest
import torch
from torch import nn

import mcrepar
from mcrepar import ParameterError, bayesian, kl, prior
from mcrepar.divergence.methods import Estimator
from mcrepar.nn.module import BayesianModule
from mcrepar.nn.random_tensor import random_tensors
from tests.conftest import seeded


def changed(bnn):
    with torch.no_grad():
        for p in bnn.parameters():
            p.add_(0.1)
    return bnn


def restored(bnn, **options):
    other = bayesian(nn.Linear(3, 2), **options)
    other.load_state_dict(bnn.state_dict())
    return other


@pytest.mark.parametrize(
    "options",
    [
        {"prior": prior("normal", scale=0.3)},
        {"prior": prior("normal", loc="tied", scale="learned")},
        {"prior": prior("student_t", df=3.0), "n_mc_iter": 7},
        {"prior": torch.distributions.Gumbel(0.0, 2.0)},
        {"pretrained": True},
        {"overrides": {"bias": {"prior": prior("laplace", scale=torch.tensor([0.1, 0.7]))}}},
        {"posterior": "gamma", "prior": "gamma", "signs": "keep"},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:load_state_dict")
def test_the_saved_priors_replace_those_the_network_was_built_with(options):
    posterior = options.get("posterior", "normal")
    bnn = changed(bayesian(nn.Linear(3, 2), **{"posterior": posterior, **options}))
    built = {"posterior": posterior, "prior": "gamma" if posterior == "gamma" else "normal"}
    other = restored(bnn, **built, **({"signs": "positive"} if posterior == "gamma" else {}))
    assert torch.equal(kl(other, n_mc_iter=20, generator=seeded(1)), kl(bnn, n_mc_iter=20, generator=seeded(1)))
    for a, b in zip(other.draw(seeded(2)).values(), bnn.draw(seeded(2)).values(), strict=True):
        assert torch.equal(a, b)
    mcrepar.elbo(
        other, mcrepar.likelihoods.Normal(1.0), torch.ones(4, 3), torch.ones(4, 2), data_size=4
    ).loss.backward()
    assert all(p.grad is not None for p in other.parameters())


def test_through_a_file_that_runs_no_code():
    bnn, file = changed(bayesian(nn.Linear(3, 2), prior=prior("laplace", scale=0.2))), io.BytesIO()
    torch.save(bnn.state_dict(), file)
    file.seek(0)
    other = bayesian(nn.Linear(3, 2))
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(kl(other, generator=seeded(1)), kl(bnn, generator=seeded(1)))


def test_estimator_and_forward_stay_as_built():
    other = restored(bayesian(nn.Linear(3, 2)), kl_method="stats", n_mc_iter=5, forward="flipout")
    assert other.mode == "flipout"
    assert {latent.options.estimator for latent in other.latents.values()} == {Estimator("stats", 5)}


def test_a_tensor_that_is_learned_stays_the_learned_one():
    saved, ours = torch.tensor(0.3, requires_grad=True), torch.tensor(0.9, requires_grad=True)
    other = restored(bayesian(nn.Linear(3, 2), prior=prior("normal", scale=saved)), prior=prior("normal", scale=ours))
    assert ours.item() == saved.item()
    kl(other).backward()
    assert ours.grad != 0


def test_a_prior_of_ones_own_is_left_as_built():
    class Own(torch.distributions.Normal):
        pass

    bnn = bayesian(nn.Linear(3, 2), prior=Own(0.0, 0.2), kl_method="stream", n_mc_iter=4)
    assert not bnn.get_extra_state().numel()
    other = restored(bnn, prior=Own(0.0, 0.2), kl_method="stream", n_mc_iter=4)
    assert torch.equal(kl(other, generator=seeded(1)), kl(bnn, generator=seeded(1)))


def test_another_posterior_is_refused_and_nothing_changes():
    other = bayesian(nn.Linear(3, 2), "radial")
    before = kl(other)
    with pytest.raises(ParameterError, match=r"its posterior is normal, and the network's is radial\. Use bayesian"):
        other.load_state_dict(bayesian(nn.Linear(3, 2), "normal", prior("normal", scale=0.1)).state_dict())
    assert torch.equal(kl(other), before)


STRUCTURES = {
    "weights": {}, "rank1, one member": {"structure": "rank1"}, "rank1, members": {"structure": "rank1", "members": 2},
    "rank1 of a table": {"structure": "rank1", "select": "0.weight"},
}  # fmt: skip
SAID = {
    "weights": "structure='weights'", "rank1, one member": "structure='rank1', members=1",
    "rank1, members": "structure='rank1', members=2", "rank1 of a table": "structure='rank1', members=1",
}  # fmt: skip


def of_before(state: dict[str, Any]) -> dict[str, Any]:
    """The same state without the number of members, which was not written once."""
    found = torch.load(io.BytesIO(state["_extra_state"].numpy().tobytes()), weights_only=True)
    words, file = json.loads(found["words"]), io.BytesIO()
    del words["members"]
    torch.save({**found, "words": json.dumps(words)}, file)
    return {**state, "_extra_state": torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)}


def made(kind: str) -> BayesianModule:
    return bayesian(nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 2)), **STRUCTURES[kind])


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(("saved", "ours"), [(a, b) for a in STRUCTURES for b in STRUCTURES if SAID[a] != SAID[b]])
def test_another_structure_is_refused_and_nothing_changes(saved, ours, strict):
    state, other = made(saved).state_dict(), made(ours)
    first = {name: t.clone() for name, t in other.state_dict().items()}
    if strict and "rank1 of a table" not in (saved, ours):  # which states of before did not tell from weights
        state = of_before(state)
    with pytest.raises(ParameterError) as caught:
        other.load_state_dict(state, strict=strict)
    assert SAID[saved] in str(caught.value).partition("and the network of")[0]
    assert SAID[ours] in str(caught.value).partition("and the network of")[2]
    assert all(torch.equal(t, first[name]) for name, t in other.state_dict().items())


def test_a_layer_with_other_factors_is_refused_and_nothing_changes():
    """A table has factors of its features alone, a dense layer those of its inputs too."""
    state = bayesian(nn.Embedding(2, 3), structure="rank1").state_dict()
    other = bayesian(nn.Linear(3, 2, bias=False), structure="rank1", prior=prior("normal", loc=1.0, scale=0.3))
    before = kl(other)
    with pytest.raises(ParameterError, match="for weight: its layer has 1 random factors in the state, and 2 in the"):
        other.load_state_dict(state, strict=False)
    assert torch.equal(kl(other), before)


@pytest.mark.parametrize("kind", STRUCTURES)
def test_a_state_of_before_loads(kind):
    first, other = made(kind), made(kind)
    other.load_state_dict(of_before(first.state_dict()))
    assert torch.equal(kl(other, generator=seeded(1)), kl(first, generator=seeded(1)))


@pytest.mark.parametrize("state", [{"a": 1}, torch.arange(9, dtype=torch.uint8), torch.ones(3)], ids=str)
def test_a_damaged_state_is_refused(state):
    bnn = bayesian(nn.Linear(3, 2))
    with pytest.raises(ParameterError, match="does not hold families and priors"):
        bnn.load_state_dict({**bnn.state_dict(), "_extra_state": state})


def test_a_state_with_another_prior_replaces_it_and_says_so():
    bnn = bayesian(nn.Linear(3, 2), prior="laplace")
    with pytest.warns(UserWarning, match="the prior of the state, normal, in the place of laplace"):
        bnn.load_state_dict(bayesian(nn.Linear(3, 2), prior="normal").state_dict())
    assert next(iter(random_tensors(bnn).values())).options.prior.name == "normal"
