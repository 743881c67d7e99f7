"""What can be chosen: noises, forms, statistics, and the two tables of posteriors and priors. No estimation."""
