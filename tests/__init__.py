import gc

# Of what imports and captures make little is garbage: the collector need not look after every 700 objects. It would
# take a third of the time in which tests are collected, and after every 100,000 still 3 to 8 % of the tests' own. This
# comes before the first import of torch.
gc.set_threshold(1_000_000, 20, 100)
