import pytest

from experiments import reproduce
from tests.experiments.squares import Squares


@pytest.fixture
def squares(monkeypatch):
    made = Squares()

    def use(**options):
        monkeypatch.setattr(reproduce, "EXPERIMENTS", {"squares": "squares of numbers"})
        monkeypatch.setattr(reproduce, "find", lambda name: made.experiment(**options))

    made.use = use
    use()
    return made
