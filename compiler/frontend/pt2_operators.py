"""Operators that the program of a `.pt2` may call: functions of tensors and of sizes, without other effects.

torch resolves the name of an operator by attributes from `torch` on, and so would call any Python function that a file
names. Here the names are data, and an operator is looked up among torch's own by its name and overload.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

import torch

from sscc.compiler.frontend import (
    experts,  # noqa: F401 - registers sscc::expert_product and sscc::topk
    short_convolution,  # noqa: F401 - registers sscc::short_convolution
)
from sscc.compiler.frontend import operator as attention  # noqa: F401 - registers sscc::attention

_ATEN = """
abs absolute acos acosh add addcdiv addcmul addmm addr alias alias_copy all amax amin aminmax any arange arccos arctan
arctan2 argmax argmin argsort as_strided asin asinh atan atan2 atanh atleast_1d atleast_2d atleast_3d avg_pool1d
baddbmm bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor bmm broadcast_tensors
broadcast_to bucketize cat ceil celu chunk clamp clamp_max clamp_min clip clone concat concatenate constant_pad_nd
contiguous conv1d convolution copy cos cosh count_nonzero cummax cummin cumprod cumsum deg2rad detach diag diag_embed
diagonal diff div divide dot dropout dsplit einsum elu embedding empty empty_like eq erf erfc exp exp2 expand expand_as
expand_copy expm1 fill flatten flip floor floor_divide fmax fmin fmod frac full full_like gather ge gelu ger glu
greater greater_equal group_norm gt hardsigmoid hardswish hardtanh hsplit hstack index index_add index_copy index_fill
index_put index_select inner isfinite isinf isnan kron layer_norm le leaky_relu lerp less less_equal lift_fresh
lift_fresh_copy linear linspace log log10 log1p log2 log_sigmoid log_softmax logaddexp logical_and logical_not
logical_or logical_xor logit logsumexp lt masked_fill masked_scatter matmul max maximum mean meshgrid min minimum mish
mm movedim mul multiply mv nan_to_num narrow native_layer_norm native_group_norm ne neg negative new_empty new_full
new_ones new_zeros norm not_equal numpy_T one_hot ones ones_like outer pad permute polar pow prelu prod rad2deg real
imag reciprocal relu relu6 remainder repeat repeat_interleave reshape resolve_conj resolve_neg rms_norm roll round
rsqrt rsub scalar_tensor scatter scatter_add scatter_reduce select select_scatter selu sgn sigmoid sign silu sin sinc
sinh slice slice_scatter softmax softplus softshrink sort special_erf special_exp2 special_expit special_log1p
special_softmax split split_with_sizes sqrt square squeeze stack std std_mean sub subtract sum swapaxes swapdims t
take_along_dim tan tanh tensor_split tensordot threshold tile to topk transpose tril triu true_divide trunc type_as
unbind unflatten unfold unsafe_chunk unsafe_split unsqueeze var var_mean view view_as view_as_complex view_as_real
vsplit vstack where xlogy zeros zeros_like
_adaptive_avg_pool2d _assert_async _assert_scalar _assert_tensor_metadata _log_softmax _reshape_alias _shape_as_tensor
_softmax _to_copy _unsafe_index _unsafe_view
linalg_matmul linalg_norm linalg_vecdot linalg_vector_norm matrix_H mH mT
scaled_dot_product_attention sym_numel sym_size sym_storage_offset sym_stride sym_constrain_range
sym_constrain_range_for_size
abs_ add_ addcdiv_ addcmul_ bitwise_and_ bitwise_not_ bitwise_or_ ceil_ clamp_ clamp_max_ clamp_min_ copy_ cos_
detach_ div_ dropout_ elu_ erf_ exp_ fill_ floor_ floor_divide_ gelu_ index_add_ index_copy_ index_fill_ index_put_
leaky_relu_ log_ logical_and_ logical_not_ logical_or_ masked_fill_ masked_scatter_ mul_ neg_ pow_ reciprocal_ relu_
remainder_ round_ rsqrt_ scatter_ scatter_add_ sigmoid_ silu_ sin_ sqrt_ square_ squeeze_ sub_ t_ tanh_ transpose_
tril_ triu_ unsqueeze_ zero_
"""
ATEN = frozenset(_ATEN.split())
"""Names of operators of ATen, with every overload that takes tensors and returns its result. Operators for random
numbers, files, devices, quantized and sparse tensors are excluded, and so are overloads of plain lists and numbers,
which are TorchScript's and could create results of any size."""

SSCC = frozenset({"attention", "short_convolution", "expert_product", "topk"})

ON_SIZES: dict[str, Any] = {
    **{
        f"_operator.{name}": getattr(operator, name)
        for name in ("add", "sub", "mul", "floordiv", "mod", "neg", "pos", "eq", "ne", "lt", "le", "gt", "ge")
    },
    "_operator.and_": operator.and_,
    "_operator.or_": operator.or_,
    "torch.sym_max": torch.sym_max,
    "torch.sym_min": torch.sym_min,
    "torch.sym_not": torch.sym_not,
    "torch.sym_ite": torch.sym_ite,
}
"""Functions of sizes, by their name in an archive. Powers and shifts are excluded: with numbers from a file their
results are unbounded."""

WRAPPERS = ("wrap_with_set_grad_enabled", "wrap_with_autocast")
"""Higher-order operators: a graph that runs with gradients on or off, or in another dtype."""

_NAME = re.compile(r"torch\.ops\.(aten|sscc)\.([a-zA-Z_][a-zA-Z_0-9]*)\.([a-zA-Z_0-9]+)")
_WRAPPER = "torch.ops.higher_order."


def is_wrapper(target: str) -> bool:
    """Return True for the name of an operator of `WRAPPERS`."""
    return target.startswith(_WRAPPER) and target.removeprefix(_WRAPPER) in WRAPPERS


def find_operator(target: str) -> Callable[..., Any] | None:
    """Return the operator that an archive calls `target`; None for one that it may not call."""
    if target in ON_SIZES:
        function: Callable[..., Any] = ON_SIZES[target]
        return function
    if is_wrapper(target):
        wrapper: Callable[..., Any] = getattr(torch.ops.higher_order, target.removeprefix(_WRAPPER))
        return wrapper
    match = _NAME.fullmatch(target)
    if match is None or match[2] not in {"aten": ATEN, "sscc": SSCC}[match[1]]:
        return None
    packet = getattr(getattr(torch.ops, match[1]), match[2], None)
    if packet is None or match[3] not in packet.overloads():
        return None
    overload: Any = getattr(packet, match[3])
    arguments, returns = overload._schema.arguments, overload._schema.returns
    of_tensors = any("Tensor" in str(value.type) for value in (*arguments, *returns))
    return overload if of_tensors and not any(argument.is_out for argument in arguments) else None
