"""The interactive web app: how many Monte Carlo iterations does a KL estimate need? No mathematics of its own."""
