"""distlog: a partitioned, offset-addressed log with Apache Kafka's file formats, and no broker."""
