"""Parts that importers of related formats share."""
