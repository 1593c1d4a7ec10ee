"""ncnn: .param and .bin, as text and binary."""
