"""Programs of Paddle 3 (PIR as JSON) in the operators of 2.x.

A file has one block of operators {"#": type, "A": attributes, "I": inputs, "O": outputs}.  Types and attribute types
begin with the number of their dialect (0 builtin, 1 pd_op), values are numbers, and 0 is an absent value.  A
parameter is an operator "p" whose attributes end with its name.  Several tensors in one input are a vector, which
builtin.combine makes and builtin.split and builtin.slice take apart.  pd_op.if and pd_op.while have "regions" of one
block each, whose arguments have negative numbers and whose last operator, cf.yield, reads what the block gives.
``ROWS`` has what names differ.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tenon.errors import FormatError
from tenon.formats.importers.paddle.program import PaddleOperation, PaddleProgram, PaddleVariable

_START = b'{"base_code"'
_KINDS = {"bool": 0, "i16": 1, "i32": 2, "i64": 3, "f16": 4, "f32": 5, "f64": 6, "ui8": 20, "i8": 21}
_NAMES = {
    "bool": 0,
    "int16": 1,
    "int32": 2,
    "int64": 3,
    "float16": 4,
    "float32": 5,
    "float64": 6,
    "uint8": 20,
    "int8": 21,
    "undefined": -1,
}

ROWS: dict[str, str] = {
    "add": "elementwise_add",
    "subtract": "elementwise_sub",
    "multiply": "elementwise_mul",
    "divide": "elementwise_div",
    "maximum": "elementwise_max",
    "minimum": "elementwise_min",
    "fmax": "elementwise_fmax",
    "fmin": "elementwise_fmin",
    "remainder": "elementwise_mod",
    "floor_divide": "elementwise_floordiv",
    "mean_all": "mean",
    "add_n": "sum",
    **{
        name: f"reduce_{name} X dim= / axis>dim keepdim>keep_dim"
        for name in ("mean", "sum", "max", "min", "prod", "amax", "amin", "all", "any")
    },
    **dict.fromkeys(("conv2d", "depthwise_conv2d", "conv3d"), " Input Filter -> Output"),
    **dict.fromkeys(("conv2d_transpose", "depthwise_conv2d_transpose"), " Input Filter output_size= -> Output"),
    "conv2d_transpose_bias": "conv2d_transpose Input Filter Bias output_size= -> Output",
    "conv3d_transpose": " Input Filter -> Output",
    "deformable_conv": " Input Offset Filter Mask -> Output",
    **dict.fromkeys(("batch_norm", "sync_batch_norm"), " X Mean Variance Scale Bias -> Y"),
    **dict.fromkeys(("layer_norm", "instance_norm", "group_norm"), " X Scale Bias -> Y"),
    "pool2d": " X ksize=",
    "pool3d": " X / kernel_size>ksize",
    "affine_channel": " X Scale Bias",
    "max_pool2d_with_index": " X -> Out Mask / kernel_size>ksize",
    "unpool": " X Indices output_size=",
    **{
        f"{kind}_interp": f"{kind}_interp_v2 X OutSize SizeTensor Scale"
        for kind in ("nearest", "linear", "bilinear", "trilinear", "bicubic")
    },
    "clip": " X Min Max",
    "scale": " X scale=",
    "pow": " X / y>factor",
    "prelu": " X Alpha",
    "matmul": "matmul_v2 X Y / transpose_x>trans_x transpose_y>trans_y",
    "matmul_with_flatten": "mul",
    "fc": " Input W Bias",
    "addmm": " Input X Y / alpha>Alpha beta>Beta",
    "mv": " X Vec",
    "lerp": " X Y Weight",
    "frobenius_norm": " X dim= / keepdim>keep_dim",
    "cumsum": " X axis=",
    "argmax": "arg_max X axis=",
    "argmin": "arg_min X axis=",
    "topk": "top_k_v2 X K -> Out Indices",
    "argsort": " X -> Out Indices",
    "reshape": " X Shape",
    "squeeze": " X axes=",
    "unsqueeze": " X axes=",
    "transpose": " X / perm>axis",
    "flatten": "flatten_contiguous_range",
    "slice": " Input StartsTensor EndsTensor",
    "strided_slice": " Input StartsTensor EndsTensor strides=",
    "split": " X sections= axis=",
    "split_with_num": "split X axis=",
    "concat": " X axis=",
    "expand": "expand_v2 X shape=",
    "tile": " X repeat_times=",
    "expand_as": "expand_as_v2",
    "pad": " X pad_value=",
    "pad3d": " X paddings=",
    "reverse": " X axis=",
    "roll": " X shifts=",
    "tril": "tril_triu lower:1",
    "triu": "tril_triu lower:0",
    "diag": "diag_v2",
    "crop": "crop_tensor X Shape Offsets",
    "index_add": " X Index AddValue",
    "einsum": " Operands",
    "diagonal": " Input",
    "shape": " Input",
    "shape64": " Input",
    "numel": "size Input",
    "full": "fill_constant",
    "full_with_tensor": "fill_constant value= ShapeTensor",
    "full_int_array": "assign_value / value>values",
    "assign_value": " _",
    "full_like": "fill_any_like X value= _",
    "full_batch_size_like": "fill_constant_batch_size_like Input",
    "cast": " X / dtype>out_dtype",
    "gather": " X Index axis=",
    "gather_nd": " X Index",
    "index_sample": " X Index",
    "index_select": " X Index / axis>dim",
    "take_along_axis": " Input Index / axis>Axis",
    "put_along_axis": " Input Index Value / axis>Axis reduce>Reduce",
    "scatter": " X Ids Updates",
    "scatter_nd_add": " X Index Updates",
    "set_value": " Input starts= ends= steps=",
    "set_value_with_tensor": "set_value Input ValueTensor starts= ends= steps=",
    "embedding": "lookup_table_v2 Ids W",
    "dropout": " X _ dropout_prob= / p>dropout_prob mode>dropout_implementation",
    "where": " Condition X Y",
    "rnn": " Input PreState WeightList SequenceLength -> Out DropoutState State",
    "arange": "range Start End Step",
    "linspace": " Start Stop Num",
    "eye": " num_rows= num_columns=",
    "one_hot": "one_hot_v2 X depth_tensor",
    "grid_sample": "grid_sampler X Grid -> Output",
    "affine_grid": " Theta OutputShape -> Output",
    "unfold": " X -> Y",
    **{name: f"{name}_v2" for name in ("isnan", "isinf", "isfinite")},
    "hardswish": "hard_swish",
    "hardsigmoid": "hard_sigmoid",
    "hardshrink": "hard_shrink",
    "softshrink": " X / threshold>lambda",
    "leaky_relu": " X / negative_slope>alpha",
    **dict.fromkeys(("quantize_linear", "dequantize_linear"), " X Scale ZeroPoint -> Y"),
    **dict.fromkeys(
        (
            "fake_quantize_moving_average_abs_max",
            "fake_quantize_range_abs_max",
            "fake_quantize_dequantize_moving_average_abs_max",
        ),
        " X InScale",
    ),
    "fake_dequantize_max_abs": " X Scale",
    "fake_channel_wise_dequantize_max_abs": " X Scales",
    "prior_box": " Input Image -> Boxes Variances",
    "yolo_box": " X ImgSize -> Boxes Scores",
    "box_coder": " PriorBox PriorBoxVar TargetBox -> OutputBox",
    "box_clip": " Input ImInfo -> Output",
    "matrix_nms": " BBoxes Scores -> Out Index RoisNum",
    "multiclass_nms3": " BBoxes Scores RoisNum -> Out Index NmsRoisNum",
    **dict.fromkeys(("roi_align", "roi_pool", "psroi_pool"), " X ROIs RoisNum"),
}
"""Names of 2.x by those of 3: the type (none: the same), the slots of the inputs in their order (``_``: one that is of
no use), after -> those of the outputs, after / attributes that have other names, and NAME:1 for one that is implied.
Without slots they are X and Y, and Out."""


def is_program(data: bytes) -> bool:
    """JSON that begins as Paddle writes it, indented or not."""
    return b"".join(data[:64].split()).startswith(_START) and b'"pir"' in data[:256]


def read(data: bytes, where: str) -> PaddleProgram:
    """The program in a file.  Raises FormatError."""
    try:
        regions = json.loads(data)["program"]["regions"]
        blocks = [block for region in regions for block in region["blocks"]]
        return _PirReader().read(blocks[0]["ops"])
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise FormatError(f"{where}: not a program of Paddle 3; the file is damaged ({str(error)[:80]})") from None


def _attribute(given: Any) -> Any:
    kind: str = given["#"]
    data: Any = given["D"] if "D" in given else float(given["VD"])  # infinities and what is no number
    if kind.endswith("a_array"):
        return [_attribute(item) for item in data]
    return _NAMES.get(data, data) if kind.endswith("a_dtype") else data


def _variable(name: str, type: Any) -> PaddleVariable:
    element, dims, *_ = type["D"]
    return PaddleVariable(name, _KINDS.get(element["#"].rpartition("t_")[2], -1), tuple(int(d) for d in dims))


class _PirReader:
    """``names`` are the tensors that a value stands for."""

    def __init__(self) -> None:
        self.program = PaddleProgram()
        self.names: dict[int, list[str]] = {0: []}

    def read(self, operators: Sequence[Any]) -> PaddleProgram:
        self.program.blocks.append(self.program.operations)
        wanted = {op["I"][0]["%"]: self.attributes(op)["name"] for op in operators if op["#"].endswith(".fetch")}
        for op in operators:
            self.operator(op, wanted)
        return self.program

    def attributes(self, op: Any) -> dict[str, Any]:
        return {a["N"]: _attribute(a["AT"]) for a in op["A"]}

    def operator(self, op: Any, wanted: dict[int, str]) -> None:
        if op["#"] == "p":
            self.parameter(op)
            return
        dialect, _, type = op["#"].partition(".")
        type = type.rstrip("_") or type
        inputs = [self.names[value["%"]] for value in op["I"]]
        if dialect == "0" and type in ("combine", "split", "slice"):
            self.vector(type, op, inputs)
        elif type in ("data", "feed"):
            self.feed(op)
        elif type in ("fetch", "shadow_output"):
            self.result(op, inputs[0])
        elif type in ("if", "while"):
            self.with_blocks(type, op, inputs, [self.output(type, result, wanted) for result in op["O"]])
        else:
            outputs = [self.output(type, result, wanted) for result in op["O"]]
            self.program.operations.append(_operation(type, inputs, outputs, self.attributes(op)))

    def with_blocks(self, type: str, op: Any, inputs: list[list[str]], outputs: list[list[str]]) -> None:
        """An operator that runs blocks: it reads what these read of the tensors outside of them, too."""
        read, attributes = list[str](), dict[str, object]()
        for i, region in enumerate(op.get("regions", [])):
            (block,) = region["blocks"]
            number, arguments, given = self.block(block)
            attributes |= {f"block{i}": number, f"arguments{i}": arguments, f"given{i}": given}
            inner = self.program.blocks[number]
            made = {*arguments, *(name for each in inner for name in each.made)}
            read += [name for each in inner for names in each.inputs.values() for name in names if name not in made]
            read += [name for name in given if name not in made]
        slots: dict[str, Sequence[str]] = {"X": [name for names in inputs for name in names]}
        slots["Read"] = list(dict.fromkeys(read))
        result: dict[str, Sequence[str]] = {"Out": [name for names in outputs for name in names]}
        self.program.operations.append(PaddleOperation(f"pd_op.{type}", slots, result, attributes))

    def block(self, block: Any) -> tuple[int, list[str], list[str]]:
        """The number of a block, and the names of its arguments and of what it gives."""
        outside, self.program.operations = self.program.operations, []
        number, given = len(self.program.blocks), list[str]()
        self.program.blocks.append(self.program.operations)
        arguments = [f"block_{number}_{i}" for i in range(len(block["args"]))]
        for argument, name in zip(block["args"], arguments, strict=True):
            self.names[argument["%"]] = [name]
        for op in block["ops"]:
            if op["#"].endswith(".yield"):
                given = [name for value in op["I"] for name in self.names[value["%"]]]
            else:
                self.operator(op, {})
        self.program.operations = outside
        return number, arguments, given

    def parameter(self, op: Any) -> None:
        name, outputs = str(op["A"][-1]), op["O"]
        self.names[outputs["%"]] = [name]
        if op["OA"][0]:
            self.program.parameters.append(_variable(name, outputs["TT"]))

    def vector(self, type: str, op: Any, inputs: list[list[str]]) -> None:
        """Tensors put together or taken apart, which makes none."""
        values = [outputs["%"] for outputs in op["O"]]
        if type == "combine":
            self.names[values[0]] = [name for names in inputs for name in names]
        elif type == "split":
            self.names |= {value: [name] for value, name in zip(values, inputs[0], strict=True)}
        else:
            self.names[values[0]] = [inputs[0][self.attributes(op)["index"]]]

    def feed(self, op: Any) -> None:
        name, outputs = str(self.attributes(op)["name"]), op["O"][0]
        self.names[outputs["%"]] = [name]
        self.program.inputs.append(_variable(name, outputs["TT"]))

    def result(self, op: Any, read: list[str]) -> None:
        """A tensor by the name that it is returned under; one that has another name gets this one too."""
        named = self.attributes(op)
        name = str(named.get("name", named.get("output_name")))
        if read != [name] or name in self.program.results or name in (v.name for v in self.program.inputs):
            name = f"fetch_{len(self.program.results)}"
            self.program.operations.append(PaddleOperation("assign", {"X": read}, {"Out": [name]}, {}))
        self.program.results.append(name)

    def output(self, type: str, outputs: Any, wanted: dict[int, str]) -> list[str]:
        value, kind = outputs["%"], outputs.get("TT", {})
        name = str(wanted.get(value, f"{type}_{value}"))
        vector = str(kind.get("#", "")).endswith("t_vec")
        self.names[value] = [f"{name}_{i}" for i in range(len(kind["D"]))] if vector else [name]
        return self.names[value]


def _operation(
    type: str, inputs: list[list[str]], outputs: list[list[str]], attributes: dict[str, Any]
) -> PaddleOperation:
    """An operator with the names of 2.x."""
    left, _, changes = ROWS.get(type, "").partition("/")
    left, _, right = left.partition("->")
    old, *fields = left.split(" ")
    for change in changes.split():
        theirs, _, ours = change.partition(">")
        if theirs in attributes:
            attributes[ours] = attributes.pop(theirs)
    slots = [field for field in fields if field and ":" not in field]
    attributes |= {name: int(value) for name, colon, value in (field.partition(":") for field in fields) if colon}
    if type == "full_int_array":
        attributes["shape"] = [len(attributes["values"])]
    read = zip(slots or ("X", "Y"), inputs, strict=False)
    result: dict[str, Sequence[str]] = dict(zip(right.split() or ["Out"], outputs, strict=False))
    used: dict[str, Sequence[str]] = {slot: names for slot, names in read if names and slot != "_"}
    return PaddleOperation(old or type, used, result, attributes)
