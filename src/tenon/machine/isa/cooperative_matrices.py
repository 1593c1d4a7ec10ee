"""Products of tiles of f16 whose elements the threads of a subgroup hold together: cooperative matrices.

Which thread holds which element of a sum is not known.  Sums are therefore touched by these instructions alone, which
all 32 threads run: ``matrix_clear`` (operands: the first sum of each tile), ``matrix_f16`` (where rows of the left
factor lie in shared memory, then columns of the right one, then the sums; numbers: tiles down and across, elements from
row to row of both) and ``matrix_store`` (where the sums go, then those of one row of tiles; numbers: elements from row
to row).  Tiles are 16 x 16 x 16.  Their bodies give thread ``4 * g + t`` the rows g and g + 8 and the columns 2 * t,
2 * t + 1 and these plus 8.
"""

from __future__ import annotations

from tenon.machine.isa.base import ProductUnit
from tenon.network.graph.dtype import DType

MATRIX_F16 = ProductUnit("matrix_f16", DType.F16, DType.F16, DType.F32, (16, 16, 16))
