"""Networks that are trained in several ways and compared: what runs, and what is found of it again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.experiment import Bench, Part, Results, Row
from experiments.spreads import over
from experiments.trained import TAUS, Training, in_set, need_data, trained


@dataclass(frozen=True)
class Variant:
    """A way to train that networks are compared in.

    Args:
        name: in tables.
        key: in the keys of parts, from which their seeds follow: that of fig8-left where the training is the same.
        options: that differ from the network's.
        random: whether its draws differ; otherwise the test asks one.
        most: replications, fewer than the network's, where it is only shown beside others; None where it has all.
    """

    name: str
    key: str
    options: Mapping[str, Any]
    random: bool = True
    most: int | None = None


@dataclass(frozen=True)
class Network:
    """A network of the comparison.

    Args:
        name: in keys and tables.
        training: how, but for what the variants choose.
        variants: names of them.
        replications: of each, with seeds of their own.
    """

    name: str
    training: Training
    variants: tuple[str, ...]
    replications: int = 1


@dataclass(frozen=True)
class Settings:
    """One scale of the experiment.

    Args:
        variants: with all their options, so that a changed one is measured anew.
        networks: that are compared.
    """

    variants: tuple[Variant, ...]
    networks: tuple[Network, ...]


def parts(settings: Settings) -> list[Part]:
    """One for each training."""
    return [
        Part(
            f"{net.name}-{variant.key}-r{k}",
            {"kind": "run", "network": net.name, "variant": variant.name, "replication": k},
        )
        for net in settings.networks
        for variant in settings.variants
        if variant.name in net.variants
        for k in range(min(net.replications, variant.most or net.replications))
    ]


def measure(part: Part, bench: Bench) -> Row:
    """One training, and what it answers."""
    training, options = training_of(part, bench.settings)
    return trained(training, bench, **options)


def training_of(part: Part, settings: Settings) -> tuple[Training, Mapping[str, Any]]:
    """How the network of a part is trained, and the options of its variant."""
    (net,) = (n for n in settings.networks if n.name == part.given["network"])
    (variant,) = (v for v in settings.variants if v.name == part.given["variant"])
    return net.training if variant.random else replace(net.training, asked=1), variant.options


def check(settings: Settings, root: Path | None) -> None:
    """Refuse where data are missing."""
    need_data([net.training for net in settings.networks], root)


# ---- what the runs say


@dataclass(frozen=True)
class Runs:
    """The replications of a variant of a network, and those of the deterministic network."""

    network: str
    rows: Sequence[Row]
    plain: Sequence[Row]
    diverged: int

    def told(self, text: str) -> str:
        """A text on the runs that ended, with the name of the network and a word on the others."""
        lost = f" ({self.diverged} diverged)" if self.rows and self.diverged else ""
        return f"{self.network} {text if self.rows else 'no run ended'}{lost}"


def runs(results: Results, variant: str, only: str = "") -> list[Runs]:
    """The runs of a variant by network.

    Args:
        results: of all parts.
        variant: a name.
        only: a word that the network's model has.
    """

    def rows(net: Network, name: str) -> list[Row]:
        return [r for r in results.of("run") if r["network"] == net.name and r["variant"] == name]

    def ended(net: Network, name: str) -> list[Row]:
        return [row for row in rows(net, name) if not row["failed"]]

    return [
        Runs(net.name, ended(net, variant), ended(net, "deterministic"), sum(bool(r["failed"]) for r in found))
        for net in results.settings.networks
        if only in net.training.model and (found := rows(net, variant))
    ]


def line(rows: Sequence[Row], field: str) -> list[float]:
    """The mean over runs of a field of the confidence sets, by threshold; nan where all are empty."""
    means = [over(rows, in_set(tau, field)).mean for tau in TAUS]
    return [math.nan if mean is None else mean for mean in means]
