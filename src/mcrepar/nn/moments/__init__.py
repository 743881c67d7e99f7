"""Mean and variance of every activation in one pass, as if infinitely many draws of the weights were averaged.

tensor               a tensor with the mean and the variance of every number; how an operation finds its rule
rules                the table MOMENT_RULES: operation -> rule, and how a rule is applied
linear_rules         dense and convolutional layers, products, sums, views
elementwise_rules    activation functions
pooling_rules        average and max pooling
normalisation_rules  batch, layer, group and RMS norms, dropout, softmax, attention
positions            how far the positions of an image share their noise
moment_pass          moments of weights, one pass through a network
moment_calibration   factors that are fitted to draws
outputs              from mean and variance of the output to a prediction
export               the pass as an ordinary module
"""
