"""What the commands print that show a layer, or the whole job, at work."""
