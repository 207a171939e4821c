import gc

# Few objects made by imports and captures are garbage. A garbage collection per 700 objects would take a third of the
# time in which pytest collects tests, and one per 100,000 still 3 to 8 % of the tests' time. This must precede the
# first import of torch.
gc.set_threshold(1_000_000, 20, 100)
