"""What a fixed KV budget costs in quality: tasks, cells of methods and budgets, a resumable run, reports.

Data flows one way: `tasks` (and `own_tasks`, `ruler`, `perplexity`) make examples, `cells` the geometries to compare,
`artifacts` compiles them, `scoring` runs one example through one cache, `journal` keeps what is done, `runner` ties
them together, `summary`, `report` and `plot` tell the outcome. `sscc eval` is the command.
"""
