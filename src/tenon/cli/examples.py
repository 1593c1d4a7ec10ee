"""Examples at the end of each command's help: what a line does, and the line.  A test runs all of them."""

from __future__ import annotations

PROGRAM: tuple[tuple[str, str], ...] = (
    ("Classify a picture", "tenon run model.onnx photo.jpg"),
    ("Make C code, weights and a header for a microcontroller", "tenon compile model.onnx --target stm32f4 -o net"),
)
"""The examples of ``tenon --help``."""

EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "run": (
        ("Print the three most probable classes of a picture", "tenon run model.onnx photo.jpg --top 3"),
        ("Run on an array and keep the outputs", "tenon run model.onnx --input image=x.npy --output out.npz"),
        ("Let a language model go on with a text", "tenon run words.onnx --prompt 'Once upon a time' --max-tokens 20"),
    ),
    "chat": (
        ("Ask one question", "tenon chat words.onnx --prompt 'Why is the sky blue?' --max-tokens 20"),
        ("Vary the answer, repeatably", "tenon chat words.onnx --prompt Hello --temperature 0.7 --seed 1"),
    ),
    "serve": (
        ("Answer requests of this machine", "tenon serve words.onnx --port 8000"),
        ("Answer those of others, too, in two threads", "tenon serve words.onnx --host 0.0.0.0 --threads 2"),
    ),
    "benchmark": (
        ("Time two networks in two threads", "tenon benchmark model.onnx model.tflite --threads 2"),
        ("Count the instructions on an emulated Cortex-M4", "tenon benchmark model.onnx --target cortex-m4"),
    ),
    "profile": (
        ("List the slowest operators", "tenon profile model.onnx"),
        ("Write the profile as a page", "tenon profile model.onnx --html profile.html"),
    ),
    "validate": (
        (
            "Compare with ONNX Runtime on recorded inputs",
            "tenon validate model.onnx --data samples.npy --against onnxruntime",
        ),
        ("Name the first layer that differs", "tenon validate model.onnx --data samples.npy --layers"),
    ),
    "evaluate": (
        (
            "Measure the share of right answers",
            "tenon evaluate model.onnx --data samples.npy --ground-truth classes.txt",
        ),
        (
            "The same of a bundle, by the five best answers",
            "tenon evaluate net --data photos --ground-truth truth.txt --metric top5",
        ),
        (
            "Measure how well a language model predicts a text",
            "tenon evaluate words.onnx --data story.txt --metric perplexity",
        ),
    ),
    "compare": (
        ("See what quantisation costs", "tenon compare model.onnx int8.onnx --data samples.npy"),
        ("Compare layer by layer", "tenon compare model.onnx int8.onnx --data samples.npy --layers"),
    ),
    "verify": (
        ("Verify the integer arithmetic on this machine", "tenon verify model.tflite"),
        ("The same on an emulated Cortex-M4", "tenon verify model.tflite --target cortex-m4"),
    ),
    "bench-op": (
        ("List the operators", "tenon bench-op --list"),
        ("Time convolutions", "tenon bench-op --filter 'Conv.*' --seconds 0.1"),
    ),
    "compile": (
        ("Compile for this machine", "tenon compile model.onnx -o net"),
        ("Make an Arduino library", "tenon compile model.onnx --target cortex-m4 --emit arduino -o net"),
    ),
    "tune": (
        ("Measure the algorithms of each layer", "tenon tune model.onnx"),
        ("For two threads, into a table of one's own", "tenon tune model.onnx --threads 2 --table tuning.sqlite"),
    ),
    "convert": (
        ("Compile the models of a deployment file", "tenon convert --config deploy.yml"),
        ("Only read the file and its models", "tenon convert --config deploy.yml --check"),
    ),
    "sdk": (
        ("Build the C library for this machine", "tenon sdk -o sdk"),
        ("Build it for a Raspberry Pi", "tenon sdk --target aarch64 -o sdk"),
    ),
    "targets": (
        ("List the targets", "tenon targets"),
        ("The same for programs", "tenon targets --json"),
    ),
    "quantize": (
        ("Calibrate on pictures of a folder", "tenon quantize model.onnx --data photos -o int8.onnx"),
        (
            "Keep at least 30 dB at the outputs",
            "tenon quantize model.onnx --data photos --min-sqnr 30 -o int8.tflite",
        ),
    ),
    "optimize": (
        ("Write the optimised network", "tenon optimize model.onnx -o smaller.onnx"),
        ("Write it as TFLite", "tenon optimize model.onnx -o model-fp32.tflite"),
    ),
    "inspect": (
        ("See sizes and operators", "tenon inspect model.onnx"),
        ("See whether it fits into 64 KiB of RAM", "tenon inspect model.onnx --target cortex-m4 --ram 64K --layers"),
    ),
    "devices": (
        ("List the devices of devices.yml", "tenon devices"),
        ("See whether one of them answers", "tenon devices pi4"),
    ),
    "deploy": (
        ("Put a network on a device", "tenon deploy model.onnx --device pi4"),
        ("Go back to the version before", "tenon deploy model --device pi4 --rollback"),
    ),
    "encrypt": (
        ("Encrypt a bundle", "tenon encrypt net.tenon --key-file key.txt -o net-secret.tenon"),
        ("Encrypt a model", "tenon encrypt model.onnx --key-file key.txt -o model.onnx.enc"),
    ),
    "decrypt": (
        ("Decrypt a bundle", "tenon decrypt secret.tenon --key-file key.txt -o plain.tenon"),
        ("With a key from the environment", "tenon decrypt secret.tenon --key-env NET_KEY -o plain.tenon"),
    ),
    "sign": (
        ("Sign version 3 of a bundle", "tenon sign net.tenon --key-file private.pem --version 3 -o signed.tenon"),
        ("Verify a signature", "tenon sign signed-2.tenon --public-key public.pem"),
    ),
    "sbom": (
        ("Print the bill of materials", "tenon sbom net.tenon"),
        ("Write it to a file", "tenon sbom net.tenon -o sbom.json"),
    ),
    "delta": (
        ("Make an update", "tenon delta net.tenon new.tenon -o update.delta"),
        ("The same, for programs", "tenon delta net.tenon new.tenon -o update.delta --json"),
    ),
    "patch": (
        ("Apply an update", "tenon patch net.tenon net.delta -o new-net.tenon"),
        (
            "Apply an update that must be signed",
            "tenon patch net.tenon signed.delta -o new-net.tenon --public-key public.pem",
        ),
    ),
}
