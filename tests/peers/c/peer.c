/* The stories of librdkafka's C API: peer ADDRESS ADDRESS-WITH-ACLS PREFIX [STORY...] */

#include <errno.h>
#include <librdkafka/rdkafka.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE_S 60
#define PATIENCE_MS (PATIENCE_S * 1000)
#define FIRST_MS 1700000000000LL

/* What a story is given: a server, and a name for its topic, its group and its transactions. */
static const char *address, *secured;
static char topic[256], story[64];
static long long begun_ms;

static long long now_ms(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return at.tv_sec * 1000LL + at.tv_nsec / 1000000;
}

/* End the story's process with a line about what is wrong. */
static void fail(const char *form, ...) {
  va_list values;
  va_start(values, form);
  printf("failed %s ", story);
  vprintf(form, values);
  printf("\n");
  fflush(stdout);
  _exit(0);
}

static void same(const char *what, long long found, long long expected) {
  if (found != expected) fail("%s: expected %lld, found %lld", what, expected, found);
}

static void fine(const char *what, rd_kafka_resp_err_t code) {
  if (code) fail("%s: %s", what, rd_kafka_err2str(code));
}

static void done(const char *what, rd_kafka_error_t *error) {
  if (error) fail("%s: %s", what, rd_kafka_error_string(error));
}

static void delivered(rd_kafka_t *client, const rd_kafka_message_t *message, void *opaque) {
  (void)client;
  (void)opaque;
  fine("a record", message->err);
  long long *offsets = message->_private;
  if (offsets) *offsets = message->offset;
}

/* A client with settings, as name, value, ..., NULL. */
static rd_kafka_t *client(rd_kafka_type_t type, const char *at, ...) {
  char text[512];
  rd_kafka_conf_t *conf = rd_kafka_conf_new();
  rd_kafka_conf_set(conf, "bootstrap.servers", at, text, sizeof text);
  rd_kafka_conf_set(conf, "log_level", "0", text, sizeof text);
  va_list settings;
  va_start(settings, at);
  for (const char *name; (name = va_arg(settings, const char *));)
    if (rd_kafka_conf_set(conf, name, va_arg(settings, const char *), text, sizeof text)) fail("%s", text);
  if (type == RD_KAFKA_PRODUCER) rd_kafka_conf_set_dr_msg_cb(conf, delivered);
  rd_kafka_t *made = rd_kafka_new(type, conf, text, sizeof text);
  if (!made) fail("%s", text);
  return made;
}

/* Have an admin's request answered. */
static rd_kafka_event_t *answered(rd_kafka_queue_t *queue) {
  rd_kafka_event_t *event = rd_kafka_queue_poll(queue, PATIENCE_MS);
  if (!event) fail("an admin's request has no answer");
  fine("an admin's request", rd_kafka_event_error(event));
  return event;
}

static rd_kafka_resp_err_t created(int partitions, const char *policy) {
  char text[512];
  rd_kafka_t *admin = client(RD_KAFKA_PRODUCER, address, NULL);
  rd_kafka_queue_t *queue = rd_kafka_queue_new(admin);
  rd_kafka_NewTopic_t *made = rd_kafka_NewTopic_new(topic, partitions, 1, text, sizeof text);
  if (policy) rd_kafka_NewTopic_set_config(made, "cleanup.policy", policy);
  rd_kafka_CreateTopics(admin, &made, 1, NULL, queue);
  rd_kafka_event_t *event = answered(queue);
  size_t count;
  const rd_kafka_topic_result_t **told = rd_kafka_CreateTopics_result_topics(rd_kafka_event_CreateTopics_result(event), &count);
  rd_kafka_resp_err_t code = rd_kafka_topic_result_error(told[0]);
  rd_kafka_event_destroy(event);
  rd_kafka_NewTopic_destroy(made);
  rd_kafka_queue_destroy(queue);
  rd_kafka_destroy(admin);
  return code;
}

static void sent(rd_kafka_t *producer, int partition, int number, long long *offset) {
  char key[32], value[32];
  snprintf(key, sizeof key, "k%d", number);
  snprintf(value, sizeof value, "%d", number);
  for (;;) {
    rd_kafka_resp_err_t code = rd_kafka_producev(
        producer, RD_KAFKA_V_TOPIC(topic), RD_KAFKA_V_PARTITION(partition), RD_KAFKA_V_KEY(key, strlen(key)),
        RD_KAFKA_V_VALUE(value, strlen(value)), RD_KAFKA_V_TIMESTAMP(FIRST_MS + number),
        RD_KAFKA_V_HEADER("n", value, strlen(value)), RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY),
        RD_KAFKA_V_OPAQUE(offset), RD_KAFKA_V_END);
    if (code != RD_KAFKA_RESP_ERR__QUEUE_FULL) {
      fine("to send", code);
      return;
    }
    rd_kafka_poll(producer, 100);
  }
}

/* Send values 0, 1, ... to partitions in turn; each is told its offset. */
static void written(int count, int partitions, const char *codec) {
  long long *offsets = calloc(count, sizeof *offsets);
  rd_kafka_t *producer =
      client(RD_KAFKA_PRODUCER, address, "enable.idempotence", "true", "compression.type", codec, "linger.ms", "5", NULL);
  for (int each = 0; each < count; each++) sent(producer, each % partitions, each, &offsets[each]);
  fine("to flush", rd_kafka_flush(producer, PATIENCE_MS));
  for (int each = 0; each < count; each++) same("an offset", offsets[each] % (count / partitions), each / partitions);
  rd_kafka_destroy(producer);
  free(offsets);
}

static rd_kafka_t *consumer(const char *group, const char *isolation) {
  return client(RD_KAFKA_CONSUMER, address, "group.id", group, "isolation.level", isolation, "auto.offset.reset", "earliest",
                "enable.auto.commit", "false", "heartbeat.interval.ms", "300", NULL);
}

static rd_kafka_topic_partition_list_t *partitions_of(int partitions, long long offset) {
  rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(partitions);
  for (int each = 0; each < partitions; each++) rd_kafka_topic_partition_list_add(list, topic, each)->offset = offset;
  return list;
}

/* Poll until so many records have come; `check` looks at each. */
static void read_some(rd_kafka_t *reader, int count, void (*check)(const rd_kafka_message_t *, int), int partitions) {
  long long end = now_ms() + PATIENCE_MS;
  while (count > 0) {
    if (now_ms() > end) fail("%d records are missing", count);
    rd_kafka_message_t *message = rd_kafka_consumer_poll(reader, 200);
    if (message && !message->err) {
      if (check) check(message, partitions);
      count--;
    }
    if (message) rd_kafka_message_destroy(message);
  }
}

static void nothing_more(rd_kafka_t *reader) {
  rd_kafka_message_t *message = rd_kafka_consumer_poll(reader, 500);
  if (message && !message->err) fail("more records than there should be");
  if (message) rd_kafka_message_destroy(message);
}

/* Read a whole topic from its start. */
static void whole(int partitions, int count, const char *isolation, void (*check)(const rd_kafka_message_t *, int)) {
  rd_kafka_t *reader = consumer("of-no-group", isolation);
  rd_kafka_topic_partition_list_t *list = partitions_of(partitions, 0);
  fine("to assign", rd_kafka_assign(reader, list));
  read_some(reader, count, check, partitions);
  nothing_more(reader);
  rd_kafka_topic_partition_list_destroy(list);
  rd_kafka_consumer_close(reader);
  rd_kafka_destroy(reader);
}

static void as_written(const rd_kafka_message_t *message, int partitions) {
  char value[32];
  long long number = message->offset * partitions + message->partition;
  snprintf(value, sizeof value, "%lld", number);
  if (message->len != strlen(value) || memcmp(message->payload, value, message->len)) fail("another value at %lld", number);
  same("the size of a key", message->key_len, strlen(value) + 1);
  same("the time", rd_kafka_message_timestamp(message, NULL), FIRST_MS + number);
  rd_kafka_headers_t *headers;
  fine("headers", rd_kafka_message_headers(message, &headers));
  same("headers", rd_kafka_header_cnt(headers), 1);
}

/* --- the stories */

static void produce_consume(const char *codec) {
  fine("to create", created(3, NULL));
  written(3000, 3, codec);
  whole(3, 3000, "read_committed", as_written);
}

static void small_records(const char *codec) {
  fine("to create", created(4, NULL));
  written(20000, 4, codec);
  whole(4, 20000, "read_uncommitted", as_written);
}

static int assigned(rd_kafka_t *member) {
  rd_kafka_message_t *message = rd_kafka_consumer_poll(member, 100);
  if (message) rd_kafka_message_destroy(message);
  rd_kafka_topic_partition_list_t *list;
  fine("the assignment", rd_kafka_assignment(member, &list));
  int count = list->cnt;
  rd_kafka_topic_partition_list_destroy(list);
  return count;
}

static rd_kafka_t *subscribed(const char *protocol) {
  rd_kafka_t *member = strcmp(protocol, "consumer") ? consumer(topic, "read_committed")
                                                    : client(RD_KAFKA_CONSUMER, address, "group.id", topic, "group.protocol",
                                                             "consumer", "auto.offset.reset", "earliest",
                                                             "enable.auto.commit", "false", NULL);
  rd_kafka_topic_partition_list_t *names = rd_kafka_topic_partition_list_new(1);
  rd_kafka_topic_partition_list_add(names, topic, RD_KAFKA_PARTITION_UA);
  fine("to subscribe", rd_kafka_subscribe(member, names));
  rd_kafka_topic_partition_list_destroy(names);
  return member;
}

static void group(const char *protocol) {
  fine("to create", created(4, NULL));
  written(400, 4, "none");
  rd_kafka_t *first = subscribed(protocol);
  read_some(first, 400, as_written, 4);
  fine("to commit", rd_kafka_commit(first, NULL, 0));
  rd_kafka_t *second = subscribed(protocol);
  for (long long end = now_ms() + PATIENCE_MS; assigned(first) != 2 || assigned(second) != 2;)
    if (now_ms() > end) fail("the members do not share the partitions");
  rd_kafka_topic_partition_list_t *list = partitions_of(4, RD_KAFKA_OFFSET_INVALID);
  fine("positions", rd_kafka_committed(first, list, PATIENCE_MS));
  for (int each = 0; each < 4; each++) same("a position", list->elems[each].offset, 100);
  rd_kafka_topic_partition_list_destroy(list);
  fine("to close", rd_kafka_consumer_close(second));
  rd_kafka_destroy(second);
  for (long long end = now_ms() + PATIENCE_MS; assigned(first) != 4;)
    if (now_ms() > end) fail("the member does not have all partitions again");
  fine("to close", rd_kafka_consumer_close(first));
  rd_kafka_destroy(first);
}

static void transactions(const char *unused) {
  (void)unused;
  fine("to create", created(2, NULL));
  rd_kafka_t *producer = client(RD_KAFKA_PRODUCER, address, "transactional.id", topic, NULL);
  rd_kafka_t *reader = consumer(topic, "read_committed");
  rd_kafka_consumer_group_metadata_t *member = rd_kafka_consumer_group_metadata(reader);
  done("to begin a producer", rd_kafka_init_transactions(producer, PATIENCE_MS));
  for (int each = 0; each < 10; each++) {
    done("to begin", rd_kafka_begin_transaction(producer));
    for (int part = 0; part < 2; part++) sent(producer, part, each, NULL);
    rd_kafka_topic_partition_list_t *position = partitions_of(1, each);
    done("to send positions", rd_kafka_send_offsets_to_transaction(producer, position, member, PATIENCE_MS));
    rd_kafka_topic_partition_list_destroy(position);
    fine("to flush", rd_kafka_flush(producer, PATIENCE_MS));
    done("to end", each % 2 ? rd_kafka_abort_transaction(producer, PATIENCE_MS)
                            : rd_kafka_commit_transaction(producer, PATIENCE_MS));
  }
  whole(2, 10, "read_committed", NULL);
  whole(2, 20, "read_uncommitted", NULL);
  rd_kafka_topic_partition_list_t *list = partitions_of(1, RD_KAFKA_OFFSET_INVALID);
  fine("the position", rd_kafka_committed(reader, list, PATIENCE_MS));
  same("the position", list->elems[0].offset, 8);
  rd_kafka_topic_partition_list_destroy(list);
  rd_kafka_consumer_group_metadata_destroy(member);
  rd_kafka_destroy(producer);
  rd_kafka_destroy(reader);
}

static void fenced(const char *unused) {
  (void)unused;
  fine("to create", created(1, NULL));
  rd_kafka_t *producers[2];
  for (int each = 0; each < 2; each++) {
    producers[each] = client(RD_KAFKA_PRODUCER, address, "transactional.id", topic, NULL);
    done("to begin a producer", rd_kafka_init_transactions(producers[each], PATIENCE_MS));
    done("to begin", rd_kafka_begin_transaction(producers[each]));
    sent(producers[each], 0, each, NULL);
    fine("to flush", rd_kafka_flush(producers[each], PATIENCE_MS));
  }
  done("to commit", rd_kafka_commit_transaction(producers[1], PATIENCE_MS));
  rd_kafka_error_t *error = rd_kafka_commit_transaction(producers[0], PATIENCE_MS);
  if (!error || !rd_kafka_error_is_fatal(error)) fail("the first producer was not fenced");
  rd_kafka_error_destroy(error);
  whole(1, 1, "read_committed", NULL);
}

static void offsets(const char *unused) {
  (void)unused;
  fine("to create", created(1, NULL));
  written(100, 1, "none");
  rd_kafka_t *reader = consumer(topic, "read_committed");
  int64_t low, high;
  fine("the ends", rd_kafka_query_watermark_offsets(reader, topic, 0, &low, &high, PATIENCE_MS));
  same("the start", low, 0);
  same("the end", high, 100);
  rd_kafka_topic_partition_list_t *list = partitions_of(1, FIRST_MS + 7);
  fine("the offset of a time", rd_kafka_offsets_for_times(reader, list, PATIENCE_MS));
  same("the offset of a time", list->elems[0].offset, 7);
  rd_kafka_topic_partition_list_destroy(list);
  rd_kafka_destroy(reader);
}

static void topics(const char *unused) {
  (void)unused;
  fine("to create", created(2, "compact"));
  same("the second time", created(2, NULL), RD_KAFKA_RESP_ERR_TOPIC_ALREADY_EXISTS);
  rd_kafka_t *admin = client(RD_KAFKA_PRODUCER, address, NULL);
  rd_kafka_queue_t *queue = rd_kafka_queue_new(admin);
  char text[512];
  rd_kafka_NewPartitions_t *more = rd_kafka_NewPartitions_new(topic, 4, text, sizeof text);
  rd_kafka_CreatePartitions(admin, &more, 1, NULL, queue);
  rd_kafka_event_destroy(answered(queue));
  rd_kafka_NewPartitions_destroy(more);
  rd_kafka_topic_t *handle = rd_kafka_topic_new(admin, topic, NULL);
  const struct rd_kafka_metadata *metadata;
  fine("metadata", rd_kafka_metadata(admin, 0, handle, &metadata, PATIENCE_MS));
  same("partitions", metadata->topics[0].partition_cnt, 4);
  rd_kafka_metadata_destroy(metadata);
  rd_kafka_topic_destroy(handle);
  rd_kafka_DeleteTopic_t *gone = rd_kafka_DeleteTopic_new(topic);
  rd_kafka_DeleteTopics(admin, &gone, 1, NULL, queue);
  rd_kafka_event_destroy(answered(queue));
  rd_kafka_DeleteTopic_destroy(gone);
  rd_kafka_queue_destroy(queue);
  rd_kafka_destroy(admin);
}

static void acls(const char *unused) {
  (void)unused;
  char text[512];
  rd_kafka_t *admin = client(RD_KAFKA_PRODUCER, secured, NULL);
  rd_kafka_queue_t *queue = rd_kafka_queue_new(admin);
  rd_kafka_AclBinding_t *entry =
      rd_kafka_AclBinding_new(RD_KAFKA_RESOURCE_TOPIC, topic, RD_KAFKA_RESOURCE_PATTERN_LITERAL, "User:alice", "*",
                              RD_KAFKA_ACL_OPERATION_READ, RD_KAFKA_ACL_PERMISSION_TYPE_ALLOW, text, sizeof text);
  rd_kafka_CreateAcls(admin, &entry, 1, NULL, queue);
  rd_kafka_event_destroy(answered(queue));
  rd_kafka_AclBindingFilter_t *filter = rd_kafka_AclBindingFilter_new(
      RD_KAFKA_RESOURCE_TOPIC, topic, RD_KAFKA_RESOURCE_PATTERN_LITERAL, NULL, NULL, RD_KAFKA_ACL_OPERATION_ANY,
      RD_KAFKA_ACL_PERMISSION_TYPE_ANY, text, sizeof text);
  rd_kafka_DescribeAcls(admin, filter, NULL, queue);
  rd_kafka_event_t *event = answered(queue);
  size_t count;
  rd_kafka_DescribeAcls_result_acls(rd_kafka_event_DescribeAcls_result(event), &count);
  same("entries", count, 1);
  rd_kafka_event_destroy(event);
  rd_kafka_DeleteAcls(admin, &filter, 1, NULL, queue);
  rd_kafka_event_destroy(answered(queue));
  rd_kafka_AclBinding_destroy(entry);
  rd_kafka_AclBinding_destroy(filter);
  rd_kafka_queue_destroy(queue);
  rd_kafka_destroy(admin);
}

static const struct {
  const char *name;
  void (*tell)(const char *);
  const char *with;
} STORIES[] = {
    {"produce-consume", produce_consume, "none"},
    {"codec-gzip", produce_consume, "gzip"},
    {"codec-snappy", produce_consume, "snappy"},
    {"codec-lz4", produce_consume, "lz4"},
    {"codec-zstd", produce_consume, "zstd"},
    {"small-records", small_records, "none"},
    {"group-classic", group, "classic"},
    {"group-consumer", group, "consumer"},
    {"transactions", transactions, NULL},
    {"fenced", fenced, NULL},
    {"offsets", offsets, NULL},
    {"topics", topics, NULL},
    {"acls", acls, NULL},
};

static int is_wanted(const char *name, int count, char **names) {
  for (int each = 0; each < count; each++)
    if (!strcmp(name, names[each])) return 1;
  return !count;
}

int main(int count, char **arguments) {
  address = arguments[1];
  secured = arguments[2];
  for (size_t each = 0; each < sizeof STORIES / sizeof *STORIES; each++) {
    if (!is_wanted(STORIES[each].name, count - 4, arguments + 4)) continue;
    snprintf(story, sizeof story, "%s", STORIES[each].name);
    snprintf(topic, sizeof topic, "%s-%s", arguments[3], story);
    /* a process for each: one that does not end, or ends itself, harms no other */
    pid_t process = fork();
    if (!process) {
      alarm(2 * PATIENCE_S);
      begun_ms = now_ms();
      STORIES[each].tell(STORIES[each].with);
      printf("ok %s %lld\n", story, now_ms() - begun_ms);
      fflush(stdout);
      _exit(0);
    }
    int status;
    waitpid(process, &status, 0);
    if (WIFSIGNALED(status)) printf("failed %s it does not end, or ended by signal %d\n", story, WTERMSIG(status));
    fflush(stdout);
  }
  printf("end\n");
  return 0;
}
