package org.tenon.example;

import android.app.Activity;
import android.os.Bundle;
import android.util.Log;
import android.widget.TextView;

/** Shows the answer of the network for one image. */
public final class MainActivity extends Activity {
    @Override
    protected void onCreate(Bundle state) {
        super.onCreate(state);
        String answer = Digits.answer(Digits.SEVEN);
        Log.i("digits", answer);
        TextView view = new TextView(this);
        view.setText(answer);
        setContentView(view);
    }
}
