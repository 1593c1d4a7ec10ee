"""Models whose extents a run decides, beside ONNX Runtime, at several sizes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from sized_models import as_c, by_references, check
from tenon.errors import InputError, ShapeError
from tenon.network.graph.graph import Array
from tenon.network.graph.size_range import Size

SIZES = {
    "L": Size("L", 1, 9),
    "M": Size("M", 2, 6),
    "H": Size("H", 8, 32, 8),
    "W": Size("W", 8, 40, 16),
    "S": Size("S", 2, 9),
}
RUNS = [
    {"L": 1, "M": 2, "H": 8, "W": 8, "S": 2},
    {"L": 4, "M": 5, "H": 24, "W": 40, "S": 5},
    {"L": 9, "M": 6, "H": 32, "W": 24, "S": 8},
]


def parsed(signature: str, body: str, opset: int = 19) -> onnx.ModelProto:
    text = f'<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]> net {signature} {{ {body} }}'
    return onnx.parser.parse_model(text)


def feeds(model: onnx.ModelProto, sizes: dict[str, int], seed: int = 0) -> dict[str, Array]:
    """Random inputs; integers are below 2, so that they are indices."""
    rng, given = np.random.default_rng(seed), {}
    for value in model.graph.input:
        dims = [d.dim_value or sizes[d.dim_param] for d in value.type.tensor_type.shape.dim]
        kind = value.type.tensor_type.elem_type
        if kind == onnx.TensorProto.FLOAT:
            given[value.name] = rng.uniform(-1, 1, dims).astype(np.float32)
        elif kind == onnx.TensorProto.BOOL:
            given[value.name] = np.asarray(rng.random(dims) < 0.5)
        else:
            given[value.name] = rng.integers(0, 2, dims).astype(onnx.helper.tensor_dtype_to_np_dtype(kind))
    return given


WINDOWS: dict[str, tuple[str, str]] = {
    "convolutions": (
        "(float[1,3,H,W] x, float[4,3,3,3] w, float[3,1,3,3] d)"
        " => (float[a,b,c,e] y, float[f,g,h,i] z, float[j,k,l,m] v)",
        "y = Conv <pads=[1,1,1,1], strides=[2,2]> (x, w) e = Exp(x) z = Conv <pads=[1,0,1,0]> (e, w)"
        "v = Conv <group=3, pads=[2,2,2,2], dilations=[2,2]> (x, d)",
    ),
    "same_padding": (
        "(float[1,3,H,W] x, float[4,3,3,3] w, float[1,3,L] s, float[2,3,4] u) => (float[a,b,c,e] y, float[f,g,h] z)",
        'y = Conv <auto_pad="SAME_UPPER", strides=[2,2]> (x, w) z = Conv <auto_pad="SAME_LOWER"> (s, u)',
    ),
    "same_padding_of_any_size": (
        "(float[1,3,L,M] x, float[4,3,3,3] w, float[1,3,M] s, float[2,3,4] u)"
        " => (float[a,b,c,e] y, float[f,g,h] z, float[i,j,k,l] v, float[m,n,o,p] r)",
        'e = Exp(x) y = Conv <auto_pad="SAME_UPPER", strides=[2,2]> (e, w)'
        'z = Conv <auto_pad="SAME_LOWER", strides=[3]> (s, u) n = Neg(e)'
        'v = MaxPool <kernel_shape=[3,2], strides=[2,2], auto_pad="SAME_UPPER"> (n)'
        'r = AveragePool <kernel_shape=[2,3], strides=[2,3], auto_pad="SAME_LOWER"> (n)',
    ),
    "cubic": (
        "(float[1,2,L,M] x) => (float[a,b,c,d] y, float[e,f,g,h] z)",
        's = Constant <value_floats=[1.0,1.0,2.0,1.5]> () y = Resize <mode="cubic"> (x, , s)'
        'z = Resize <mode="cubic", coordinate_transformation_mode="align_corners", cubic_coeff_a=-0.5> (x, , s)',
    ),
    "sampled": (
        "(float[2,3,L,M] x, float[2,S,2,2] g) => (float[a,b,c,d] y, float[e,f,h,i] z, float[j,k,l,m] v)",
        't = Add(g, g) y = GridSample <mode="bilinear"> (x, t)'
        'z = GridSample <mode="bilinear", padding_mode="border", align_corners=1> (x, t)'
        'v = GridSample <mode="bicubic", padding_mode="reflection"> (x, g)',
    ),
    "two_convolutions": (
        "(float[1,3,L,M] x, float[3,3,3,3] w, float[3] b) => (float[a,c,d,e] y)",
        "f = Conv <pads=[1,1,1,1]> (x, w, b) g = Relu(f) y = Conv <pads=[1,1,1,1]> (g, w, b)",
    ),
    "transposed": (
        "(float[1,3,L,M] x, float[3,2,4,4] w, float[1,3,L] s, float[3,2,3] u) => (float[a,b,c,d] y, float[e,f,g] z)",
        "y = ConvTranspose <strides=[2,2], pads=[1,1,1,1]> (x, w)"
        "z = ConvTranspose <strides=[2], output_padding=[1], pads=[1,1]> (s, u)",
    ),
    "pools": (
        "(float[1,3,H,W] x) => (float[a,b,c,d] y, float[e,f,g,h] z, float[i,j,k,l] v)",
        "n = Neg(x) m = Sub(n, x) y = MaxPool <kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]> (m)"
        "z = AveragePool <kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]> (m)"
        "v = AveragePool <kernel_shape=[3,3], pads=[1,1,1,1], count_include_pad=1> (m)",
    ),
    "ceil_pools": (
        "(float[1,3,7,S] x) => (float[a,b,c,d] y, float[e,f,g,h] z)",
        "y = MaxPool <kernel_shape=[2,2], strides=[2,2], ceil_mode=1> (x)"
        "z = AveragePool <kernel_shape=[3,2], strides=[2,2], ceil_mode=1> (x)",
    ),
    "upsampled": (
        "(float[1,2,L,M] x) => (float[a,b,c,d] y, float[e,f,g,h] z, float[i,j,k,l] v)",
        's = Constant <value_floats=[1.0,1.0,2.0,3.0]> () y = Resize <mode="nearest", nearest_mode="floor",'
        'coordinate_transformation_mode="asymmetric"> (x, , s) z = Resize <mode="linear"> (x, , s)'
        'v = Resize <mode="linear", coordinate_transformation_mode="align_corners"> (x, , s)',
    ),
    "resized_to_another": (
        "(float[1,2,L,M] x, float[1,2,H,W] r) => (float[a,b,c,d] y, float[e,f,g,h] z)",
        "s = Shape(r) z0 = Constant <value_ints=[2]> () f = Constant <value_ints=[4]> () n = Shape(x)"
        "zero = Constant <value_ints=[0]> () c = Slice(n, zero, z0) d = Slice(s, z0, f) t = Concat <axis=0> (c, d)"
        'y = Resize <mode="linear", coordinate_transformation_mode="pytorch_half_pixel"> (x, , , t)'
        'z = Resize <mode="nearest", nearest_mode="floor", coordinate_transformation_mode="asymmetric"> (x, , , t)',
    ),
    "pyramid": (
        "(float[1,3,H,W] x, float[4,3,3,3] w, float[4,4,3,3] v) => (float[a,b,c,d] y)",
        "f = Conv <pads=[1,1,1,1], strides=[2,2]> (x, w) g = Conv <pads=[1,1,1,1], strides=[2,2]> (f, v)"
        "s = Constant <value_floats=[1.0,1.0,2.0,2.0]> () u = Resize (g, , s) y = Concat <axis=1> (u, f)",
    ),
}
"""Models with windows over axes whose extents a run decides."""

MODELS: dict[str, tuple[str, str]] = {
    "pointwise": ("(float[2,L] x, float[L] v) => (float[a,b] y)", "s = Add(x, v) t = Mul(s, s) y = Exp(t)"),
    "softmax": ("(float[2,L] x) => (float[a,b] y)", "y = Softmax <axis=-1> (x)"),
    "softmax_rows": ("(float[L,3] x) => (float[a,b] y)", "y = Softmax <axis=0> (x)"),
    "log_softmax": ("(float[2,L,3] x) => (float[a,b,c] y)", "y = LogSoftmax <axis=1> (x)"),
    "products": (
        "(float[2,L,3] x, float[L,M] w) => (float[a,b,c] y)",
        "t = Transpose <perm=[0,2,1]> (x) y = MatMul(t, w)",
    ),
    "vector_product": ("(float[L] x, float[L,M] w) => (float[a] y)", "y = MatMul(x, w)"),
    "gemm": ("(float[L,3] x, float[L,M] w) => (float[a,b] y)", "y = Gemm <transA=1> (x, w)"),
    "means": (
        "(float[2,L,3,M] x) => (float[a,b] y, float[c,d,e,f] z)",
        "a = Constant <value_ints=[1,3]> () y = ReduceMean <keepdims=0> (x, a) z = ReduceMean(x)",
    ),
    "extremes": (
        "(float[2,L] x) => (float[a] y, float[b] z, float[c] v, int64[d] w)",
        "a = Constant <value_ints=[1]> () y = ReduceMax <keepdims=0> (x, a) z = ReduceMin <keepdims=0> (x, a)"
        "v = ReduceProd <keepdims=0> (x, a) w = ArgMax <axis=1, keepdims=0> (x)",
    ),
    "random_numbers": (
        "(float[2,L,M] x) => (float[a,b,c] y, float[d] z)",
        "y = RandomNormalLike <mean=2.0, scale=0.00000001> (x) u = RandomUniformLike <low=3.0, high=3.000001> (x)"
        "a = Constant <value_ints=[0,1,2]> () z = ReduceSum <keepdims=0> (u, a)",
    ),
    "norms_of_rows": (
        "(float[2,L] x) => (float[a] y, float[b] z, float[c] v, float[d] w)",
        "a = Constant <value_ints=[1]> () y = ReduceL1 <keepdims=0> (x, a) z = ReduceL2 <keepdims=0> (x, a)"
        "v = ReduceSumSquare <keepdims=0> (x, a) w = ReduceLogSumExp <keepdims=0> (x, a)",
    ),
    "flattened": ("(float[3,L,M] x) => (float[a,b] y)", "y = Flatten <axis=1> (x)"),
    "merged": (
        "(float[3,L,M] x) => (float[a] y, float[b] z)",
        "f = Constant <value_ints=[-1]> () y = Reshape(x, f) e = Exp(x) t = Transpose <perm=[2,1,0]> (e) "
        "z = Reshape(t, f)",
    ),
    "unmerged": (
        "(float[3,L,M] x) => (float[a,b] y)",
        "s = Shape(x) i = Constant <value_int=1> () n = Gather(s, i) z = Constant <value_ints=[0]> () "
        "n1 = Unsqueeze(n, z)"
        "f = Constant <value_ints=[-1]> () flat = Reshape(x, f) e = Exp(flat) shape = Concat <axis=0> (n1, f)"
        "y = Reshape(e, shape)",
    ),
    "heads": (
        "(float[1,L,12] x) => (float[a,b,c] y)",
        "s = Constant <value_ints=[0,0,3,4]> () h = Reshape(x, s) t = Transpose <perm=[0,2,1,3]> (h)"
        "e = Exp(t) u = Transpose <perm=[0,2,1,3]> (e) w = Constant <value_ints=[0,-1,12]> () y = Reshape(u, w)",
    ),
    "joined": (
        "(float[2,L] x, float[2,M] z, float[2,3] c) => (float[a,b] y, float[d,e] v)",
        "y = Concat <axis=1> (x, z, c) v = Concat <axis=-1> (c, x)",
    ),
    "joined_behind_a_fixed_one": (
        "(float[2,L] x, float[2,3] c) => (float[a,b] y, float[d,e] v)",
        "y = Concat <axis=1> (c, x, c) v = Softmax <axis=1> (c)",
    ),
    "rows_joined": (
        "(float[L,2] x, float[M,2] z) => (float[a,b] y)",
        "e = Exp(x) f = Exp(z) y = Concat <axis=0> (e, f)",
    ),
    "slices": (
        "(float[2,L] x, float[3,M] z) => (float[a,b] y, float[c,d] v, float[e,f] w, float[g,h] u)",
        "one = Constant <value_ints=[1]> () last = Constant <value_ints=[-1]> () zero = Constant <value_ints=[0]> ()"
        "far = Constant <value_ints=[9223372036854775807]> () two = Constant <value_ints=[2]> ()"
        "low = Constant <value_ints=[-9223372036854775807]> ()"
        "y = Slice(x, zero, last, one) v = Slice(x, zero, far, one, two) w = Slice(z, last, far, one)"
        "u = Slice(x, last, low, one, last)",
    ),
    "slice_to_length": (
        "(float[2,L] x, float[1,16] t) => (float[a,b] y)",
        "s = Shape(x) i = Constant <value_int=1> () n = Gather(s, i) zero = Constant <value_ints=[0]> ()"
        "one = Constant <value_ints=[1]> () n1 = Unsqueeze(n, zero) p = Slice(t, zero, n1, one) y = Add(x, p)",
    ),
    "slice_from_length": (
        "(float[2,L] x, float[1,16] t) => (float[a,b] y)",
        "s = Shape(x) i = Constant <value_ints=[1]> () n = Gather(s, i) two = Constant <value_ints=[2]> ()"
        "m = Add(n, two) y = Slice(t, n, m, i)",
    ),
    "gathers": (
        "(float[5,3] x, int64[L] i, float[L,2] z, int64[M] j) => (float[a,b] y, float[c,d] v, float[e] w)",
        "y = Gather(x, i) k = Neg(j) l = Constant <value_int=-1> () k1 = Add(k, l)"
        "c = Constant <value_int=0> () ks = Mul(k1, c) kz = Add(ks, l) v = Gather(z, kz) w = Gather(z, l)",
    ),
    "gather_elements": ("(float[5,L] x, int64[3,L] i) => (float[a,b] y)", "y = GatherElements <axis=0> (x, i)"),
    "expanded": (
        "(float[2,L] x, float[1,1] v) => (float[a,b] y, float[c,d] z)",
        "s = Shape(x) y = Expand(v, s) e = ConstantOfShape <value = float[1] {2.0}> (s) z = Mul(e, x)",
    ),
    "ranges": (
        "(float[2,L] x) => (float[a,b] y, int64[c] z)",
        "s = Shape(x) i = Constant <value_int=1> () n = Gather(s, i) zero = Constant <value_int=0> () "
        "r = Range(zero, n, i)"
        "f = Cast <to=1> (r) y = Add(x, f) m = Add(n, n) z = Range(n, m, i)",
    ),
    "pads": (
        "(float[2,L] x, float[2,M] m) => (float[a,b] y, float[c,d] z, float[e,f] v)",
        "p = Constant <value_ints=[0,2,0,3]> () y = Pad(x, p) q = Constant <value_ints=[0,1,0,1]> ()"
        'z = Pad <mode="reflect"> (m, q) v = Pad <mode="edge"> (x, p)',
    ),
    "tiles": (
        "(float[2,L] x, float[3,2] c) => (float[a,b] y, float[d,e] z)",
        "r = Constant <value_ints=[2,3]> () y = Tile(x, r) s = Shape(x) i = Constant <value_ints=[1]> () "
        "n = Gather(s, i)"
        "both = Concat <axis=0> (i, n) z = Tile(c, both)",
    ),
    "cumulated": (
        "(float[2,L] x) => (float[a,b] y, float[c,d] z)",
        "i = Constant <value_int=1> () y = CumSum(x, i) z = CumSum <reverse=1, exclusive=1> (x, i)",
    ),
    "top": (
        "(float[2,M] x) => (float[a,b] y, int64[c,d] i, float[e,f] z)",
        "k = Constant <value_ints=[2]> () y, i = TopK(x, k) s = Shape(x) o = Constant <value_ints=[1]> () "
        "n = Gather(s, o)"
        "m = Sub(n, o) z, j = TopK <largest=0> (x, m)",
    ),
    "einsum": (
        "(float[2,L,3] x, float[2,M,3] z) => (float[a,b,c] y, float[d,e] v)",
        'y = Einsum <equation="bid,bjd->bij"> (x, z) v = Einsum <equation="bid,bid->bd"> (x, x)',
    ),
    "trilu": ("(float[2,L,L] x) => (float[a,b,c] y)", "y = Trilu <upper=0> (x)"),
    "layer_norm": (
        "(float[2,L,4] x, float[4] g) => (float[a,b,c] y)",
        "y = LayerNormalization(x, g)",
    ),
    "instance_norm": (
        "(float[2,3,L] x, float[3] g, float[3] b) => (float[a,b,c] y)",
        "y = InstanceNormalization(x, g, b)",
    ),
    "split": (
        "(float[2,H] x, float[M,4] z) => (float[a,b] y, float[c,d] v, float[e,f] w)",
        "p, q = Split <axis=1, num_outputs=2> (x) y = Add(p, q) v, w = Split <axis=1, num_outputs=2> (z)",
    ),
    "one_hot": (
        "(int64[L] x, float[2] v) => (float[a,b] y)",
        "s = Shape(x) o = Constant <value_int=1> () m = Add(s, o) z = Constant <value_int=0> () "
        "d = Gather(m, z) y = OneHot(x, d, v)",
    ),
    "scattered": (
        "(float[5,3] x, int64[L,1] i, float[L,3] u) => (float[a,b] y)",
        'y = ScatterND <reduction="add"> (x, i, u)',
    ),
    "squeezed": (
        "(float[1,L,1] x) => (float[a,b] y)",
        "z = Constant <value_ints=[0]> () s = Squeeze(x, z) e = Exp(s) t = Constant <value_ints=[-1]> () "
        "u = Squeeze(e, t) y = Unsqueeze(u, z)",
    ),
    "sizes": ("(float[2,L] x) => (int64[a] y, int64 z)", "y = Shape(x) z = Size(x)"),
    "non_zero": (
        "(float[4,L] x) => (float[a] y, int64[b,c] i)",
        "z = Constant <value = float {0.0}> () p = Greater(x, z) i = NonZero(p) t = Transpose <perm=[1,0]> (i) "
        "y = GatherND(x, t)",
    ),
    "boxes": (
        "(float[1,12,4] b, float[1,2,12] s) => (float[a,b] y, float[c] m)",
        "k = Constant <value_ints=[5]> () o = Constant <value = float {0.3}> () "
        "l = Constant <value = float {-0.2}> ()"
        "p = Abs(b) f = NonMaxSuppression(p, s, k, o, l) two = Constant <value_ints=[2]> () "
        "three = Constant <value_ints=[3]> ()"
        "one = Constant <value_ints=[1]> () zero = Constant <value_ints=[0]> () c = Slice(f, two, three, one) "
        "i = Squeeze(c, one)"
        "q = Squeeze(b, zero) y = Gather(q, i) m = ReduceMax <keepdims=0> (y, one)",
    ),
    "compressed": (
        "(float[L,3] x, bool[L] c) => (float[a,b] y, float[d] s)",
        "y = Compress <axis=0> (x, c) z = Constant <value_ints=[0]> () s = ReduceSum <keepdims=0> (y, z)",
    ),
    "unique": (
        "(int64[12] x, float[2,3] w) => (float[a,b] y)",
        "u, f, i, n = Unique(x) y = Gather(w, u)",
    ),
    "unique_of_any_number": (
        "(int64[L] x, float[L] r, int64[L,3] t) => (int64[a] y, int64[b] f, int64[c] i, int64[d] n, int64[e,g] z)",
        "y, f, i, n = Unique(x) z = Unique <axis=0, sorted=0> (t)",
    ),
    "depth_to_space": ("(float[1,8,L,M] x) => (float[a,b,c,d] y)", "e = Exp(x) y = DepthToSpace <blocksize=2> (e)"),
    "global_pools": (
        "(float[1,3,L,M] x) => (float[a,b,c,d] y, float[e,f,g,h] z)",
        "y = GlobalAveragePool(x) z = GlobalMaxPool(x)",
    ),
}


CONTRIB: dict[str, tuple[str, str]] = {
    "attention": (
        "(float[2,L,8] x, float[8,24] w, float[24] b) => (float[a,c,d] y, float[e,f,g] z)",
        "y = com.microsoft.Attention <num_heads=2> (x, w, b)"
        "z = com.microsoft.Attention <num_heads=2, unidirectional=1> (x, w, b)",
    ),
    "attention_masks": (
        "(float[2,L,8] x, float[8,24] w, float[24] b, int32[2,L] m, int32[2] n) => (float[a,c,d] y, float[e,f,g] z)",
        "y = com.microsoft.Attention <num_heads=2> (x, w, b, m)"
        "o = Constant <value = int32 {1}> () k = Add(n, o) z = com.microsoft.Attention <num_heads=2> (x, w, b, k)",
    ),
    "attention_with_a_past": (
        "(float[1,L,8] x, float[8,24] w, float[24] b, float[2,1,2,M,4] p) => (float[a,c,d] y, float[e,f,g,h,i] z)",
        "y, z = com.microsoft.Attention <num_heads=2, unidirectional=1> (x, w, b, , p)",
    ),
    "multi_head_attention": (
        "(float[1,L,8] q, float[1,M,8] k, float[1,M,8] v, float[24] b) => (float[a,c,d] y)",
        "y = com.microsoft.MultiHeadAttention <num_heads=2> (q, k, v, b)",
    ),
    "embedded": (
        "(int32[2,L] x, int32[2,L] s, float[9,8] w, float[9,8] p, float[2,8] t, float[8] g, float[8] b)"
        " => (float[a,c,d] y, float[e,f,h] z)",
        "e, n = com.microsoft.EmbedLayerNormalization(x, s, w, p, t, g, b)"
        "y = com.microsoft.SkipLayerNormalization(e, e, g, b, g)"
        "z = com.microsoft.FastGelu(y, b)",
    ),
    "fused": (
        "(float[2,L,4] x, float[2,M,4] w) => (float[a,b,c] y)",
        "y = com.microsoft.FusedMatMul <transB=1, alpha=0.5> (x, w)",
    ),
    "one_group": (
        "(float[1,3,L] x, float[2,3,L,M] v) => (float[a,b,c] y, float[d,e,f,g] z, float[h,i,j] w)",
        "r = Constant <value_ints = [0,1,-1]> ()"
        "one = Constant <value = float[1] {2.0}> () o = Constant <value = float[1] {0.5}> ()"
        "e = Exp(x) s = Shape(e) i = Reshape(e, r) n = InstanceNormalization(i, one, o) y = Reshape(n, s)"
        "t = Shape(v) k = Reshape(v, r) w = InstanceNormalization(k, one, o) q = Neg(v) p = Reshape(q, r)"
        "m = InstanceNormalization <epsilon = 0.001> (p, one, o) z = Reshape(m, t)",
    ),
    "dynamic_quantisation": (
        "(float[2,L,8] x, float[5] b) => (float[a,c,d] y, float[e,f,g] z)",
        "w = Constant <value = uint8[8,5] {" + ",".join(str(37 * i % 256) for i in range(40)) + "}> ()"
        "s = Constant <value = float[1] {0.02}> () o = Constant <value = uint8[1] {120}> ()"
        "y = com.microsoft.DynamicQuantizeMatMul(x, w, s, o, b)"
        "e = Neg(x) q, t, p = DynamicQuantizeLinear(e)"
        "z = com.microsoft.MatMulIntegerToFloat(q, w, t, s, p, o)",
    ),
}
"""Operators of ONNX Runtime over axes whose extents a run decides."""

BODIES: dict[str, tuple[str, str]] = {
    "lstm": (
        "(float[L,2,3] x, float[1,8,3] w, float[1,8,2] r) => (float[a,b,c,d] y, float[e,f,g] h, float[i,j,k] c)",
        "y, h, c = LSTM <hidden_size=2> (x, w, r)",
    ),
    "gru_both_ways": (
        "(float[L,2,3] x, float[2,6,3] w, float[2,6,2] r) => (float[a,b,c,d] y, float[e,f,g] h)",
        'y, h = GRU <hidden_size=2, direction="bidirectional"> (x, w, r)',
    ),
    "lstm_of_rows": (
        "(float[M,L,3] x, float[1,8,3] w, float[1,8,2] r) => (float[a,b,c,d] y, float[e,f,g] h)",
        "e = Exp(x) t = Transpose <perm=[1,0,2]> (e) y, h = LSTM <hidden_size=2> (t, w, r)",
    ),
    "branches": (
        "(float[2,L] x, bool c) => (float[a] y)",
        "z = Constant <value_ints=[1]> () y = If (c) <"
        "then_branch = g () => (float[a] p) { p = ReduceSum <keepdims=0> (x, z) },"
        "else_branch = h () => (float[a] q) { q = ReduceMean <keepdims=0> (x, z) }>",
    ),
    "loop": (
        "(float[2,L] x) => (float[2] y)",
        "s = Shape(x) i = Constant <value_int=1> () n = Gather(s, i) o = Constant <value_floats=[0.0,0.0]> ()"
        "y = Loop (n, , o) <body = b (int64 k, bool c, float[2] v) => (bool d, float[2] w) "
        "{ d = Identity(c) g = Gather <axis=1> (x, k) w = Add(v, g) }>",
    ),
    "rows_of_a_loop": (
        "(float[2,L] x) => (float[2] y, float[m,2] z)",
        "s = Shape(x) i = Constant <value_int=1> () n = Gather(s, i) o = Constant <value_floats=[0.0,0.0]> ()"
        "y, r = Loop (n, , o) <body = b (int64 k, bool c, float[2] v) => (bool d, float[2] w, float[2] u) "
        "{ d = Identity(c) g = Gather <axis=1> (x, k) w = Add(v, g) u = Exp(w) }>"
        "t = Transpose(x) z = Add(r, t)",
    ),
    "scan": (
        "(float[L,2] x) => (float[2] y, float[m,2] z)",
        "o = Constant <value_floats=[0.0,0.0]> () y, r = Scan <num_scan_inputs=1, scan_input_directions=[1], body ="
        "b (float[2] v, float[2] g) => (float[2] w, float[2] u) { w = Add(v, g) u = Exp(w) }> (o, x) z = Add(r, x)",
    ),
    "lengths_of_branches": (
        "(float[2,L] x, float[2,L] v, bool c) => (float[2,k] y, int64[2,m] z)",
        "y, z = If (c) <"
        "then_branch = g () => (float[2,k] p, int64[2,m] r) { p = Exp(x) r = NonZero(x) },"
        "else_branch = h () => (float[2,k] q, int64[2,m] t) { q = Neg(x) u = Relu(v) t = NonZero(u) }>",
    ),
}
"""Recurrent layers, branches and loops over axes whose extents a run decides."""

MODELS |= WINDOWS | CONTRIB | BODIES


@pytest.mark.parametrize("name", MODELS)
def test_operators(name: str) -> None:
    model = parsed(*MODELS[name])
    runs = [(feeds(model, sizes, seed), sizes) for seed, sizes in enumerate(RUNS)]
    check(model, sizes_of(model), runs, compiled=False)


EQUAL = {
    "added": ("(float[2,L] x, float[2,M] z) => (float[2,a] y)", "y = Add(x, z)"),
    "summed": (
        "(float[2,L] x, float[2,M] z) => (float[2] y, float[2,a] w)",
        "s = Add(x, z) t = Mul(s, z) a = Constant <value_ints=[1]> () y = ReduceSum <keepdims=0> (t, a) w = Neg(z)",
    ),
    "multiplied": ("(float[2,L] x, float[M,3] z) => (float[2,3] y)", "y = MatMul(x, z)"),
    "contracted": ("(float[2,L] x, float[2,M] z) => (float[2] y)", 'y = Einsum <equation="bi,bi->b"> (x, z)'),
    "joined": ("(float[L,2] x, float[M,3] z) => (float[a,5] y)", "y = Concat <axis=1> (x, z)"),
}
"""Models that are right where two sizes are equal."""


@pytest.mark.parametrize("name", EQUAL)
def test_sizes_that_must_be_equal(name: str) -> None:
    """A run in which they are not ends with an error."""
    model = parsed(*EQUAL[name])
    equal, other = [{"L": n, "M": n} for n in (2, 5)], {"L": 5, "M": 4}
    compiled = name == "added"
    runs = [(feeds(model, sizes), sizes) for sizes in equal]
    graph = check(model, sizes_of(model), runs, compiled=compiled)
    with pytest.raises(ShapeError, match="is not in"):
        by_references(graph, feeds(model, other), other)
    if compiled:
        with pytest.raises(InputError, match="or sizes differ that must be equal"):
            as_c(graph, [(feeds(model, other), other)])


SKEWS = {
    "to_positions": (
        "(float[1,2,S,A] x) => (float[a,b,c,d] y)",
        "s = Shape(x) two = Constant <value_ints=[2]> () three = Constant <value_ints=[3]> ()"
        "l = Slice(s, two, three) batch = Constant <value_ints=[1,2]> () one = Constant <value_ints=[1]> ()"
        "p = Constant <value_ints=[0,0,0,0,0,0,0,1]> () wide = Pad(x, p)"
        "flat = Constant <value_ints=[1,2,-1]> () r = Reshape(wide, flat) less = Sub(l, one)"
        "zeros = Constant <value_ints=[0,0,0,0,0]> () q = Concat <axis=0> (zeros, less) f = Pad(r, q)"
        "more = Add(l, one) double = Add(l, less) t = Concat <axis=0> (batch, more, double) m = Reshape(f, t)"
        "zero = Constant <value_ints=[0]> () starts = Concat <axis=0> (zero, less)"
        "ends = Concat <axis=0> (l, double) axes = Constant <value_ints=[2,3]> () y = Slice(m, starts, ends, axes)",
    ),
    "to_distances": (
        "(float[1,2,S,S] x) => (float[a,b,c,d] y)",
        "s = Shape(x) two = Constant <value_ints=[2]> () three = Constant <value_ints=[3]> ()"
        "l = Slice(s, two, three) batch = Constant <value_ints=[1,2]> () one = Constant <value_ints=[1]> ()"
        "less = Sub(l, one) seven = Constant <value_ints=[0,0,0,0,0,0,0]> () p = Concat <axis=0> (seven, less)"
        "e = Exp(x) wide = Pad(e, p) flat = Constant <value_ints=[1,2,-1]> () r = Reshape(wide, flat)"
        "a0 = Constant <value_ints=[0,0]> () a1 = Constant <value_ints=[0,0,0]> ()"
        "q = Concat <axis=0> (a0, l, a1) f = Pad(r, q) double = Add(l, l)"
        "t = Concat <axis=0> (batch, l, double) m = Reshape(f, t) rest = Constant <value_ints=[1000]> ()"
        "y = Slice(m, one, rest, three)",
    ),
}
"""Relative positions in attention: rows of another length, of which a part is taken."""


@pytest.mark.parametrize("name", SKEWS)
def test_rows_are_skewed(name: str) -> None:
    """They are read a row for a row, so that no position is gathered from all elements."""
    model = parsed(*SKEWS[name])
    model.graph.input[0].type.tensor_type.shape.dim[3].dim_param = "A" if name == "to_positions" else "S"
    runs = []
    for seed, n in enumerate((2, 5, 9)):
        sizes = {"S": n, "A": 2 * n - 1}
        runs.append((feeds(model, sizes, seed), {name: sizes[name] for name in ("S",)}))
    shapes: dict[str, Size] = {"S": SIZES["S"]}
    if name == "to_positions":
        shapes["A"] = Size("A", 3, 17, parts=(SIZES["S"], SIZES["S"], -1))
        runs = [(given, {**sizes, "A": 2 * sizes["S"] - 1}) for given, sizes in runs]
    graph = check(model, shapes, runs)
    assert [node.op.name for node in graph if node.op.name in ("Gather", "Skew")] == ["Skew"]


def sizes_of(model: onnx.ModelProto) -> dict[str, Size]:
    dims = {d.dim_param for v in model.graph.input for d in v.type.tensor_type.shape.dim}
    return {name: size for name, size in SIZES.items() if name in dims}


def test_vectors_across_rows() -> None:
    """Vectors of a flat loop hold elements of several rows, of which each ends where a run says."""
    body = "y = Exp(x) p = Constant <value_ints=[0,1,0,0,0,0]> () e = Neg(x) z = Pad(e, p)"
    model = parsed("(float[M,M,L] x) => (float[a,b,c] y, float[d,e,f] z)", body)
    runs = [{"L": 4, "M": 10}, {"L": 1, "M": 2}, {"L": 6, "M": 6}]
    sizes = {"L": Size("L", 1, 6), "M": Size("M", 2, 10, 2)}
    check(model, sizes, [(feeds(model, run), run) for run in runs])
