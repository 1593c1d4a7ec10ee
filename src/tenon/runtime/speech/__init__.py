"""Speech to text and text to speech by compiled networks."""
