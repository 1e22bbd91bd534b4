"""Values with schemas: the header that names a schema, schema registries, Avro and Protobuf as Arrow."""
