"""From a run folder to its report: predictions on test and out-of-distribution data, metrics, figures, words."""
