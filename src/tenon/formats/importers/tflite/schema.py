"""The TFLite schema (version 3) as tables: slots of the fields that Tenon reads, codes, and options of operators.

Source: tensorflow/lite/schema/schema.fbs.
"""

from __future__ import annotations

from tenon.network.graph.types import DType

MODEL = {"version": 0, "operator_codes": 1, "subgraphs": 2, "description": 3, "buffers": 4}
OPERATOR_CODE = {"old_code": 0, "custom": 1, "version": 2, "code": 3}
SUBGRAPH = {"tensors": 0, "inputs": 1, "outputs": 2, "operators": 3, "name": 4}
TENSOR = {
    "shape": 0,
    "type": 1,
    "buffer": 2,
    "name": 3,
    "quantization": 4,
    "variable": 5,
    "sparsity": 6,
    "signature": 7,
}
QUANTIZATION = {"scale": 2, "zero_point": 3, "axis": 6}
SPARSITY = {"order": 0, "blocked": 1, "levels": 2}
SPARSE_LEVEL = {"format": 0, "size": 1, "segments_type": 2, "segments": 3, "indices_type": 4, "indices": 5}
OPERATOR = {
    "opcode": 0,
    "inputs": 1,
    "outputs": 2,
    "options_type": 3,
    "options": 4,
    "custom_options": 5,
    "intermediates": 8,
}
BUFFER = {"data": 0, "offset": 1, "size": 2}

DTYPES = {
    0: DType.F32,
    1: DType.F16,
    2: DType.I32,
    3: DType.U8,
    4: DType.I64,
    6: DType.BOOL,
    7: DType.I16,
    9: DType.I8,
    10: DType.F64,
    12: DType.U64,
    15: DType.U32,
    16: DType.U16,
    17: DType.I4,
}
"""TensorType to element types."""

OTHER_TYPES = {5: "STRING", 8: "COMPLEX64", 11: "COMPLEX128", 13: "RESOURCE", 14: "VARIANT"}

ACTIVATIONS = ("NONE", "RELU", "RELU_N1_TO_1", "RELU6", "TANH", "SIGN_BIT")

_NAMES = """
ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE EMBEDDING_LOOKUP FLOOR
FULLY_CONNECTED HASHTABLE_LOOKUP L2_NORMALIZATION L2_POOL_2D LOCAL_RESPONSE_NORMALIZATION LOGISTIC LSH_PROJECTION LSTM
MAX_POOL_2D MUL RELU RELU_N1_TO_1 RELU6 RESHAPE RESIZE_BILINEAR RNN SOFTMAX SPACE_TO_DEPTH SVDF TANH CONCAT_EMBEDDINGS
SKIP_GRAM CALL CUSTOM EMBEDDING_LOOKUP_SPARSE PAD UNIDIRECTIONAL_SEQUENCE_RNN GATHER BATCH_TO_SPACE_ND
SPACE_TO_BATCH_ND TRANSPOSE MEAN SUB DIV SQUEEZE UNIDIRECTIONAL_SEQUENCE_LSTM STRIDED_SLICE BIDIRECTIONAL_SEQUENCE_RNN
EXP TOPK_V2 SPLIT LOG_SOFTMAX DELEGATE BIDIRECTIONAL_SEQUENCE_LSTM CAST PRELU MAXIMUM ARG_MAX MINIMUM LESS NEG PADV2
GREATER GREATER_EQUAL LESS_EQUAL SELECT SLICE SIN TRANSPOSE_CONV SPARSE_TO_DENSE TILE EXPAND_DIMS EQUAL NOT_EQUAL LOG
SUM SQRT RSQRT SHAPE POW ARG_MIN FAKE_QUANT REDUCE_PROD REDUCE_MAX PACK LOGICAL_OR ONE_HOT LOGICAL_AND LOGICAL_NOT
UNPACK REDUCE_MIN FLOOR_DIV REDUCE_ANY SQUARE ZEROS_LIKE FILL FLOOR_MOD RANGE RESIZE_NEAREST_NEIGHBOR LEAKY_RELU
SQUARED_DIFFERENCE MIRROR_PAD ABS SPLIT_V UNIQUE CEIL REVERSE_V2 ADD_N GATHER_ND COS WHERE RANK ELU REVERSE_SEQUENCE
MATRIX_DIAG QUANTIZE MATRIX_SET_DIAG ROUND HARD_SWISH IF WHILE NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5
SCATTER_ND SELECT_V2 DENSIFY SEGMENT_SUM BATCH_MATMUL PLACEHOLDER_FOR_GREATER_OP_CODES CUMSUM CALL_ONCE BROADCAST_TO
RFFT2D CONV_3D IMAG REAL COMPLEX_ABS HASHTABLE HASHTABLE_FIND HASHTABLE_IMPORT HASHTABLE_SIZE REDUCE_ALL
CONV_3D_TRANSPOSE VAR_HANDLE READ_VARIABLE ASSIGN_VARIABLE BROADCAST_ARGS RANDOM_STANDARD_NORMAL BUCKETIZE
RANDOM_UNIFORM MULTINOMIAL GELU DYNAMIC_UPDATE_SLICE RELU_0_TO_1 UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX
UNSORTED_SEGMENT_SUM ATAN2 UNSORTED_SEGMENT_MIN SIGN BITCAST BITWISE_XOR RIGHT_SHIFT
"""

BUILTIN = dict(enumerate(_NAMES.split()))
"""BuiltinOperator by its code."""

_ACTIVATION = "activation:i8"
_POOL = "padding:i8 stride_w:i32 stride_h:i32 filter_w:i32 filter_h:i32 activation:i8"

OPTIONS = {
    "CONV_2D": "padding:i8 stride_w:i32 stride_h:i32 activation:i8 dilation_w:i32=1 dilation_h:i32=1",
    "DEPTHWISE_CONV_2D": (
        "padding:i8 stride_w:i32 stride_h:i32 multiplier:i32 activation:i8 dilation_w:i32=1 dilation_h:i32=1"
    ),
    "CONV_3D_TRANSPOSE": (
        "padding:i8 stride_d:i32 stride_w:i32 stride_h:i32 activation:i8 dilation_d:i32=1 dilation_w:i32=1 "
        "dilation_h:i32=1"
    ),
    "CONV_3D": (
        "padding:i8 stride_d:i32 stride_w:i32 stride_h:i32 activation:i8 dilation_d:i32=1 dilation_w:i32=1 "
        "dilation_h:i32=1"
    ),
    "TRANSPOSE_CONV": "padding:i8 stride_w:i32 stride_h:i32 activation:i8",
    "AVERAGE_POOL_2D": _POOL,
    "MAX_POOL_2D": _POOL,
    "L2_POOL_2D": _POOL,
    "FULLY_CONNECTED": "activation:i8 weights_format:i8 keep_num_dims:bool",
    "SOFTMAX": "beta:f32",
    "CONCATENATION": "axis:i32 activation:i8",
    **dict.fromkeys(("ADD", "SUB", "MUL", "DIV", "L2_NORMALIZATION"), _ACTIVATION),
    "LOCAL_RESPONSE_NORMALIZATION": "radius:i32 bias:f32 alpha:f32 beta:f32",
    "RESIZE_BILINEAR": "- - align_corners:bool half_pixel_centers:bool",
    "RESIZE_NEAREST_NEIGHBOR": "align_corners:bool half_pixel_centers:bool",
    "RESHAPE": "shape:[i32]",
    **dict.fromkeys(("SPACE_TO_DEPTH", "DEPTH_TO_SPACE"), "block_size:i32"),
    "GATHER": "axis:i32 batch_dims:i32",
    **dict.fromkeys(
        ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "REDUCE_ANY", "REDUCE_ALL"), "keep_dims:bool"
    ),
    "SQUEEZE": "squeeze_dims:[i32]",
    **dict.fromkeys(("SPLIT", "SPLIT_V"), "num_splits:i32"),
    "STRIDED_SLICE": "begin_mask:i32 end_mask:i32 ellipsis_mask:i32 new_axis_mask:i32 shrink_axis_mask:i32 offset:bool",
    "CAST": "from:i8 to:i8",
    "ARG_MAX": "type:i8",
    "ARG_MIN": "type:i8",
    "SHAPE": "type:i8",
    "PACK": "- axis:i32",
    "UNPACK": "- axis:i32",
    "ONE_HOT": "axis:i32",
    "LEAKY_RELU": "alpha:f32",
    "MIRROR_PAD": "mode:i8",
    "FAKE_QUANT": "min:f32 max:f32 num_bits:i32 narrow_range:bool",
    "BATCH_MATMUL": "adj_x:bool adj_y:bool",
    "CUMSUM": "exclusive:bool reverse:bool",
    "GELU": "approximate:bool",
    "UNIDIRECTIONAL_SEQUENCE_LSTM": "activation:i8 cell_clip:f32 proj_clip:f32 time_major:bool",
    "UNIDIRECTIONAL_SEQUENCE_RNN": "time_major:bool activation:i8",
    "BIDIRECTIONAL_SEQUENCE_RNN": "time_major:bool activation:i8 merge_outputs:bool",
    "BIDIRECTIONAL_SEQUENCE_LSTM": ("activation:i8 cell_clip:f32 proj_clip:f32 merge_outputs:bool time_major:bool=1"),
    "LSTM": "activation:i8 cell_clip:f32 proj_clip:f32 kernel_type:i8",
    "RNN": "activation:i8",
    "SVDF": "rank:i32 activation:i8",
    "REVERSE_SEQUENCE": "seq_dim:i32 batch_dim:i32",
    "BUCKETIZE": "boundaries:[f32]",
    "CALL_ONCE": "initial:i32",
    "IF": "then:i32 otherwise:i32",
    "WHILE": "condition:i32 body:i32",
    "VAR_HANDLE": "container:text shared_name:text",
}
"""Fields of the builtin options that Tenon reads, in the form of ``flatbuffer.options``."""
