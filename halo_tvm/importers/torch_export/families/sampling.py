"""Images at computed places, grid_sample and deformable convolution, and torchvision's regions and boxes."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ...meaning.builder import Refused, expr_shape
from ...meaning.deformable_convolution import deformable_convolution
from ...meaning.grid_sampling import PADDINGS, grid_sampling
from ...meaning.region_pooling import Bins, region_pooling
from ...meaning.suppression import chosen_boxes
from ...meaning.windows import Window
from .._call import Call
from .._registry import converter

_MODES = ("linear", "nearest", "cubic")  # by torch's numbers


@converter("grid_sampler_2d.default", "grid_sampler_3d.default")
def grid_sampler(c: Call) -> relax.Expr:
    mode, padding = _MODES[int(c["interpolation_mode"])], PADDINGS[int(c["padding_mode"])]
    return grid_sampling(c, c.tensor("input"), c.tensor("grid"), mode, padding, bool(c["align_corners"]))


@converter("torchvision.deform_conv2d.default")
def deform_conv(c: Call) -> relax.Expr:
    weight = c.tensor("weight")
    kernel = tuple(int(d) for d in expr_shape(weight)[2:])
    pads = int(c["pad_h"]), int(c["pad_w"])
    strides, dilations = (int(c["stride_h"]), int(c["stride_w"])), (int(c["dilation_h"]), int(c["dilation_w"]))
    window = Window(kernel, strides, dilations, (*pads, *pads)).checked(c)
    mask = c.tensor("mask") if c["use_mask"] else None
    groups, offset_groups = int(c["groups"]), int(c["offset_groups"])
    return deformable_convolution(
        c, c.tensor("input"), weight, c.tensor("offset"), mask, c.tensor("bias"), window, groups, offset_groups
    )


@converter("torchvision.roi_align.default")
def roi_align(c: Call) -> relax.Expr:
    """Regions are [image, x1, y1, x2, y2] each."""
    rois = c.tensor("rois")
    n = expr_shape(rois)[0]
    regions = c.emit(relax.op.strided_slice(rois, [1], [1], [5]))
    images = c.cast(c.reshape(c.emit(relax.op.strided_slice(rois, [1], [0], [1])), [n]), "int64")
    ratio = max(int(c["sampling_ratio"]), 0)
    bins = Bins((int(c["pooled_height"]), int(c["pooled_width"])), float(c["spatial_scale"]), ratio, bool(c["aligned"]))
    return region_pooling(c, c.tensor("input"), regions, images, bins)


@converter("torchvision.nms.default")
def nms(c: Call) -> relax.Expr:
    """Boxes are [x1, y1, x2, y2] each; of those that end before they begin there is nothing to overlap."""
    boxes, scores = c.tensor("dets"), c.tensor("scores")
    if any(str(x.ty.dtype) != "float32" for x in (boxes, scores)):
        raise Refused("boxes and scores that are not float32")
    n = expr_shape(boxes)[0]
    low, high = (c.emit(relax.op.strided_slice(boxes, [1], [i], [i + 2])) for i in (0, 2))
    boxes = c.emit(relax.op.concat([low, c.emit(relax.op.maximum(low, high))], 1))
    share = float(c["iou_threshold"])
    overlap = np.float32(share)
    if float(overlap) > share:  # torch compares in float64: the largest float32 that is not above it
        overlap = np.nextafter(overlap, np.float32(-np.inf))
    most = relax.const(np.full(1, overlap, np.float32), "float32")
    limit = relax.const(np.full(1, np.iinfo(np.int64).max), "int64")
    size = c.found_size(0)
    chosen = chosen_boxes(c, c.reshape(boxes, [1, n, 4]), c.reshape(scores, [1, 1, n]), limit, most, None, size)
    return c.reshape(c.emit(relax.op.strided_slice(chosen, [1], [2], [3])), [size])
