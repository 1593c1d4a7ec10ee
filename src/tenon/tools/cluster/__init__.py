"""Work on several processes or machines, by Dask's scheduler, or in this process.

Work is cut into items that have a content address and depend on nothing else, so that an item may run on any worker, be
repeated where a worker dies, and give what it would have given here.
"""

from __future__ import annotations

from tenon.tools.cluster.opening import open_pool as open_pool
from tenon.tools.cluster.pool import Worker as Worker
from tenon.tools.cluster.pool import WorkerPool as WorkerPool
from tenon.tools.cluster.work import WorkItem as WorkItem
from tenon.tools.cluster.work import content_key as content_key
