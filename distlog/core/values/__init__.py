"""Values with schemas: the header that names a schema, registries of schemas, Avro and Protobuf as Arrow."""
