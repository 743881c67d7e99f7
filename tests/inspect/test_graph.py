import pytest
import torch

from mcrepar.inspect.graph import count_nodes, peak_bytes, saved_bytes

DRAWS = (1, 3, 10, 100)


@pytest.fixture
def mu():
    return torch.tensor(0.4, dtype=torch.float64, requires_grad=True)


@pytest.fixture
def sigma():
    return torch.tensor(0.6, dtype=torch.float64, requires_grad=True)


def looped(mu, sigma, draws):
    """The loop that the paper prints."""
    loss = 0.0
    for _ in range(draws):
        w = mu * 1 + sigma * torch.randn((), dtype=mu.dtype)
        loss = loss + w**2 / draws
    return loss


def vectorised(mu, sigma, draws):
    return (mu + sigma * torch.randn(draws, dtype=mu.dtype)).square().mean()


def reparameterized(mu, sigma, draws):
    xi = torch.randn(draws, dtype=mu.dtype)
    return mu**2 + 2 * mu * sigma * xi.mean() + sigma**2 * (xi**2).mean()


@pytest.mark.parametrize("draws", DRAWS)
def test_nodes_of_the_papers_loop(mu, sigma, draws):
    assert count_nodes(looped(mu, sigma, draws)) == 6 * draws + 2


@pytest.mark.parametrize("draws", DRAWS)
def test_nodes_do_not_grow_when_reparameterized_or_vectorised(mu, sigma, draws):
    assert count_nodes(reparameterized(mu, sigma, draws)) == 10
    assert count_nodes(vectorised(mu, sigma, draws)) == 6


def test_nodes_of_a_long_loop_need_no_recursion(mu, sigma):
    assert count_nodes(looped(mu, sigma, 2000)) == 12_002


def test_a_tensor_without_graph_has_no_nodes(mu):
    assert count_nodes(mu) == 0
    assert count_nodes(torch.ones(3)) == 0


@pytest.mark.parametrize("draws", [10, 1000])
def test_saved_bytes_of_a_vectorised_estimate_grow_with_the_draws(mu, sigma, draws):
    assert saved_bytes(lambda: vectorised(mu, sigma, draws)) == 2 * 8 * draws  # the noise and the weights


def test_saved_bytes_do_not_grow_when_reparameterized(mu, sigma):
    assert len({saved_bytes(lambda m=m: reparameterized(mu, sigma, m)) for m in DRAWS}) == 1


def test_saved_bytes_count_parameters_only_when_asked():
    parameter = torch.ones(100, requires_grad=True)
    assert saved_bytes(lambda: parameter.square().sum()) == 0
    assert saved_bytes(lambda: parameter.square().sum(), leaves=True) == 400
    assert saved_bytes(lambda: parameter.view(10, 10).square().sum()) == 0  # a view of a parameter is no copy


def test_saved_bytes_count_a_storage_once_and_whole():
    parameter = torch.ones((), requires_grad=True)

    def fn():
        noise = torch.randn(100)
        return (parameter * noise).sum() + (parameter * noise.view(10, 10)[0]).sum()

    assert saved_bytes(fn) == 400


def test_saved_bytes_forget_a_graph_that_was_freed_on_the_way():
    parameter = torch.tensor(2.0, requires_grad=True)

    def fn():
        (slope,) = torch.autograd.grad((parameter * torch.randn(10_000)).square().sum(), parameter)
        return parameter * slope

    assert saved_bytes(fn) == 4


def test_saved_bytes_see_custom_functions():
    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(torch.ones(500))
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    parameter = torch.tensor(2.0, requires_grad=True)
    assert saved_bytes(lambda: Keeps.apply(parameter)) == 2000


def test_measuring_leaves_the_gradient_alone(mu, sigma):
    kept = []
    xi = torch.randn(50, dtype=mu.dtype)

    def fn():
        kept.append((mu + sigma * xi).exp().mean())
        return kept[0]

    saved_bytes(fn)
    kept[0].backward()
    expected = torch.autograd.grad((mu + sigma * xi).exp().mean(), (mu, sigma))
    assert torch.equal(mu.grad, expected[0])
    assert torch.equal(sigma.grad, expected[1])


def test_peak_is_what_lives_at_once():
    assert peak_bytes(lambda: [torch.ones(1000) for _ in range(5)]) == 20_000
    assert 4000 <= peak_bytes(lambda: [torch.ones(1000).sum() for _ in range(5)]) < 4100


def test_peak_counts_neither_views_nor_in_place_nor_older_tensors():
    old = torch.ones(1000)
    assert peak_bytes(lambda: old.add_(1).view(10, 100)[3]) == 0
    assert peak_bytes(lambda: (old * 2).add_(1).view(10, 100)[3]) == 4000


def test_peak_includes_the_backward(mu, sigma):
    forward = peak_bytes(lambda: vectorised(mu, sigma, 1000))
    assert peak_bytes(lambda: vectorised(mu, sigma, 1000).backward()) > forward >= 2 * 8000
