"""What importers of related formats share."""
