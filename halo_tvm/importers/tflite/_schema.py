"""Numbers of the LiteRT schema: operators, element types, and the slots of the tables that hold an operator's options.

Source: schema.fbs of LiteRT (version 3 of the format), whose slots never move.
"""

from __future__ import annotations

IDENTIFIER = b"TFL3"

OPERATORS = tuple(
    """
    ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE EMBEDDING_LOOKUP FLOOR
    FULLY_CONNECTED HASHTABLE_LOOKUP L2_NORMALIZATION L2_POOL_2D LOCAL_RESPONSE_NORMALIZATION LOGISTIC LSH_PROJECTION
    LSTM MAX_POOL_2D MUL RELU RELU_N1_TO_1 RELU6 RESHAPE RESIZE_BILINEAR RNN SOFTMAX SPACE_TO_DEPTH SVDF TANH
    CONCAT_EMBEDDINGS SKIP_GRAM CALL CUSTOM EMBEDDING_LOOKUP_SPARSE PAD UNIDIRECTIONAL_SEQUENCE_RNN GATHER
    BATCH_TO_SPACE_ND SPACE_TO_BATCH_ND TRANSPOSE MEAN SUB DIV SQUEEZE UNIDIRECTIONAL_SEQUENCE_LSTM STRIDED_SLICE
    BIDIRECTIONAL_SEQUENCE_RNN EXP TOPK_V2 SPLIT LOG_SOFTMAX DELEGATE BIDIRECTIONAL_SEQUENCE_LSTM CAST PRELU MAXIMUM
    ARG_MAX MINIMUM LESS NEG PADV2 GREATER GREATER_EQUAL LESS_EQUAL SELECT SLICE SIN TRANSPOSE_CONV SPARSE_TO_DENSE
    TILE EXPAND_DIMS EQUAL NOT_EQUAL LOG SUM SQRT RSQRT SHAPE POW ARG_MIN FAKE_QUANT REDUCE_PROD REDUCE_MAX PACK
    LOGICAL_OR ONE_HOT LOGICAL_AND LOGICAL_NOT UNPACK REDUCE_MIN FLOOR_DIV REDUCE_ANY SQUARE ZEROS_LIKE FILL FLOOR_MOD
    RANGE RESIZE_NEAREST_NEIGHBOR LEAKY_RELU SQUARED_DIFFERENCE MIRROR_PAD ABS SPLIT_V UNIQUE CEIL REVERSE_V2 ADD_N
    GATHER_ND COS WHERE RANK ELU REVERSE_SEQUENCE MATRIX_DIAG QUANTIZE MATRIX_SET_DIAG ROUND HARD_SWISH IF WHILE
    NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5 SCATTER_ND SELECT_V2 DENSIFY SEGMENT_SUM BATCH_MATMUL
    PLACEHOLDER_FOR_GREATER_OP_CODES CUMSUM CALL_ONCE BROADCAST_TO RFFT2D CONV_3D IMAG REAL COMPLEX_ABS HASHTABLE
    HASHTABLE_FIND HASHTABLE_IMPORT HASHTABLE_SIZE REDUCE_ALL CONV_3D_TRANSPOSE VAR_HANDLE READ_VARIABLE
    ASSIGN_VARIABLE BROADCAST_ARGS RANDOM_STANDARD_NORMAL BUCKETIZE RANDOM_UNIFORM MULTINOMIAL GELU
    DYNAMIC_UPDATE_SLICE RELU_0_TO_1 UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX UNSORTED_SEGMENT_SUM ATAN2
    UNSORTED_SEGMENT_MIN SIGN BITCAST BITWISE_XOR RIGHT_SHIFT STABLEHLO_LOGISTIC STABLEHLO_ADD STABLEHLO_DIVIDE
    STABLEHLO_MULTIPLY STABLEHLO_MAXIMUM STABLEHLO_RESHAPE STABLEHLO_CLAMP STABLEHLO_CONCATENATE
    STABLEHLO_BROADCAST_IN_DIM STABLEHLO_CONVOLUTION STABLEHLO_SLICE STABLEHLO_CUSTOM_CALL STABLEHLO_REDUCE
    STABLEHLO_ABS STABLEHLO_AND STABLEHLO_COSINE STABLEHLO_EXPONENTIAL STABLEHLO_FLOOR STABLEHLO_LOG STABLEHLO_MINIMUM
    STABLEHLO_NEGATE STABLEHLO_OR STABLEHLO_POWER STABLEHLO_REMAINDER STABLEHLO_RSQRT STABLEHLO_SELECT
    STABLEHLO_SUBTRACT STABLEHLO_TANH STABLEHLO_SCATTER STABLEHLO_COMPARE STABLEHLO_CONVERT STABLEHLO_DYNAMIC_SLICE
    STABLEHLO_DYNAMIC_UPDATE_SLICE STABLEHLO_PAD STABLEHLO_IOTA STABLEHLO_DOT_GENERAL STABLEHLO_REDUCE_WINDOW
    STABLEHLO_SORT STABLEHLO_WHILE STABLEHLO_GATHER STABLEHLO_TRANSPOSE DILATE STABLEHLO_RNG_BIT_GENERATOR
    REDUCE_WINDOW STABLEHLO_COMPOSITE STABLEHLO_SHIFT_LEFT STABLEHLO_CBRT STABLEHLO_CASE
    """.split()
)

# Element types by number. NumPy's names, where it has the type; text and handles have none.
TYPES = tuple(
    "float32 float16 int32 uint8 int64 string bool int16 complex64 int8 float64 complex128 uint64 resource variant "
    "uint32 uint16 int4 bfloat16 int2 uint4 float8_e4m3fn float8_e5m2".split()
)
ACTIVATIONS = tuple("NONE RELU RELU_N1_TO_1 RELU6 TANH SIGN_BIT".split())

# Number of an options table in the union -> its fields: name, slot, kind (of struct; I and F are vectors of int32 and
# float32, s is text) and the default where it is not 0.
OPTIONS = {
    1: "padding:0b stride_w:1i stride_h:2i activation:3b dilation_w_factor:4i=1 dilation_h_factor:5i=1",
    2: "padding:0b stride_w:1i stride_h:2i depth_multiplier:3i activation:4b dilation_w_factor:5i=1 "
    "dilation_h_factor:6i=1",
    5: "padding:0b stride_w:1i stride_h:2i filter_width:3i filter_height:4i activation:5b",
    6: "rank:0i activation:1b asymmetric_quantize_inputs:2?",
    7: "activation:0b asymmetric_quantize_inputs:1?",
    8: "activation:0b weights_format:1b keep_num_dims:2? asymmetric_quantize_inputs:3?",
    9: "beta:0f",
    10: "axis:0i activation:1b",
    11: "activation:0b",
    12: "activation:0b",
    13: "radius:0i bias:1f alpha:2f beta:3f",
    14: "activation:0b cell_clip:1f proj_clip:2f kernel_type:3b asymmetric_quantize_inputs:4?",
    15: "align_corners:2? half_pixel_centers:3?",
    17: "new_shape:0I",
    19: "block_size:0i",
    21: "activation:0b",
    23: "axis:0i batch_dims:1i",
    27: "keep_dims:0?",
    28: "activation:0b",
    29: "activation:0b",
    30: "squeeze_dims:0I",
    31: "time_major:0? activation:1b asymmetric_quantize_inputs:2?",
    32: "begin_mask:0i end_mask:1i ellipsis_mask:2i new_axis_mask:3i shrink_axis_mask:4i offset:5?",
    35: "num_splits:0i",
    37: "out_data_type:1b",
    40: "output_type:0b",
    49: "padding:0b stride_w:1i stride_h:2i activation:3b",
    50: "validate_indices:0?",
    55: "out_type:0b",
    57: "output_type:0b",
    58: "min:0f max:1f num_bits:2i narrow_range:3?",
    59: "values_count:0i axis:1i",
    61: "axis:0i",
    64: "num:0i axis:1i",
    69: "activation:0b cell_clip:1f proj_clip:2f merge_outputs:3? time_major:4?=1 asymmetric_quantize_inputs:5?",
    70: "time_major:0? activation:1b merge_outputs:2? asymmetric_quantize_inputs:3?",
    71: "activation:0b cell_clip:1f proj_clip:2f time_major:3? asymmetric_quantize_inputs:4? "
    "diagonal_recurrent_tensors:5?",
    74: "align_corners:0? half_pixel_centers:1?",
    75: "alpha:0f",
    77: "mode:0b",
    79: "num_splits:0i",
    80: "idx_out_type:0b=2",
    87: "seq_dim:0i batch_dim:1i",
    92: "then_subgraph_index:0i else_subgraph_index:1i",
    93: "cond_subgraph_index:0i body_subgraph_index:1i",
    94: "block_size:0i",
    101: "adj_x:0? adj_y:1? asymmetric_quantize_inputs:2?",
    102: "exclusive:0? reverse:1?",
    103: "init_subgraph_index:0i",
    106: "padding:0b stride_d:1i stride_w:2i stride_h:3i activation:4b "
    "dilation_d_factor:5i=1 dilation_w_factor:6i=1 dilation_h_factor:7i=1",
    111: "container:0s shared_name:1s",
    114: "seed:0q seed2:1q",
    115: "boundaries:0F",
    116: "approximate:0?",
}
