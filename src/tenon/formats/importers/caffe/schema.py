"""The part of caffe.proto that inference and rewriting need, with the layers of the well-known forks.

Numbers of Caffe's own fields are those of BVLC Caffe; fields of forks (SSD, Fast R-CNN, R-FCN, YOLO and ShuffleNet
ports) have the numbers that most of them share.  Binary files hold weights: what layers do is read from the text
whenever there is one.
"""

from __future__ import annotations

from tenon.formats.wire.protobuf import FieldRow, Schema

_FILLER: dict[str, FieldRow] = {
    "type": (1, "string", "constant"), "value": (2, "float"), "min": (3, "float"), "max": (4, "float", 1.0),
    "mean": (5, "float"), "std": (6, "float", 1.0), "sparse": (7, "int32", -1), "variance_norm": (8, "VarianceNorm"),
}  # fmt: skip

_PARAMETERS: dict[str, dict[str, FieldRow]] = {
    "ArgMaxParameter": {"out_max_val": (1, "bool"), "top_k": (2, "uint32", 1), "axis": (3, "int32")},
    "AccuracyParameter": {"top_k": (1, "uint32", 1), "axis": (2, "int32", 1), "ignore_label": (3, "int32")},
    "BatchNormParameter": {
        "use_global_stats": (1, "bool"), "moving_average_fraction": (2, "float", 0.999), "eps": (3, "float", 1e-5),
        "scale_filler": (5, "FillerParameter"), "bias_filler": (6, "FillerParameter"), "engine": (15, "Engine"),
    },
    "BiasParameter": {"axis": (1, "int32", 1), "num_axes": (2, "int32", 1), "filler": (3, "FillerParameter")},
    "BNParameter": {
        "slope_filler": (1, "FillerParameter"), "bias_filler": (2, "FillerParameter"), "momentum": (3, "float", 0.9),
        "eps": (4, "float", 1e-5), "frozen": (5, "bool"), "engine": (6, "Engine"),
    },
    "ClipParameter": {"min": (1, "float"), "max": (2, "float")},
    "ConcatParameter": {"axis": (2, "int32", 1), "concat_dim": (1, "uint32", 1)},
    "ConvolutionParameter": {
        "num_output": (1, "uint32"), "bias_term": (2, "bool", True), "pad": (3, "*uint32"),
        "kernel_size": (4, "*uint32"), "group": (5, "uint32", 1), "stride": (6, "*uint32"),
        "weight_filler": (7, "FillerParameter"), "bias_filler": (8, "FillerParameter"), "pad_h": (9, "uint32"),
        "pad_w": (10, "uint32"), "kernel_h": (11, "uint32"), "kernel_w": (12, "uint32"), "stride_h": (13, "uint32"),
        "stride_w": (14, "uint32"), "engine": (15, "Engine"), "axis": (16, "int32", 1),
        "force_nd_im2col": (17, "bool"), "dilation": (18, "*uint32"),
    },
    "CropParameter": {"axis": (1, "int32", 2), "offset": (2, "*uint32")},
    "DataParameter": {
        "source": (1, "string"), "scale": (2, "float", 1.0), "mean_file": (3, "string"), "batch_size": (4, "uint32"),
        "crop_size": (5, "uint32"), "mirror": (6, "bool"), "rand_skip": (7, "uint32"), "backend": (8, "Backend"),
        "force_encoded_color": (9, "bool"), "prefetch": (10, "uint32", 4),
    },
    "DetectionOutputParameter": {
        "num_classes": (1, "uint32"), "share_location": (2, "bool", True), "background_label_id": (3, "int32"),
        "nms_param": (4, "NonMaximumSuppressionParameter"), "code_type": (6, "CodeType"),
        "keep_top_k": (7, "int32", -1), "variance_encoded_in_target": (8, "bool"),
        "confidence_threshold": (9, "float"), "visualize": (10, "bool"), "visualize_threshold": (11, "float"),
        "save_file": (12, "string"), "save_output_param": (5, "SaveOutputParameter"),
    },
    "DropoutParameter": {"dropout_ratio": (1, "float", 0.5), "scale_train": (3, "bool", True)},
    "DummyDataParameter": {
        "data_filler": (1, "*FillerParameter"), "num": (2, "*uint32"), "channels": (3, "*uint32"),
        "height": (4, "*uint32"), "width": (5, "*uint32"), "shape": (6, "*BlobShape"),
    },
    "EltwiseParameter": {
        "operation": (1, "EltwiseOp", "SUM"), "coeff": (2, "*float"), "stable_prod_grad": (3, "bool", True),
    },
    "ELUParameter": {"alpha": (1, "float", 1.0)},
    "EmbedParameter": {
        "num_output": (1, "uint32"), "input_dim": (2, "uint32"), "bias_term": (3, "bool", True),
        "weight_filler": (4, "FillerParameter"), "bias_filler": (5, "FillerParameter"),
    },
    "ExpParameter": {"base": (1, "float", -1.0), "scale": (2, "float", 1.0), "shift": (3, "float")},
    "FlattenParameter": {"axis": (1, "int32", 1), "end_axis": (2, "int32", -1)},
    "HDF5DataParameter": {"source": (1, "string"), "batch_size": (2, "uint32"), "shuffle": (3, "bool")},
    "ImageDataParameter": {
        "source": (1, "string"), "batch_size": (4, "uint32", 1), "crop_size": (5, "uint32"),
        "new_height": (9, "uint32"), "new_width": (10, "uint32"), "is_color": (11, "bool", True),
        "root_folder": (12, "string"),
    },
    "InnerProductParameter": {
        "num_output": (1, "uint32"), "bias_term": (2, "bool", True), "weight_filler": (3, "FillerParameter"),
        "bias_filler": (4, "FillerParameter"), "axis": (5, "int32", 1), "transpose": (6, "bool"),
    },
    "InputParameter": {"shape": (1, "*BlobShape")},
    "InterpParameter": {
        "height": (1, "int32"), "width": (2, "int32"), "zoom_factor": (3, "int32", 1),
        "shrink_factor": (4, "int32", 1), "pad_beg": (5, "int32"), "pad_end": (6, "int32"),
    },
    "LogParameter": {"base": (1, "float", -1.0), "scale": (2, "float", 1.0), "shift": (3, "float")},
    "LRNParameter": {
        "local_size": (1, "uint32", 5), "alpha": (2, "float", 1.0), "beta": (3, "float", 0.75),
        "norm_region": (4, "NormRegion"), "k": (5, "float", 1.0), "engine": (6, "Engine"),
    },
    "MemoryDataParameter": {
        "batch_size": (1, "uint32"), "channels": (2, "uint32"), "height": (3, "uint32"), "width": (4, "uint32"),
    },
    "MVNParameter": {
        "normalize_variance": (1, "bool", True), "across_channels": (2, "bool"), "eps": (3, "float", 1e-9),
    },
    "NonMaximumSuppressionParameter": {
        "nms_threshold": (1, "float", 0.3), "top_k": (2, "int32"), "eta": (3, "float", 1.0),
    },
    "NormalizeParameter": {
        "across_spatial": (1, "bool", True), "scale_filler": (2, "FillerParameter"),
        "channel_shared": (3, "bool", True), "eps": (4, "float", 1e-10),
    },
    "ParameterParameter": {"shape": (1, "BlobShape")},
    "PermuteParameter": {"order": (1, "*uint32")},
    "PoolingParameter": {
        "pool": (1, "PoolMethod"), "kernel_size": (2, "uint32"), "stride": (3, "uint32", 1), "pad": (4, "uint32"),
        "kernel_h": (5, "uint32"), "kernel_w": (6, "uint32"), "stride_h": (7, "uint32"), "stride_w": (8, "uint32"),
        "pad_h": (9, "uint32"), "pad_w": (10, "uint32"), "engine": (11, "Engine"), "global_pooling": (12, "bool"),
        "round_mode": (13, "RoundMode"), "ceil_mode": (1013, "bool", True),
    },
    "PowerParameter": {"power": (1, "float", 1.0), "scale": (2, "float", 1.0), "shift": (3, "float")},
    "PReLUParameter": {"filler": (1, "FillerParameter"), "channel_shared": (2, "bool")},
    "PriorBoxParameter": {
        "min_size": (1, "*float"), "max_size": (2, "*float"), "aspect_ratio": (3, "*float"), "flip": (4, "bool", True),
        "clip": (5, "bool"), "variance": (6, "*float"), "img_size": (7, "uint32"), "img_h": (8, "uint32"),
        "img_w": (9, "uint32"), "step": (10, "float"), "step_h": (11, "float"), "step_w": (12, "float"),
        "offset": (13, "float", 0.5),
    },
    "ProposalParameter": {
        "feat_stride": (1, "uint32", 16), "base_size": (2, "uint32", 16), "min_size": (3, "uint32", 16),
        "ratio": (4, "*float"), "scale": (5, "*float"), "pre_nms_topn": (6, "uint32", 6000),
        "post_nms_topn": (7, "uint32", 300), "nms_thresh": (8, "float", 0.7),
    },
    "PSROIAlignParameter": {  # of a fork without a schema of its own: the numbers are ours, the names those of its code
        "spatial_scale": (1, "float"), "output_dim": (2, "int32"), "group_size": (3, "int32"),
        "sample_num": (4, "int32", 2),
    },
    "PSROIPoolingParameter": {
        "spatial_scale": (1, "float"), "output_dim": (2, "int32"), "group_size": (3, "int32"),
    },
    "PythonParameter": {"module": (1, "string"), "layer": (2, "string"), "param_str": (3, "string")},
    "RecurrentParameter": {
        "num_output": (1, "uint32"), "weight_filler": (2, "FillerParameter"), "bias_filler": (3, "FillerParameter"),
        "debug_info": (4, "bool"), "expose_hidden": (5, "bool"),
    },
    "ReductionParameter": {"operation": (1, "ReductionOp"), "axis": (2, "int32"), "coeff": (3, "float", 1.0)},
    "RegionParameter": {
        "classes": (1, "uint32", 20), "coords": (2, "uint32", 4), "boxes_of_each_grid": (3, "uint32", 5),
        "softmax": (4, "bool"),
    },
    "ReLUParameter": {"negative_slope": (1, "float"), "engine": (2, "Engine")},
    "ReLU6Parameter": {"threshold": (1, "float", 6.0)},
    "ReorgParameter": {"stride": (1, "uint32", 2), "reverse": (2, "bool")},
    "ReshapeParameter": {"shape": (1, "BlobShape"), "axis": (2, "int32"), "num_axes": (3, "int32", -1)},
    "ROIPoolingParameter": {
        "pooled_h": (1, "uint32"), "pooled_w": (2, "uint32"), "spatial_scale": (3, "float", 1.0),
    },
    "SaveOutputParameter": {
        "output_directory": (1, "string"), "output_name_prefix": (2, "string"), "output_format": (3, "string"),
        "label_map_file": (4, "string"), "name_size_file": (5, "string"), "num_test_image": (6, "uint32"),
    },
    "ScaleParameter": {
        "axis": (1, "int32", 1), "num_axes": (2, "int32", 1), "filler": (3, "FillerParameter"),
        "bias_term": (4, "bool"), "bias_filler": (5, "FillerParameter"),
    },
    "ShuffleChannelParameter": {"group": (1, "uint32", 1)},
    "SliceParameter": {"axis": (3, "int32", 1), "slice_point": (2, "*uint32"), "slice_dim": (1, "uint32", 1)},
    "SoftmaxParameter": {"engine": (1, "Engine"), "axis": (2, "int32", 1)},
    "SPPParameter": {"pyramid_height": (1, "uint32"), "pool": (2, "PoolMethod"), "engine": (6, "Engine")},
    "SwishParameter": {"beta": (1, "float", 1.0)},
    "ThresholdParameter": {"threshold": (1, "float")},
    "TileParameter": {"axis": (1, "int32", 1), "tiles": (2, "int32")},
    "TransformationParameter": {
        "scale": (1, "float", 1.0), "mirror": (2, "bool"), "crop_size": (3, "uint32"), "mean_file": (4, "string"),
        "mean_value": (5, "*float"), "force_color": (6, "bool"), "force_gray": (7, "bool"),
        "resize_param": (8, "ResizeParameter"),
    },
    "ResizeParameter": {"height": (3, "uint32"), "width": (4, "uint32")},
    "UpsampleParameter": {
        "scale": (1, "int32", 2), "scale_h": (2, "int32"), "scale_w": (3, "int32"), "pad_out_h": (4, "bool"),
        "pad_out_w": (5, "bool"), "upsample_h": (6, "int32"), "upsample_w": (7, "int32"),
    },
}  # fmt: skip

_LAYER: dict[str, FieldRow] = {
    "name": (1, "string"), "type": (2, "string"), "bottom": (3, "*string"), "top": (4, "*string"),
    "loss_weight": (5, "*float"), "param": (6, "*ParamSpec"), "blobs": (7, "*BlobProto"),
    "include": (8, "*NetStateRule"), "exclude": (9, "*NetStateRule"), "phase": (10, "Phase"),
    "propagate_down": (11, "*bool"), "transform_param": (100, "TransformationParameter"),
    "accuracy_param": (102, "AccuracyParameter"), "argmax_param": (103, "ArgMaxParameter"),
    "batch_norm_param": (139, "BatchNormParameter"), "bias_param": (141, "BiasParameter"),
    "bn_param": (1137, "BNParameter"), "clip_param": (1148, "ClipParameter"), "concat_param": (104, "ConcatParameter"),
    "convolution_param": (106, "ConvolutionParameter"), "crop_param": (144, "CropParameter"),
    "data_param": (107, "DataParameter"), "detection_output_param": (204, "DetectionOutputParameter"),
    "dropout_param": (108, "DropoutParameter"), "dummy_data_param": (109, "DummyDataParameter"),
    "eltwise_param": (110, "EltwiseParameter"), "elu_param": (140, "ELUParameter"),
    "embed_param": (137, "EmbedParameter"), "exp_param": (111, "ExpParameter"),
    "flatten_param": (135, "FlattenParameter"), "hdf5_data_param": (112, "HDF5DataParameter"),
    "image_data_param": (115, "ImageDataParameter"), "inner_product_param": (117, "InnerProductParameter"),
    "input_param": (143, "InputParameter"), "interp_param": (225, "InterpParameter"),
    "log_param": (134, "LogParameter"), "lrn_param": (118, "LRNParameter"),
    "memory_data_param": (119, "MemoryDataParameter"), "mvn_param": (120, "MVNParameter"),
    "norm_param": (206, "NormalizeParameter"), "parameter_param": (145, "ParameterParameter"),
    "permute_param": (202, "PermuteParameter"), "pooling_param": (121, "PoolingParameter"),
    "power_param": (122, "PowerParameter"), "prelu_param": (131, "PReLUParameter"),
    "prior_box_param": (203, "PriorBoxParameter"), "proposal_param": (226, "ProposalParameter"),
    "psroi_align_param": (8266712, "PSROIAlignParameter"), "psroi_pooling_param": (153, "PSROIPoolingParameter"),
    "python_param": (130, "PythonParameter"),
    "recurrent_param": (146, "RecurrentParameter"), "reduction_param": (136, "ReductionParameter"),
    "region_param": (227, "RegionParameter"), "relu_param": (123, "ReLUParameter"),
    "relu6_param": (228, "ReLU6Parameter"), "reorg_param": (159, "ReorgParameter"),
    "reshape_param": (133, "ReshapeParameter"), "roi_pooling_param": (8266711, "ROIPoolingParameter"),
    "scale_param": (142, "ScaleParameter"), "shuffle_channel_param": (164, "ShuffleChannelParameter"),
    "slice_param": (126, "SliceParameter"), "softmax_param": (125, "SoftmaxParameter"),
    "spp_param": (132, "SPPParameter"), "swish_param": (147, "SwishParameter"),
    "threshold_param": (128, "ThresholdParameter"), "tile_param": (138, "TileParameter"),
    "upsample_param": (152, "UpsampleParameter"),
}  # fmt: skip

_V1_LAYER: dict[str, FieldRow] = {
    "layer": (1, "V0LayerParameter"), "bottom": (2, "*string"), "top": (3, "*string"), "name": (4, "string"),
    "type": (5, "V1LayerType"), "blobs": (6, "*BlobProto"), "blobs_lr": (7, "*float"),
    "weight_decay": (8, "*float"), "param": (1001, "*string"), "include": (32, "*NetStateRule"),
    "exclude": (33, "*NetStateRule"), "loss_weight": (35, "*float"), "accuracy_param": (27, "AccuracyParameter"),
    "argmax_param": (23, "ArgMaxParameter"), "concat_param": (9, "ConcatParameter"),
    "convolution_param": (10, "ConvolutionParameter"), "data_param": (11, "DataParameter"),
    "dropout_param": (12, "DropoutParameter"), "dummy_data_param": (26, "DummyDataParameter"),
    "eltwise_param": (24, "EltwiseParameter"), "exp_param": (41, "ExpParameter"),
    "hdf5_data_param": (13, "HDF5DataParameter"), "image_data_param": (15, "ImageDataParameter"),
    "inner_product_param": (17, "InnerProductParameter"), "lrn_param": (18, "LRNParameter"),
    "memory_data_param": (22, "MemoryDataParameter"), "mvn_param": (34, "MVNParameter"),
    "pooling_param": (19, "PoolingParameter"), "power_param": (21, "PowerParameter"),
    "relu_param": (30, "ReLUParameter"), "softmax_param": (39, "SoftmaxParameter"),
    "slice_param": (31, "SliceParameter"), "threshold_param": (25, "ThresholdParameter"),
    "transform_param": (36, "TransformationParameter"),
}  # fmt: skip

_V0_LAYER: dict[str, FieldRow] = {
    "name": (1, "string"), "type": (2, "string"), "num_output": (3, "uint32"), "biasterm": (4, "bool", True),
    "weight_filler": (5, "FillerParameter"), "bias_filler": (6, "FillerParameter"), "pad": (7, "uint32"),
    "kernelsize": (8, "uint32"), "group": (9, "uint32", 1), "stride": (10, "uint32", 1), "pool": (11, "PoolMethod"),
    "dropout_ratio": (12, "float", 0.5), "local_size": (13, "uint32", 5), "alpha": (14, "float", 1.0),
    "beta": (15, "float", 0.75), "source": (16, "string"), "scale": (17, "float", 1.0), "meanfile": (18, "string"),
    "batchsize": (19, "uint32"), "cropsize": (20, "uint32"), "mirror": (21, "bool"), "k": (22, "float", 1.0),
    "blobs": (50, "*BlobProto"), "blobs_lr": (51, "*float"), "weight_decay": (52, "*float"),
    "new_num": (60, "int32"), "new_channels": (61, "int32"), "new_height": (62, "int32"), "new_width": (63, "int32"),
    "concat_dim": (65, "uint32", 1),
}  # fmt: skip

V1_TYPES = {
    "NONE": 0, "ACCURACY": 1, "BNLL": 2, "CONCAT": 3, "CONVOLUTION": 4, "DATA": 5, "DROPOUT": 6, "EUCLIDEAN_LOSS": 7,
    "FLATTEN": 8, "HDF5_DATA": 9, "HDF5_OUTPUT": 10, "IM2COL": 11, "IMAGE_DATA": 12, "INFOGAIN_LOSS": 13,
    "INNER_PRODUCT": 14, "LRN": 15, "MULTINOMIAL_LOGISTIC_LOSS": 16, "POOLING": 17, "RELU": 18, "SIGMOID": 19,
    "SOFTMAX": 20, "SOFTMAX_LOSS": 21, "SPLIT": 22, "TANH": 23, "WINDOW_DATA": 24, "ELTWISE": 25, "POWER": 26,
    "SIGMOID_CROSS_ENTROPY_LOSS": 27, "HINGE_LOSS": 28, "MEMORY_DATA": 29, "ARGMAX": 30, "THRESHOLD": 31,
    "DUMMY_DATA": 32, "SLICE": 33, "MVN": 34, "ABSVAL": 35, "SILENCE": 36, "CONTRASTIVE_LOSS": 37, "EXP": 38,
    "DECONVOLUTION": 39,
}  # fmt: skip

SCHEMA = Schema(
    {
        "NetParameter": {
            "name": (1, "string"),
            "layers": (2, "*V1LayerParameter"),
            "input": (3, "*string"),
            "input_dim": (4, "*int32"),
            "force_backward": (5, "bool"),
            "state": (6, "NetState"),
            "debug_info": (7, "bool"),
            "input_shape": (8, "*BlobShape"),
            "layer": (100, "*LayerParameter"),
        },
        "LayerParameter": _LAYER,
        "V1LayerParameter": _V1_LAYER,
        "V0LayerParameter": _V0_LAYER,
        "BlobShape": {"dim": (1, "*int64")},
        "BlobProto": {
            "num": (1, "int32"),
            "channels": (2, "int32"),
            "height": (3, "int32"),
            "width": (4, "int32"),
            "data": (5, "*float"),
            "shape": (7, "BlobShape"),
            "double_data": (8, "*double"),
        },
        "NetState": {"phase": (1, "Phase", "TEST"), "level": (2, "int32"), "stage": (3, "*string")},
        "NetStateRule": {
            "phase": (1, "Phase"),
            "min_level": (2, "int32"),
            "max_level": (3, "int32"),
            "stage": (4, "*string"),
            "not_stage": (5, "*string"),
        },
        "ParamSpec": {
            "name": (1, "string"),
            "share_mode": (2, "DimCheckMode"),
            "lr_mult": (3, "float", 1.0),
            "decay_mult": (4, "float", 1.0),
        },
        "FillerParameter": _FILLER,
        **_PARAMETERS,
    },
    enums={
        "Phase": {"TRAIN": 0, "TEST": 1},
        "Engine": {"DEFAULT": 0, "CAFFE": 1, "CUDNN": 2},
        "Backend": {"LEVELDB": 0, "LMDB": 1},
        "PoolMethod": {"MAX": 0, "AVE": 1, "STOCHASTIC": 2},
        "RoundMode": {"CEIL": 0, "FLOOR": 1},
        "EltwiseOp": {"PROD": 0, "SUM": 1, "MAX": 2, "MIN": 3},
        "NormRegion": {"ACROSS_CHANNELS": 0, "WITHIN_CHANNEL": 1},
        "ReductionOp": {"SUM": 1, "ASUM": 2, "SUMSQ": 3, "MEAN": 4},
        "CodeType": {"CORNER": 1, "CENTER_SIZE": 2, "CORNER_SIZE": 3},
        "VarianceNorm": {"FAN_IN": 0, "FAN_OUT": 1, "AVERAGE": 2},
        "DimCheckMode": {"STRICT": 0, "PERMISSIVE": 1},
        "V1LayerType": V1_TYPES,
    },
)
