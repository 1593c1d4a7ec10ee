package org.tenon.example;

import java.nio.ByteBuffer;
import org.tenon.digits.Network;

/** The network of digits.onnx: an image of 8 x 8 pixels has one of ten classes. */
final class Digits {
    static final int[] SEVEN = {
        0, 0, 112, 239, 96, 0, 0, 0,
        0, 0, 32, 223, 239, 32, 0, 0,
        0, 0, 0, 80, 255, 96, 0, 0,
        0, 0, 0, 80, 255, 143, 32, 0,
        0, 80, 223, 255, 239, 175, 64, 0,
        0, 80, 112, 191, 175, 0, 0, 0,
        0, 0, 64, 239, 16, 0, 0, 0,
        0, 0, 159, 175, 0, 0, 0, 0,
    };

    private Digits() {}

    static String answer(int[] pixels) {
        ByteBuffer tensors = Network.tensors();
        for (int i = 0; i < pixels.length; i++) {
            tensors.putFloat(Network.DIGITS_image + 4 * i, pixels[i]);
        }
        Network.run();
        int best = 0;
        for (int i = 1; i < Network.DIGITS_probabilities_ELEMENTS; i++) {
            if (probability(tensors, i) > probability(tensors, best)) {
                best = i;
            }
        }
        return "digit " + best + ", probability " + Math.round(100 * probability(tensors, best)) + " %";
    }

    private static float probability(ByteBuffer tensors, int digit) {
        return tensors.getFloat(Network.DIGITS_probabilities + 4 * digit);
    }
}
