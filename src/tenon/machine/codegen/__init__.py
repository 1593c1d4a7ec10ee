"""From loop IR to text: proofs and counts on the tree, then a dialect that prints it."""
