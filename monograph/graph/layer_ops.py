"""Operators of layers that other models than ours are made of: norms, activations, losses, convolutions, comparisons.

Pure functions of tensors, like those that our own families need; so a model of a user's own can be precompiled.
"""

from collections.abc import Mapping, Sequence

LAYER_OPS: tuple[str, ...] = tuple(
    """
    native_layer_norm.default native_layer_norm_backward.default native_group_norm.default
    native_group_norm_backward.default gelu.default gelu_backward.default relu.default threshold_backward.default
    tanh.default tanh_backward.default softplus.default softplus_backward.default elu.default elu_backward.default
    leaky_relu.default leaky_relu_backward.default hardtanh.default hardtanh_backward.default sqrt.default
    sin.default cos.default abs.default sgn.default sign.default erf.default exp2.default log2.default
    log1p.default square.default clamp.default clamp_min.default clamp_max.default maximum.default minimum.default
    pow.Tensor_Tensor rsub.Scalar sub.Scalar floor.default round.default isnan.default logical_and.default
    logical_or.default logical_not.default bitwise_or.Tensor eq.Scalar gt.Scalar gt.Tensor le.Scalar le.Tensor
    ne.Tensor addmm.default baddbmm.default mean.default amin.default cumsum.default flip.default roll.default
    triu.default var.correction var_mean.correction argmax.default max.dim prod.dim_int one_hot.default
    full.default full_like.default zeros_like.default new_ones.default new_full.default squeeze.default
    squeeze.dims masked_fill.Tensor narrow.default slice_scatter.default select_scatter.default
    slice_backward.default select_backward.default index_put.default convolution.default
    convolution_backward.default diagonal.default pixel_shuffle.default upsample_nearest2d.vec unfold.default
    reshape.default _log_softmax_backward_data.default nll_loss_forward.default nll_loss_backward.default
    """.split()  # noqa: SIM905 - a list of eighty names reads best as a paragraph
)
"""By name in `aten`."""
LAYER_OP_TEXTS: Mapping[str, Mapping[str, Sequence[str]]] = {
    f"aten.gelu{direction}.default": {"approximate": ("none", "tanh")} for direction in ("", "_backward")
}
"""Operator -> the texts that its arguments may be."""
