"""From a posterior and a prior to a number: plan first, then decide, then apply."""
