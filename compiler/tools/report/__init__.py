"""`sscc report`: a page about an artifact, and its graph for other viewers.

Data flows one way: `sources` reads and models whatever there is to tell; each section (`overview`, `kernels`, `memory`,
`roofline`, `timeline`, `passes`, `measured`, `assumptions`) turns it into plain records of numbers, words and places in
a drawing; `page` renders them with the templates of the same names. `graph` has the stages and streams of kernels,
which `kernels` lays out (`layout`), `roofline` counts, and `dot` and `model_explorer` write for other programs.

A new section is a module with a function from `Sources` to a record, a template, and a line in `page.SECTIONS`.
"""
