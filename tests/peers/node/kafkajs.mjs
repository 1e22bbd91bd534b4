// The stories of kafkajs, which speaks old versions of the protocol: node kafkajs.mjs ADDRESS SECURED PREFIX [STORY...]
import kafkajs from 'kafkajs';
import { address, end, same, secured, tell, until } from './story.mjs';

const { Kafka, CompressionTypes, AclResourceTypes, AclOperationTypes, AclPermissionTypes, ResourcePatternTypes } = kafkajs;
const at = (broker) => new Kafka({ clientId: 'peers', brokers: [broker], logLevel: kafkajs.logLevel.NOTHING });
const kafka = at(address);
const admin = kafka.admin();
const numbers = (count) => Array.from({ length: count }, (_, each) => each);

async function created(topic, numPartitions) {
  await admin.createTopics({ topics: [{ topic, numPartitions }], waitForLeaders: true });
}

async function sent(topic, count, partitions, options = {}) {
  const producer = kafka.producer(options);
  await producer.connect();
  const messages = numbers(count).map((each) => ({ partition: each % partitions, value: `${each}`, headers: { n: `${each}` } }));
  const told = await producer.send({ topic, messages });
  await producer.disconnect();
  return told;
}

// A member of a group, with what it has read.
async function member(groupId, topic, options = {}) {
  const consumer = kafka.consumer({ groupId, rebalanceTimeout: 10_000, heartbeatInterval: 300, ...options });
  const found = { values: [], assigned: 0, consumer };
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    found.assigned = (payload.memberAssignment[topic] ?? []).length;
  });
  await consumer.connect();
  await consumer.subscribe({ topics: [topic], fromBeginning: true });
  await consumer.run({ eachMessage: async ({ message }) => void found.values.push(`${message.value}`) });
  return found;
}

await admin.connect();
await tell('produce-consume', async (topic) => {
  await created(topic, 3);
  const told = await sent(topic, 300, 3);
  same('partitions', told.map((each) => each.baseOffset), ['0', '0', '0']);
  const reader = await member(topic, topic);
  await until('all records', () => reader.values.length === 300);
  await reader.consumer.disconnect();
});
await tell('idempotent-gzip', async (topic) => {
  await created(topic, 1);
  const producer = kafka.producer({ idempotent: true });
  await producer.connect();
  for (const each of numbers(10)) {
    const [told] = await producer.send({ topic, compression: CompressionTypes.GZIP, messages: [{ value: `${each}` }] });
    same('the offset', told.baseOffset, `${each}`);
  }
  await producer.disconnect();
});
await tell('group', async (topic) => {
  await created(topic, 4);
  await sent(topic, 40, 4);
  const first = await member(topic, topic);
  await until('all records', () => first.values.length === 40);
  const second = await member(topic, topic);
  await until('two partitions each', () => first.assigned === 2 && second.assigned === 2);
  await sent(topic, 40, 4);
  await until('the records of both', () => new Set([...first.values, ...second.values]).size === 40 && second.values.length >= 20);
  await second.consumer.disconnect();
  await until('all partitions again', () => first.assigned === 4);
  await first.consumer.disconnect();
});
await tell('transactions', async (topic) => {
  await created(topic, 1);
  const producer = kafka.producer({ transactionalId: topic, maxInFlightRequests: 1, idempotent: true });
  await producer.connect();
  for (const each of numbers(4)) {
    const transaction = await producer.transaction();
    await transaction.send({ topic, messages: [{ value: `${each}` }] });
    await transaction.sendOffsets({ consumerGroupId: topic, topics: [{ topic, partitions: [{ partition: 0, offset: `${each}` }] }] });
    await (each % 2 ? transaction.abort() : transaction.commit());
  }
  await producer.disconnect();
  const [{ partitions }] = await admin.fetchOffsets({ groupId: topic, topics: [topic] });
  same('the position', partitions[0].offset, '2');
  const reader = await member(`${topic}-reader`, topic, { readUncommitted: false });
  await until('two records', () => reader.values.length === 2);
  same('the values', reader.values, ['0', '2']);
  await reader.consumer.disconnect();
});
await tell('topics', async (topic) => {
  await created(topic, 2);
  await admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] });
  const { topics } = await admin.fetchTopicMetadata({ topics: [topic] });
  same('partitions', topics[0].partitions.length, 3);
  const resource = { type: kafkajs.ConfigResourceTypes.TOPIC, name: topic };
  const { resources } = await admin.describeConfigs({ resources: [resource], includeSynonyms: true });
  same('the policy', resources[0].configEntries.find((each) => each.configName === 'cleanup.policy').configValue, 'delete');
  await admin.deleteTopics({ topics: [topic] });
  await until('it is gone', async () => !(await admin.listTopics()).includes(topic));
});
await tell('alter-configs', async (topic) => {
  await created(topic, 1);
  const resource = { type: kafkajs.ConfigResourceTypes.TOPIC, name: topic };
  await admin.alterConfigs({ validateOnly: false, resources: [{ ...resource, configEntries: [{ name: 'retention.ms', value: '1000' }] }] });
});
await tell('offsets', async (topic) => {
  await created(topic, 1);
  await sent(topic, 10, 1);
  const [{ low, high }] = await admin.fetchTopicOffsets(topic);
  same('the ends', [low, high], ['0', '10']);
  const [late] = await admin.fetchTopicOffsetsByTimestamp(topic, Date.now() + 3_600_000);
  same('after all', late.offset, '10');
  await admin.setOffsets({ groupId: topic, topic, partitions: [{ partition: 0, offset: '4' }] });
  await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '3' }] });
  const reader = await member(topic, topic);
  await until('the rest', () => reader.values.length === 6);
  const { groups } = await admin.describeGroups([topic]);
  same('the state', groups[0].state, 'Stable');
  await reader.consumer.disconnect();
  await admin.deleteGroups([topic]);
});
await tell('acls', async (topic) => {
  const other = at(secured).admin();
  await other.connect();
  const acl = {
    resourceType: AclResourceTypes.TOPIC,
    resourceName: topic,
    resourcePatternType: ResourcePatternTypes.LITERAL,
    principal: 'User:alice',
    host: '*',
    operation: AclOperationTypes.READ,
    permissionType: AclPermissionTypes.ALLOW,
  };
  await other.createAcls({ acl: [acl] });
  const { filterResponses } = await other.deleteAcls({ filters: [acl] });
  same('removed', filterResponses[0].matchingAcls.length, 1);
  await other.disconnect();
});
await admin.disconnect();
end();
