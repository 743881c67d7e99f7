"""What people look at: Table 1, autograd graphs and their pictures."""
