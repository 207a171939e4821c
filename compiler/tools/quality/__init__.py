"""The quality cost of a fixed KV budget: tasks, cells of methods and budgets, a resumable run, reports.

Data flows one way: `tasks` (and `own_tasks`, `ruler`, `perplexity`) make examples, `cells` the geometries to compare,
`model_files` compiles them, `scoring` runs one example through one cache, `journal` records the results, `runner`
connects them, `means`, `tables` and `plot` present the outcome. `sscc eval` is the command.
"""
