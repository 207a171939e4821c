"""`sscc report`: a page about an artifact, and its graph for other viewers.

Data flows one way: `report_inputs` reads and models all inputs; each section (`overview`, `kernels`, `memory`,
`roofline`, `timeline`, `passes`, `measured`, `assumptions`) turns them into plain records of numbers, words and
coordinates; `page` renders these with templates of the same names. `graph` has the stages and streams of kernels,
which `kernels` lays out (`graph_layout`), `roofline` counts, and `dot` and `model_explorer` write for other programs.

A new section is a module with a function from `Sources` to a record, a template, and a line in `page.SECTIONS`.
"""
