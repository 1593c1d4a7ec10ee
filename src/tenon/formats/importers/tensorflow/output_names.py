"""The outputs of TensorFlow's operators by name, in order; operators of one output are left out.

"name*attribute" is as many tensors as the attribute says, or as it lists types.  Source: the operator definitions in
tensorflow/core/ops of TensorFlow 2.21; without operators of training, input pipelines and accelerators.
"""

from __future__ import annotations

_TABLE = """
ApproxTopK TopK TopKV2: values indices
BatchSelfAdjointEigV2 Eig SelfAdjointEigV2: e v
BatchSvd Svd: s u v
BlockLSTM BlockLSTMV2 LSTMBlockCell: i cs f o ci co h
CTCBeamSearchDecoder: decoded_indices*top_paths decoded_values*top_paths decoded_shape*top_paths log_probability
CTCGreedyDecoder: decoded_indices decoded_values decoded_shape log_probability
CTCLoss CTCLossV2: loss gradient
CombinedNonMaxSuppression: nmsed_boxes nmsed_scores nmsed_classes valid_detections
CudnnRNN: output output_h output_c reserve_space
CudnnRNNV2 CudnnRNNV3: output output_h output_c reserve_space host_reserved
DecodeWav: audio sample_rate
DenseToDenseSetOperation DenseToSparseSetOperation SparseToSparseSetOperation: result_indices result_values
  result_shape
FractionalAvgPool FractionalMaxPool: output row_pooling_sequence col_pooling_sequence
FusedBatchNorm FusedBatchNormV2: y batch_mean batch_variance reserve_space_1 reserve_space_2
FusedBatchNormV3 _FusedBatchNormEx: y batch_mean batch_variance reserve_space_1 reserve_space_2 reserve_space_3
GRUBlockCell: r u c h
GenerateBoundingBoxProposals: rois roi_probabilities
ListDiff: out idx
LogMatrixDeterminant: sign log_abs_determinant
Lu: lu p
MaxPoolWithArgmax: output argmax
Merge RefMerge: output value_index
NearestNeighbors: nearest_center_indices nearest_center_distances
NonMaxSuppressionV4: selected_indices valid_outputs
NonMaxSuppressionV5: selected_indices selected_scores valid_outputs
Qr: q r
RaggedCross: output_values output_row_splits
RaggedFillEmptyRows: output_value_rowids output_values empty_row_indicator reverse_index_map
RaggedGather: output_nested_splits*OUTPUT_RAGGED_RANK output_dense_values
RaggedRange: rt_nested_splits rt_dense_values
RaggedTensorToSparse: sparse_indices sparse_values sparse_dense_shape
RefSwitch Switch: output_false output_true
SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits: loss backprop
SparseAdd: sum_indices sum_values sum_shape
SparseConcat SparseCross SparseCrossHashed SparseCrossV2 SparseReduceMaxSparse SparseReduceSumSparse SparseSlice:
  output_indices output_values output_shape
SparseFillEmptyRows: output_indices output_values empty_row_indicator reverse_index_map
SparseReorder SparseSparseMaximum SparseSparseMinimum: output_indices output_values
SparseReshape: output_indices output_shape
SparseSplit: output_indices*num_split output_values*num_split output_shape*num_split
TensorArrayConcat TensorArrayConcatV2 TensorArrayConcatV3: value lengths
TensorArrayV3: handle flow
TensorListConcat TensorListConcatV2: tensor lengths
TensorListPopBack: output_handle tensor
TopKUnique TopKWithUnique: topk topk_indices
Unique UniqueV2: y idx
UniqueWithCounts UniqueWithCountsV2: y idx count"""

OUTPUT_NAMES: dict[str, list[str]] = {
    operator: names.split()
    for operators, _, names in (line.partition(": ") for line in _TABLE.replace("\n  ", " ").strip().splitlines())
    for operator in operators.split()
}
