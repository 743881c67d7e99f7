"""Plain deterministic networks, for `bayesian` to take; torch imports only."""
