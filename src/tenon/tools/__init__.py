"""Work with networks and bundles: quantisation, tuning, deployment files, devices, metrics, comparison."""
