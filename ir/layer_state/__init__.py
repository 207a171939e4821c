"""The state of a layer: what a layer keeps of a sequence from step to step.

`protocol` declares the operations that every kind of state implements; no other code distinguishes kinds. `rows` is the
kind of attention layers, composed of streams of rows (`row_streams`), the storage of a row (`codecs`), the place of
rows (`stores`) and the selection of those that stay (`selectors`).
"""
