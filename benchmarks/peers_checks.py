"""Points where libraries go wrong, measured: python benchmarks/peers_checks.py LIBRARY prints one JSON line.

A point is passed, failed, or not offered; beside it stands what was measured. A draw's noise is judged at five standard
errors, so that a right library fails one of these by chance once in a million runs; seeds are fixed.
"""

from __future__ import annotations

import argparse
import copy
import inspect
import json
import math
import warnings
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import torch
from peers_libraries import LIBRARIES, Library
from torch import Tensor, nn

PRIOR, SCALE, DRAWS, BOUND = 0.5, 0.2, 400, 5.0
Finding = tuple[bool | None, str]  # None: not offered


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def first(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


def by_hand(library: Library, bnn: nn.Module, prior_scale: float) -> float:
    """KL(Normal || Normal), summed over all weights."""
    total = 0.0
    for loc, free in library.learned(bnn):
        m, s = loc.detach(), library.scale(free.detach())
        total += (math.log(prior_scale) - s.log() + (s**2 + m**2) / (2 * prior_scale**2) - 0.5).sum().item()
    return total


def reported(library: Library, bnn: nn.Module) -> tuple[float, float]:
    """Mean and standard error of the KL that the library reports."""
    values = torch.stack([library.kl(bnn, randn(6, 4)).detach() for _ in range(DRAWS)])
    return values.mean().item(), values.std().item() / math.sqrt(DRAWS)


def kl_is_a_sum(library: Library) -> Finding:
    bnn = library.set_posterior(library.convert(mlp(), PRIOR), SCALE)
    right, (mean, error) = by_hand(library, bnn, PRIOR), reported(library, bnn)
    return abs(mean - right) <= BOUND * error + 1e-6 * right, f"{mean / right:.3f} +- {error / right:.3f} of the sum"


def kl_to_itself_is_zero(library: Library) -> Finding:
    bnn = library.set_posterior(library.convert(mlp(), PRIOR), PRIOR, loc=0.0)
    mean, _ = reported(library, bnn)
    return abs(mean) < 1e-3, f"{mean:.1e} nats"


def kl_is_not_negative(library: Library) -> Finding:
    bnn, found = library.convert(mlp(), PRIOR), {}
    for scale in (0.1 * PRIOR, 0.9 * PRIOR, 1.1 * PRIOR, 10 * PRIOR):
        mean, error = reported(library, library.set_posterior(bnn, scale, loc=0.0))
        found[mean] = mean >= -BOUND * error - 1e-9
    return all(found.values()), f"least of {len(found)}: {min(found):.2g} nats"


def two_forwards_one_backward(library: Library) -> Finding:
    bnn, x = library.set_posterior(library.convert(mlp(), PRIOR), SCALE), randn(6, 4)
    frees = [free for _, free in library.learned(bnn)]
    losses: list[Callable[[], Tensor]] = [
        lambda: first(library.forward(bnn, x)).square().sum(),
        lambda: (3 * first(library.forward(bnn, -x))).tanh().sum(),
    ]
    torch.manual_seed(1)
    together = torch.autograd.grad(losses[0]() + losses[1](), frees)
    torch.manual_seed(1)
    apart = [torch.autograd.grad(loss(), frees) for loss in losses]
    right = torch.cat([(a + b).flatten() for a, b in zip(*apart, strict=True)])
    off = (torch.cat([g.flatten() for g in together]) - right).norm() / right.norm()
    return off.item() < 1e-6, f"gradient of the scales off by {100 * off.item():.2g} %"


def spread_whatever_the_batch(library: Library) -> Finding:
    torch.manual_seed(0)
    bnn = library.convert(nn.Sequential(nn.Linear(20, 10, bias=False)), PRIOR)
    library.set_posterior(bnn, SCALE)
    x, ratios = randn(1, 20), []
    for size in (1, 16, 256):
        with torch.no_grad():
            out = torch.stack([first(library.forward(bnn, x.expand(size, 20)))[-1] for _ in range(DRAWS)])
        centre = x[0] @ library.learned(bnn)[0][0].detach().T
        ratios.append(((out - centre).square().mean() / (SCALE**2 * x.square().sum())).item())
    close = BOUND * math.sqrt(2 / (10 * DRAWS))
    right = all(abs(ratio - 1) < close for ratio in ratios)
    return right, "spread over the right one: " + " ".join(f"{math.sqrt(r):.2f}" for r in ratios) + " (batch 1 16 256)"


def flipout_without_noise(library: Library) -> Finding:
    bnn = library.flipout(mlp())
    if bnn is None:
        return None, "no flipout"
    library.set_posterior(bnn, 1e-9)
    with torch.no_grad():
        spread = torch.stack([library.forward(bnn, randn(6, 4)) for _ in range(50)]).std(0).mean().item()
    return spread < 1e-6, f"spread {spread:.2g} at scale 1e-9"


def radial_is_radial(library: Library) -> Finding:
    norms = library.radial_norms(DRAWS)
    if norms is None:
        return None, "no radial posterior"
    squares = norms.detach() ** 2  # mean 1, and for Normal noise 600
    error = squares.std().item() / math.sqrt(DRAWS)
    return abs(squares.mean().item() - 1) < BOUND * error, f"mean squared norm of the noise {squares.mean().item():.3g}"


def kl_of_what_is_drawn(library: Library) -> Finding:
    torch.manual_seed(0)
    bnn = library.convert(nn.Sequential(nn.Linear(4, 3, bias=False)), PRIOR)
    library.set_posterior(bnn, SCALE)
    loc = next(loc for loc, _ in library.learned(bnn) if loc.shape == (3, 4)).detach()
    with torch.no_grad():  # the identity as data: the output is the drawn matrix
        w = torch.stack([first(library.forward(bnn, torch.eye(4))).T for _ in range(DRAWS)])
    ratio = ((w - loc) / SCALE).square().mean().item()
    close = BOUND * math.sqrt(2 / (12 * DRAWS))
    return abs(ratio - 1) < close, f"variance of the draws {ratio:.3f} of the one in the KL"


def saving_restores_the_prior(library: Library) -> Finding:
    bnn = library.set_posterior(library.convert(mlp(), PRIOR), SCALE)
    wanted, (mean, error) = reported(library, bnn)[0], reported(library, library.saved_and_loaded(bnn, mlp))
    return abs(mean - wanted) <= 2 * BOUND * error + 1e-6 * abs(wanted), f"KL {mean / wanted:.3f} of the saved one"


def copies_and_stores_once(library: Library) -> Finding:
    bnn = library.convert(mlp(), PRIOR)
    first(library.forward(bnn, randn(6, 4))).sum().backward()
    weights = sum(p.numel() for p in mlp().parameters())
    stored = sum(v.numel() for v in bnn.state_dict().values() if v.is_floating_point()) / (2 * weights)
    try:
        library.forward(copy.deepcopy(bnn), randn(6, 4))
        copied, how = True, "deepcopy works"
    except Exception as error:
        copied, how = False, f"deepcopy raises {named(error)}"
    return copied and stored <= 1, f"{2 * stored:.1f} numbers stored for a weight; {how}"


def layers() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    torch.manual_seed(0)
    return {
        "circular Conv2d": (nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"), (3, 2, 5, 5)),
        "ConvTranspose2d": (nn.ConvTranspose2d(2, 3, 3, stride=2, output_padding=1), (3, 2, 5, 5)),
        "2-layer LSTM": (nn.LSTM(4, 3, num_layers=2, bidirectional=True, batch_first=True), (3, 5, 4)),
        "encoder layer": (nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), (3, 5, 4)),
    }


def conversion_keeps_options(library: Library) -> Finding:
    if not library.converts:
        return None, "no conversion"
    found = {name: _converted(library, layer, randn(*shape)) for name, (layer, shape) in layers().items()}
    words = "; ".join(f"{name}: {what}" for name, what in found.items() if what)
    return not words, words or "all four layers"


def _converted(library: Library, layer: nn.Module, x: Tensor) -> str:
    """What went wrong, or nothing."""
    plain = nn.Sequential(layer).eval()
    try:
        bnn = library.convert(copy.deepcopy(plain), PRIOR).eval()
        with torch.no_grad():
            library.set_posterior(bnn, 1e-9)
            got, wanted = first(library.forward(bnn, x)), first(plain(x))
            if got.shape != wanted.shape:
                return f"output {tuple(got.shape)} instead of {tuple(wanted.shape)}"
            if (off := (got - wanted).abs().max().item()) > 1e-5:
                return f"output off by {off:.2g}"
            library.set_posterior(bnn, 0.1)
            if torch.equal(first(library.forward(bnn, x)), first(library.forward(bnn, x))):
                return "deterministic in eval"
    except Exception as error:
        return f"raises {named(error)}"
    return ""


def lstm_is_counted_once(library: Library) -> Finding:
    """All weights have the same KL: their number, or that of their tensors where those are averaged, is what counts."""
    if not library.converts:
        return None, "no conversion"
    bnn = library.convert(nn.Sequential(nn.LSTM(4, 3, batch_first=True)), PRIOR)
    library.set_posterior(bnn, SCALE, loc=0.0)
    tensors = [loc.numel() for loc, _ in library.learned(bnn)]
    each = by_hand(library, bnn, PRIOR) / sum(tensors)
    values = torch.stack([library.kl(bnn, randn(3, 5, 4)).detach() for _ in range(DRAWS)]) / each
    close = BOUND * values.std().item() / math.sqrt(DRAWS) + 1e-6
    counted = values.mean().item()
    right = any(abs(counted - wanted) < close for wanted in (sum(tensors), len(tensors)))
    return right, f"{counted:.3g} counted, of {sum(tensors)} weights in {len(tensors)} tensors"


def batchnorm_trains(library: Library) -> Finding:
    norm = nn.BatchNorm1d(5)
    bnn = library.convert(nn.Sequential(nn.Linear(4, 5), norm, nn.Linear(5, 1)), PRIOR)
    first(library.forward(bnn, randn(32, 4))).sum().backward()
    counted = int(norm.num_batches_tracked)
    return counted == 1, f"{counted} batch counted in one step"


def scale_is_a_standard_deviation(library: Library) -> Finding:
    owner, name = library.prior_argument()
    if inspect.isclass(owner) and name not in inspect.signature(owner.__init__).parameters:
        raise LookupError(f"{owner.__name__} takes no {name}")
    bnn = library.convert(mlp(), 0.25)
    deviation, variance = (
        abs(reported(library, library.set_posterior(bnn, scale, loc=0.0))[0]) for scale in (0.25, 0.5)
    )
    is_deviation = deviation < variance
    called_so = "var" not in name
    return is_deviation and called_so, f"{name} is a {'standard deviation' if is_deviation else 'variance'}"


CHECKS: dict[str, Callable[[Library], Finding]] = {
    "1 KL is a sum": kl_is_a_sum,
    "2a KL(q || q) = 0": kl_to_itself_is_zero,
    "2b KL >= 0": kl_is_not_negative,
    "3 two forwards, one backward": two_forwards_one_backward,
    "4 spread does not depend on the batch": spread_whatever_the_batch,
    "5a flipout without noise is deterministic": flipout_without_noise,
    "5b radial is radial": radial_is_radial,
    "6 KL of the posterior that is drawn from": kl_of_what_is_drawn,
    "7a state_dict restores the prior": saving_restores_the_prior,
    "7b copies, stores nothing twice": copies_and_stores_once,
    "8a conversion keeps options": conversion_keeps_options,
    "8b an LSTM's KL is counted once": lstm_is_counted_once,
    "9 BatchNorm trains": batchnorm_trains,
    "10 a scale is a standard deviation": scale_is_a_standard_deviation,
}


def named(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:90]}" if str(error) else type(error).__name__


def run(library: Library) -> dict[str, Any]:
    """All points, in float64; one that raises is failed, by what it raised."""
    found: dict[str, Any] = {"version": version(library.package), "points": {}}
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, check in CHECKS.items():
                passed, measured = _attempt(check, library)
                found["points"][name] = {"passed": passed, "measured": measured}
    finally:
        torch.set_default_dtype(before)
    return found


def _attempt(check: Callable[[Library], Finding], library: Library) -> Finding:
    torch.manual_seed(3)
    try:
        return check(library)
    except Exception as error:
        return False, f"raises {named(error)}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", choices=list(LIBRARIES))
    print(json.dumps(run(LIBRARIES[parser.parse_args().library])))
