"""Evaluation of fixed KV budgets: tasks, cells of methods and budgets, a resumable run, reports.

Data flows one way: `tasks` (and `own_tasks`, `ruler`, `perplexity`) generate examples, `cells` generates the
geometries to compare, `model_files` compiles them, `scoring` runs one example with one cache, `journal` records the
results, `runner` connects these modules, and `means`, `tables` and `plot` present the results of `sscc eval`.
"""
