"""Small networks whose first layers can be computed in patches, in floats and in integers."""

from __future__ import annotations

from tenon.network import ops
from tenon.network.graph.graph import Graph
from tenon.network.graph.text import parse

FLOATS = """
graph "floats" {
  input %x: f32[1,11,9,3]
  const %w1: f32[8,3,3,3] = random(1)
  const %w2: f32[8,1,5,3] = random(2)
  const %w3: f32[8,8,1,1] = random(3)
  const %plane: f32[1,8,12,5] = random(4)
  const %w4: f32[6,8,3,3] = random(5)
  %t: f32[1,3,11,9] = Transpose(perm=(0, 3, 1, 2)) %x
  %a: f32[1,8,12,5] = Conv(pads=(2, 1, 1, 1), strides=(1, 2)) %t, %w1
  %b: f32[1,8,12,5] = Conv(group=8, pads=(4, 2, 4, 2), dilations=(2, 2)) %a, %w2
  %c: f32[1,8,12,5] = Conv() %b, %w3
  %d: f32[1,8,12,5] = Add() %c, %a
  %e: f32[1,8,12,5] = Add() %d, %plane
  %f: f32[1,8,6,4] = MaxPool(kernel_shape=(3, 2), strides=(2, 1), pads=(1, 0, 0, 0)) %e
  %g: f32[1,6,3,2] = Conv(auto_pad="SAME_UPPER", strides=(2, 2)) %f, %w4
  %h: f32[1,6,1,1] = GlobalAveragePool() %g
  output %h
}
"""

INTEGERS = """
graph "integers" {
  input %x: i8[1,4,13,6]
  const %w1: i8[8,4,3,3] = random(1)
  const %b1: i32[8] = [5, -7, 9, 1000, -200, 30, 4, 5]
  const %m: i32[1] = [1503238554]
  const %s: i32[1] = [-8]
  const %w2: i8[8,1,3,3] = random(2)
  const %w3: i8[8,8,1,1] = random(3)
  %a: i8[1,8,7,6] = IntegerConv(x_zero=-4, zero=3, pads=(1, 1, 1, 1), strides=(2, 1)) %x, %w1, %b1, %m, %s
  %b: i8[1,8,7,6] = IntegerConv(x_zero=3, zero=-9, group=8, pads=(1, 1, 1, 1)) %a, %w2, %b1, %m, %s
  %c: i8[1,8,7,6] = IntegerConv(x_zero=-9, zero=2) %b, %w3, %b1, %m, %s
  %d: i8[1,8,7,6] = IntegerAdd(rounding="float", zeros=(2, 3, -5), scales=(0.5, 0.5, 0.75)) %c, %a
  %e: i8[1,8,4,3] = IntegerAveragePool(kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1)) %d
  output %e
}
"""


def network(text: str) -> Graph:
    graph = parse(text, ops.registry(), fill=True)
    graph.source = "net.onnx"
    return graph
