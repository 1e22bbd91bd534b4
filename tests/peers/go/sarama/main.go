// The stories of sarama: sarama ADDRESS ADDRESS-WITH-ACLS PREFIX [STORY...]
package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"distlog/peers/story"
)

var peer = story.New()

const firstMs = 1_700_000_000_000

// changed is a configuration with changes.
func changed(changes ...func(*sarama.Config)) *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	for _, each := range changes {
		each(config)
	}
	return config
}

func admin(at string) sarama.ClusterAdmin {
	made, err := sarama.NewClusterAdmin([]string{at}, changed())
	if err != nil {
		panic(err)
	}
	return made
}

func created(topic string, partitions int32) error {
	a := admin(peer.Address)
	defer a.Close()
	return a.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1}, false)
}

func message(topic string, number, partitions int) *sarama.ProducerMessage {
	text := fmt.Sprint(number)
	return &sarama.ProducerMessage{
		Topic: topic, Partition: int32(number % partitions), Key: sarama.StringEncoder("k" + text), Value: sarama.StringEncoder(text),
		Headers:   []sarama.RecordHeader{{Key: []byte("n"), Value: []byte(text)}},
		Timestamp: time.UnixMilli(firstMs + int64(number)),
	}
}

func producer(changes ...func(*sarama.Config)) sarama.SyncProducer {
	made, err := sarama.NewSyncProducer([]string{peer.Address}, changed(changes...))
	if err != nil {
		panic(err)
	}
	return made
}

// written sends values 0, 1, ... to partitions in turn.
func written(topic string, count, partitions int, changes ...func(*sarama.Config)) error {
	p := producer(changes...)
	defer p.Close()
	var all []*sarama.ProducerMessage
	for each := range count {
		all = append(all, message(topic, each, partitions))
	}
	if err := p.SendMessages(all); err != nil {
		return err
	}
	for each, sent := range all {
		if sent.Offset != int64(each/partitions) {
			return fmt.Errorf("record %d has offset %d", each, sent.Offset)
		}
	}
	return nil
}

// read has so many records, and an error if more come.
func read(ctx context.Context, topic string, partitions, count int, changes ...func(*sarama.Config)) ([]*sarama.ConsumerMessage, error) {
	consumer, err := sarama.NewConsumer([]string{peer.Address}, changed(changes...))
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	all := make(chan *sarama.ConsumerMessage, count+1)
	for each := range partitions {
		part, err := consumer.ConsumePartition(topic, int32(each), sarama.OffsetOldest)
		if err != nil {
			return nil, err
		}
		defer part.AsyncClose()
		go func() {
			for told := range part.Messages() {
				all <- told
			}
		}()
	}
	var found []*sarama.ConsumerMessage
	for len(found) < count {
		select {
		case told := <-all:
			found = append(found, told)
		case <-ctx.Done():
			return found, fmt.Errorf("%d of %d records", len(found), count)
		}
	}
	select {
	case told := <-all:
		return found, fmt.Errorf("one more record, at %d", told.Offset)
	case <-time.After(200 * time.Millisecond):
		return found, nil
	}
}

func committed(config *sarama.Config) { config.Consumer.IsolationLevel = sarama.ReadCommitted }

func idempotent(config *sarama.Config) {
	config.Producer.Idempotent, config.Producer.RequiredAcks, config.Net.MaxOpenRequests = true, sarama.WaitForAll, 1
}

func transactional(id string) func(*sarama.Config) {
	return func(config *sarama.Config) {
		idempotent(config)
		config.Producer.Transaction.ID = id
	}
}

func codec(kind sarama.CompressionCodec) func(*sarama.Config) {
	return func(config *sarama.Config) { config.Producer.Compression = kind }
}

func produce(changes ...func(*sarama.Config)) func(context.Context, string) error {
	return func(ctx context.Context, topic string) error {
		if err := story.First(created(topic, 3), written(topic, 3000, 3, changes...)); err != nil {
			return err
		}
		found, err := read(ctx, topic, 3, 3000)
		for _, each := range found {
			number := each.Offset*3 + int64(each.Partition)
			text := fmt.Sprint(number)
			err = story.First(err, story.Same("the value", string(each.Value), text), story.Same("the key", string(each.Key), "k"+text),
				story.Same("headers", len(each.Headers), 1), story.Same("the time", each.Timestamp.UnixMilli(), firstMs+number))
		}
		return err
	}
}

func smallRecords(ctx context.Context, topic string) error {
	small := func(config *sarama.Config) { config.Producer.Flush.MaxMessages = 100 }
	if err := story.First(created(topic, 4), written(topic, 10_000, 4, idempotent, small)); err != nil {
		return err
	}
	_, err := read(ctx, topic, 4, 10_000)
	return err
}

// member reads in a group, and commits what it has read.
type member struct {
	group  sarama.ConsumerGroup
	mutex  sync.Mutex
	values map[string]bool
	held   int
	cancel context.CancelFunc
	ended  chan struct{}
}

func joined(ctx context.Context, topic string, changes ...func(*sarama.Config)) *member {
	group, err := sarama.NewConsumerGroup([]string{peer.Address}, topic, changed(changes...))
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	m := &member{group: group, values: map[string]bool{}, cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(m.ended)
		for ctx.Err() == nil {
			group.Consume(ctx, []string{topic}, m)
		}
	}()
	return m
}

func (m *member) Setup(session sarama.ConsumerGroupSession) error {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.held = 0
	for _, each := range session.Claims() {
		m.held += len(each)
	}
	return nil
}

func (m *member) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for each := range claim.Messages() {
		m.mutex.Lock()
		m.values[string(each.Value)] = true
		m.mutex.Unlock()
		session.MarkMessage(each, "")
		// each commit waits for the storage
		if len(claim.Messages()) == 0 {
			session.Commit()
		}
	}
	return nil
}

func (m *member) holds() int {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return m.held
}

func (m *member) hasRead(count int) func() bool {
	return func() bool {
		m.mutex.Lock()
		defer m.mutex.Unlock()
		return len(m.values) == count
	}
}

func (m *member) leave() error {
	m.cancel()
	<-m.ended
	return m.group.Close()
}

func group(strategy sarama.BalanceStrategy) func(context.Context, string) error {
	return func(ctx context.Context, topic string) error {
		if err := story.First(created(topic, 4), written(topic, 200, 4)); err != nil {
			return err
		}
		with := func(config *sarama.Config) {
			config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{strategy}
			config.Consumer.Group.Heartbeat.Interval = 300 * time.Millisecond
		}
		first := joined(ctx, topic, with)
		defer first.leave()
		if err := story.Until(ctx, "all records", first.hasRead(200)); err != nil {
			return err
		}
		second := joined(ctx, topic, with)
		err := story.Until(ctx, "two partitions each", func() bool { return first.holds() == 2 && second.holds() == 2 })
		if err = story.First(err, second.leave()); err != nil {
			return err
		}
		err = story.Until(ctx, "all partitions again", func() bool { return first.holds() == 4 })
		return story.First(err, positions(topic, 4, 50))
	}
}

// positions is an error unless the group of a topic has this position in each partition.
func positions(topic string, partitions, expected int) error {
	a := admin(peer.Address)
	defer a.Close()
	asked := map[string][]int32{}
	for each := range partitions {
		asked[topic] = append(asked[topic], int32(each))
	}
	told, err := a.ListConsumerGroupOffsets(topic, asked)
	if err != nil {
		return err
	}
	for each := range partitions {
		err = story.First(err, story.Same("the position", told.GetBlock(topic, int32(each)).Offset, int64(expected)))
	}
	return err
}

func transactions(ctx context.Context, topic string) error {
	if err := created(topic, 2); err != nil {
		return err
	}
	p := producer(transactional(topic))
	defer p.Close()
	for each := range 10 {
		end := p.CommitTxn
		if each%2 == 1 {
			end = p.AbortTxn
		}
		if err := p.BeginTxn(); err != nil {
			return err
		}
		sent := p.SendMessages([]*sarama.ProducerMessage{message(topic, each, 2), message(topic, each+1, 2)})
		if err := story.First(sent, end()); err != nil {
			return err
		}
	}
	if _, err := read(ctx, topic, 2, 10, committed); err != nil {
		return err
	}
	_, err := read(ctx, topic, 2, 20)
	return err
}

func fenced(ctx context.Context, topic string) error {
	if err := created(topic, 1); err != nil {
		return err
	}
	first := producer(transactional(topic))
	defer first.Close()
	if err := first.BeginTxn(); err != nil {
		return err
	}
	if _, _, err := first.SendMessage(message(topic, 0, 1)); err != nil {
		return err
	}
	second := producer(transactional(topic))
	defer second.Close()
	if err := second.BeginTxn(); err != nil {
		return err
	}
	_, _, err := second.SendMessage(message(topic, 1, 1))
	if err = story.First(err, second.CommitTxn()); err != nil {
		return err
	}
	if first.CommitTxn() == nil {
		return errors.New("the first producer was not fenced")
	}
	_, err = read(ctx, topic, 1, 1, committed)
	return err
}

func exactlyOnce(ctx context.Context, topic string) error {
	target := topic + "-out"
	if err := story.First(created(topic, 1), created(target, 1), written(topic, 100, 1)); err != nil {
		return err
	}
	p := producer(transactional(topic))
	defer p.Close()
	found, err := read(ctx, topic, 1, 100, committed)
	if err != nil {
		return err
	}
	for begin := 0; begin < 100; begin += 20 {
		if err = p.BeginTxn(); err != nil {
			return err
		}
		for _, each := range found[begin : begin+20] {
			_, _, sent := p.SendMessage(&sarama.ProducerMessage{Topic: target, Value: sarama.ByteEncoder(each.Value)})
			if err = story.First(sent, p.AddMessageToTxn(each, topic, nil)); err != nil {
				return err
			}
		}
		if err = p.CommitTxn(); err != nil {
			return err
		}
	}
	_, err = read(ctx, target, 1, 100, committed)
	return story.First(err, positions(topic, 1, 100))
}

func offsets(ctx context.Context, topic string) error {
	if err := story.First(created(topic, 1), written(topic, 100, 1)); err != nil {
		return err
	}
	client, err := sarama.NewClient([]string{peer.Address}, changed())
	if err != nil {
		return err
	}
	defer client.Close()
	for _, each := range [][2]int64{{sarama.OffsetOldest, 0}, {sarama.OffsetNewest, 100}, {firstMs, 0}, {firstMs + 7, 7}, {firstMs + 100, -1}} {
		found, err := client.GetOffset(topic, 0, each[0])
		if err = story.First(err, story.Same(fmt.Sprint("the offset of ", each[0]), found, each[1])); err != nil {
			return err
		}
	}
	consumer, err := sarama.NewConsumerFromClient(client)
	if err != nil {
		return err
	}
	if _, err = consumer.ConsumePartition(topic, 0, 1000); !errors.Is(err, sarama.ErrOffsetOutOfRange) {
		return fmt.Errorf("an offset that is out of range: %v", err)
	}
	a := admin(peer.Address)
	defer a.Close()
	if err = a.DeleteRecords(topic, map[int32]int64{0: 4}); err != nil {
		return err
	}
	_, err = read(ctx, topic, 1, 96)
	return err
}

func topics(ctx context.Context, topic string) error {
	a, policy, age := admin(peer.Address), "compact", "1000"
	defer a.Close()
	detail := &sarama.TopicDetail{NumPartitions: 2, ReplicationFactor: 1, ConfigEntries: map[string]*string{"cleanup.policy": &policy}}
	if err := a.CreateTopic(topic, detail, false); err != nil {
		return err
	}
	if err := a.CreateTopic(topic, detail, false); !errors.Is(err, sarama.ErrTopicAlreadyExists) {
		return fmt.Errorf("a topic that is there: %v", err)
	}
	set := map[string]sarama.IncrementalAlterConfigsEntry{"retention.ms": {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &age}}
	err := story.First(a.CreatePartitions(topic, 4, nil, false), a.IncrementalAlterConfig(sarama.TopicResource, topic, set, false))
	if err != nil {
		return err
	}
	told, err := a.DescribeTopics([]string{topic})
	if err = story.First(err, story.Same("partitions", len(told[0].Partitions), 4)); err != nil {
		return err
	}
	entries, err := a.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: topic})
	for _, each := range entries {
		if expected := map[string]string{"cleanup.policy": policy, "retention.ms": age}[each.Name]; expected != "" {
			err = story.First(err, story.Same(each.Name, each.Value, expected))
		}
	}
	listed, failed := a.ListTopics()
	err = story.First(err, failed, story.Same("listed", listed[topic].NumPartitions, 4))
	brokers, _, failed := a.DescribeCluster()
	if err = story.First(err, failed, story.Same("brokers", len(brokers), 1)); err != nil {
		return err
	}
	dirs, err := a.DescribeLogDirs([]int32{brokers[0].ID()})
	if err = story.First(err, story.Same("log dirs", len(dirs[brokers[0].ID()]), 1)); err != nil {
		return err
	}
	_, err = a.ElectLeaders(sarama.PreferredElection, map[string][]int32{topic: {0}})
	return story.First(err, a.DeleteTopic(topic))
}

func groups(ctx context.Context, topic string) error {
	if err := story.First(created(topic, 1), written(topic, 10, 1)); err != nil {
		return err
	}
	one := joined(ctx, topic)
	if err := story.Until(ctx, "all records", one.hasRead(10)); err != nil {
		return err
	}
	a := admin(peer.Address)
	defer a.Close()
	told, err := a.DescribeConsumerGroups([]string{topic})
	if err = story.First(err, story.Same("the state", told[0].State, "Stable"), one.leave()); err != nil {
		return err
	}
	listed, err := a.ListConsumerGroups()
	if err = story.First(err, story.Same("the kind", listed[topic], "consumer"), positions(topic, 1, 10)); err != nil {
		return err
	}
	moved := map[string]map[int32]sarama.OffsetAndMetadata{topic: {0: {Offset: 4, LeaderEpoch: -1}}}
	_, err = a.AlterConsumerGroupOffsets(topic, moved, nil)
	return story.First(err, positions(topic, 1, 4), a.DeleteConsumerGroupOffset(topic, topic, 0), a.DeleteConsumerGroup(topic))
}

func quotas(ctx context.Context, name string) error {
	a := admin(peer.Address)
	defer a.Close()
	entity := []sarama.QuotaEntityComponent{{EntityType: sarama.QuotaEntityClientID, MatchType: sarama.QuotaMatchExact, Name: name}}
	if err := a.AlterClientQuotas(entity, sarama.ClientQuotasOp{Key: "producer_byte_rate", Value: 1e9}, false); err != nil {
		return err
	}
	asked := []sarama.QuotaFilterComponent{{EntityType: sarama.QuotaEntityClientID, MatchType: sarama.QuotaMatchExact, Match: name}}
	told, err := a.DescribeClientQuotas(asked, false)
	if err = story.First(err, story.Same("entries", len(told), 1)); err != nil {
		return err
	}
	return a.AlterClientQuotas(entity, sarama.ClientQuotasOp{Key: "producer_byte_rate", Remove: true}, false)
}

func acls(ctx context.Context, topic string) error {
	a := admin(peer.Secured)
	defer a.Close()
	of := sarama.Resource{ResourceType: sarama.AclResourceTopic, ResourceName: topic, ResourcePatternType: sarama.AclPatternLiteral}
	one := sarama.Acl{Principal: "User:alice", Host: "*", Operation: sarama.AclOperationRead, PermissionType: sarama.AclPermissionAllow}
	if err := a.CreateACL(of, one); err != nil {
		return err
	}
	asked := sarama.AclFilter{
		ResourceType: of.ResourceType, ResourceName: &topic, ResourcePatternTypeFilter: sarama.AclPatternAny,
		Operation: sarama.AclOperationAny, PermissionType: sarama.AclPermissionAny,
	}
	told, err := a.ListAcls(asked)
	if err = story.First(err, story.Same("entries", len(told), 1)); err != nil {
		return err
	}
	removed, err := a.DeleteACL(asked, false)
	return story.First(err, story.Same("removed", len(removed), 1))
}

func users(ctx context.Context, name string) error {
	a := admin(peer.Secured)
	defer a.Close()
	made, err := a.UpsertUserScramCredentials([]sarama.AlterUserScramCredentialsUpsert{{
		Name: name, Mechanism: sarama.SCRAM_MECHANISM_SHA_256, Iterations: 4096, Salt: []byte("some salt"), Password: []byte("a-password"),
	}})
	if err = story.First(err, story.Same("the error", made[0].ErrorCode, sarama.ErrNoError)); err != nil {
		return err
	}
	told, err := a.DescribeUserScramCredentials([]string{name})
	if err = story.First(err, story.Same("kinds", len(told[0].CredentialInfos), 1)); err != nil {
		return err
	}
	gone, err := a.DeleteUserScramCredentials([]sarama.AlterUserScramCredentialsDelete{{Name: name, Mechanism: sarama.SCRAM_MECHANISM_SHA_256}})
	return story.First(err, story.Same("the error", gone[0].ErrorCode, sarama.ErrNoError))
}

func main() {
	peer.Tell("produce-consume", produce())
	peer.Tell("idempotent", produce(idempotent))
	codecs := []sarama.CompressionCodec{sarama.CompressionGZIP, sarama.CompressionSnappy, sarama.CompressionLZ4, sarama.CompressionZSTD}
	for _, each := range codecs {
		peer.Tell("codec-"+each.String(), produce(codec(each)))
	}
	peer.Tell("small-records", smallRecords)
	peer.Tell("group-range", group(sarama.NewBalanceStrategyRange()))
	peer.Tell("group-sticky", group(sarama.NewBalanceStrategySticky()))
	peer.Tell("transactions", transactions)
	peer.Tell("fenced", fenced)
	peer.Tell("exactly-once", exactlyOnce)
	peer.Tell("offsets", offsets)
	peer.Tell("topics", topics)
	peer.Tell("groups", groups)
	peer.Tell("quotas", quotas)
	peer.Tell("acls", acls)
	peer.Tell("users", users)
	fmt.Println("end")
}
