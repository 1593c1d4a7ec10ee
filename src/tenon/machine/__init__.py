"""From kernels to machine code: loop IR, proofs, kernel generators, algorithms, planning, code generation, targets."""
