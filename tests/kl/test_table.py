from tests.conftest import example_posterior, example_prior, pairs_with
def test_a():
    print(len(pairs_with("exact")))
    for n in __import__("mcrepar").POSTERIORS:
        example_posterior(n); example_posterior(n, vary=True, log_scale=True, seed=4)
    for n in __import__("mcrepar").PRIORS: example_prior(n); example_prior(n, seed=2)
