"""Files: the protobuf wire format, reading models without their weights, writing outputs atomically."""
