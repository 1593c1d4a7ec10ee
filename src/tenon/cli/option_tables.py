"""What the help says of commands and options besides their own text: groups, panels, defaults and choices.

A key is an option's long name, or "COMMAND --option" where a command has another value.  An option that is in no panel,
or whose default nothing states, fails a test.
"""

from __future__ import annotations

GROUPS: dict[str, tuple[str, ...]] = {
    "Run and measure": ("run", "benchmark", "profile", "validate", "evaluate", "compare", "verify", "bench-op"),
    "Compile and deploy": ("compile", "tune", "convert", "sdk", "targets"),
    "Quantise and optimise": ("quantize", "optimize"),
    "Look inside": ("inspect",),
    "Devices": ("devices", "deploy"),
    "Protect and update": ("encrypt", "decrypt", "sign", "sbom", "delta", "patch"),
}
"""The commands under the titles of their groups, in the order in which ``tenon --help`` lists them."""

PANELS: dict[str, tuple[str, ...]] = {
    "Output": (
        "--output", "--out", "--emit", "--report", "--pareto", "--html", "--dot", "--text", "--dump", "--format",
        "--name", "--prefix", "--draw", "--top", "--threshold", "--overlap", "--labels", "--list", "--without-weights",
        "--json", "--verbose", "--version", "--help", "--install-completion", "--show-completion",
    ),
    "Model": (
        "--weights", "--shape", "--value", "--from", "--to", "--sha256", "--model", "--zoo", "--config", "--head",
        "--data-format", "--data-type", "--range",
    ),
    "Input": ("--image", "--input", "--data", "--samples", "--seed", "--ground-truth", "--metric"),
    "Image preprocessing": (
        "--mean", "--scale", "--channels", "--bgr", "--fit", "--resize", "--border", "--sampling", "--focus",
        "--compile-preprocess",
    ),
    "Comparison": ("--against", "--expected", "--min-sqnr", "--max-error", "--layers", "--check", "--filter"),
    "Quantisation": (
        "--scheme", "--method", "--rounding", "--bias-correction", "--range-search", "--equalisation", "--exclude",
        "--int16", "--fp16", "--change-concat-ranges", "--ranges", "--save-ranges", "--ranges-format",
    ),
    "Accuracy target": ("quantize --min-sqnr", "--max-drop", "quantize --metric", "--mixed-types"),
    "Target and compiler": ("--target", "--compiler", "--float-abi", "--c99", "--profile", "--offload"),
    "Optimisation": (
        "-O", "--precision", "--arithmetic", "--ram", "--max-weights", "--winograd", "--strassen",
        "--max-winograd-error", "--dot2", "--no-tuning", "--table", "--verify",
    ),
    "Threads and measurement": ("--threads", "--affinity", "--cores", "--rounds", "--warmup", "--seconds"),
    "Devices": ("--device", "--devices", "--keep", "--rollback", "--cluster"),
    "Keys and signatures": (
        "--encrypt", "--key-file", "--key-env", "--public-key", "--minimum-version", "--obfuscate", "sign --version",
    ),
}  # fmt: skip
"""The options under the titles of their panels, in the order in which the help lists them."""

NOT_WRITTEN, NONE, FROM_FILE = "not written", "none", "as in the file"

DEFAULTS: dict[str, str] = {
    "-O": "2",
    "--affinity": "all",
    "--against": "the runtime of the model's format",
    "--arithmetic": "tflm for TFLite models on microcontrollers, else onnx",
    "compare --arithmetic": "onnx",
    "--border": "as the model states, else 114",
    "--c99": "gnu",
    "--channels": "as the model states, else rgb",
    "--cluster": "this process",
    "--compile-preprocess": "left to the program",
    "--compiler": "the bundled zig",
    "--config": "no steps",
    "--data": NONE,
    "--data-format": FROM_FILE,
    "--data-type": FROM_FILE,
    "--device": "this machine",
    "deploy --device": "must be given",
    "--devices": "devices.yml",
    "--dot": NOT_WRITTEN,
    "--dot2": "measured for host, 4 for other targets",
    "--draw": NOT_WRITTEN,
    "--dump": NOT_WRITTEN,
    "--emit": "the usual parts",
    "--equalisation": "if it helps",
    "--exclude": NONE,
    "--expected": "run the source framework",
    "--fit": "as the model states, else stretch",
    "--float-abi": "that of the target",
    "--fp16": NONE,
    "--from": "the inputs",
    "--ground-truth": NONE,
    "--head": "recognised from the model",
    "--html": NOT_WRITTEN,
    "--image": NONE,
    "--input": NONE,
    "--int16": NONE,
    "--key-env": "must be given, or --key-file",
    "--key-file": "TENON_KEY_FILE, else TENON_KEY, else none",
    "encrypt --key-file": "must be given, or --key-env",
    "decrypt --key-file": "must be given, or --key-env",
    "sbom --key-file": NONE,
    "sbom --key-env": NONE,
    "sign --key-file": "must be given, or --public-key",
    "--labels": "numbers instead of names",
    "--max-drop": "no limit",
    "--max-error": "0.01; 0.05 in 16 bits; 0.5 if quantised",
    "--max-weights": "no limit",
    "--max-winograd-error": "no limit",
    "--mean": "as the model states, else 0",
    "--metric": "same largest output as in float",
    "--min-sqnr": "no limit",
    "validate --min-sqnr": "40; 27 in fp16 and bf16; 14 if quantised",
    "--minimum-version": "0",
    "--model": "all",
    "--name": "the name of the model's file",
    "--obfuscate": "names stay",
    "--offload": NONE,
    "optimize --out": "beside the model",
    "run --output": NOT_WRITTEN,
    "sbom --output": "standard output",
    "sign --output": "the bundle itself",
    "--overlap": "0.45",
    "--pareto": NOT_WRITTEN,
    "--precision": "fp32",
    "--prefix": NONE,
    "--public-key": "signatures are not checked",
    "sign --public-key": "must be given, or --key-file",
    "--ram": "no limit",
    "--range": "normal numbers for floats, 0 and 1 for integers",
    "--ranges": "found on samples",
    "--ranges-format": "by the ending of the file",
    "--report": NOT_WRITTEN,
    "--resize": "as the model states, else the input's size",
    "--sampling": "as the model states, else smooth",
    "--save-ranges": NOT_WRITTEN,
    "evaluate --samples": "all",
    "--scale": "as the model states, else 1",
    "--sha256": "not checked",
    "--shape": FROM_FILE,
    "--strassen": "2; 0 on microcontrollers",
    "--table": "tuning.sqlite in the cache",
    "--target": "host",
    "convert --target": "those of the file",
    "--text": NOT_WRITTEN,
    "--threads": "8; 1 on microcontrollers",
    "--threshold": "0.5",
    "validate --threshold": "0.999, or 0.98 if quantised",
    "--to": "the outputs",
    "--top": "5",
    "--value": NONE,
    "sign --version": "0",
    "--weights": "found beside the model",
    "--winograd": "4; 0 on microcontrollers, 2 for their integers",
    "--zoo": NONE,
}
"""The defaults of options whose parameter has none: what happens without them, in words."""

VARIABLES: dict[str, str] = {
    "-O": "TENON_OPTIMIZE",
    "--arithmetic": "TENON_ARITHMETIC",
    "--compiler": "TENON_CC",
    "compile --emit": "TENON_EMIT",
    "--name": "TENON_NAME",
    "--no-tuning": "TENON_NO_TUNING",
    "--precision": "TENON_PRECISION",
    "--profile": "TENON_PROFILE",
    "--ram": "TENON_RAM",
    "--table": "TENON_TUNING",
    "--target": "TENON_TARGET",
    "compile --threads": "TENON_THREADS",
    "deploy --threads": "TENON_THREADS",
    "--verify": "TENON_VERIFY",
}
"""The environment variables that are read where the option is not given."""

CHOICES: dict[str, tuple[str, ...]] = {
    "-O": ("0", "1", "2"),
    "--arithmetic": ("tflm", "litert", "onnx", "float"),
    "--c99": ("gnu", "strict"),
    "--channels": ("rgb", "bgr"),
    "--cores": ("all", "big", "little"),
    "--fit": ("stretch", "crop", "letterbox"),
    "--float-abi": ("soft", "softfp", "hard"),
    "benchmark --format": ("plain", "tengine"),
    "profile --format": ("plain", "mace"),
    "--method": ("auto", "min-max", "moving-average", "percentile", "mse", "entropy", "aciq", "enhance"),
    "--obfuscate": ("layers", "all"),
    "--precision": ("fp32", "fp16", "bf16"),
    "--ranges-format": ("yaml", "tengine", "mace", "glow"),
    "--rounding": ("auto", "nearest", "gptq", "adaround", "reconstruction"),
    "--sampling": ("smooth", "bilinear", "nearest"),
    "--scheme": (
        "auto", "int8", "int8-symmetric", "int8-per-tensor", "int8-power-of-two", "uint8", "uint8-per-channel",
        "int16x8", "int4-weights", "int8-weights-only", "int4-weights-only", "fp16", "bf16",
    ),
    "--strassen": ("0", "1", "2"),
    "--winograd": ("0", "2", "4"),
}  # fmt: skip
"""The values of options that have few."""


def entry(table: dict[str, str] | dict[str, tuple[str, ...]], command: str, option: str) -> str | tuple[str, ...]:
    """The value of an option of a command in a table; "" if it has none."""
    return table.get(f"{command} {option}", table.get(option, ""))


def panel(command: str, option: str) -> str:
    """The title of an option's panel; "" if it is in none."""
    own = f"{command} {option}"
    exact = (title for title, names in PANELS.items() if own in names)
    return next(exact, next((title for title, names in PANELS.items() if option in names), ""))
