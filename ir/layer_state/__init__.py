"""The state of a layer: what it keeps of a sequence from step to step.

`protocol` says what every kind of state answers; nobody else asks which kind it is. `rows` is the kind that attention
has, composed of streams of rows (`streams`), how a row is stored (`codecs`), where rows lie (`stores`) and who chooses
those that stay (`selectors`).
"""
