"""From an nn.Module to a Bayesian one."""
