"""Parts that all languages of devices share: a launch for each step, and the host program with tables of the steps."""
