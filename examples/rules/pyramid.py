"""SnapStream's scores with budgets that decrease from layer to layer, as in PyramidKV (arXiv 2406.02069)."""

import sscc


class Pyramid(sscc.SnapStream):
    steepness = 0.5  # relative difference of the first layer's budget above the mean, and of the last layer's below it

    def topk(self, layer: int, layers: int, topk: int) -> int:
        place = 1 - 2 * layer / max(layers - 1, 1)  # 1 in the first layer, -1 in the last one
        return round(topk * (1 + self.steepness * place))
