"""Files of whisper.cpp: Whisper models with their mel bands and vocabulary (``ggml-*.bin``)."""
