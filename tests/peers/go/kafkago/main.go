// The stories of kafka-go, which has no transactions to write in: kafkago ADDRESS ADDRESS-WITH-ACLS PREFIX [STORY...]
package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"distlog/peers/story"
)

var peer = story.New()

const firstMs = 1_700_000_000_000

func client(at string) *kafka.Client {
	return &kafka.Client{Addr: kafka.TCP(at), Timeout: story.Patience}
}

func created(ctx context.Context, topic string, partitions int, entries ...kafka.ConfigEntry) error {
	one := kafka.TopicConfig{Topic: topic, NumPartitions: partitions, ReplicationFactor: 1, ConfigEntries: entries}
	told, err := client(peer.Address).CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{one}})
	if err != nil {
		return err
	}
	return told.Errors[topic]
}

// written sends values 0, 1, ... to partitions in turn, as a balancer that knows the numbers chooses.
func written(ctx context.Context, topic string, count, partitions int, changes ...func(*kafka.Writer)) error {
	inTurn := kafka.BalancerFunc(func(each kafka.Message, all ...int) int {
		var number int
		fmt.Sscan(string(each.Value), &number)
		return all[number%len(all)]
	})
	w := &kafka.Writer{
		Addr: kafka.TCP(peer.Address), Topic: topic, Balancer: inTurn, RequiredAcks: kafka.RequireAll, BatchTimeout: 5 * time.Millisecond,
	}
	for _, each := range changes {
		each(w)
	}
	var all []kafka.Message
	for each := range count {
		text := fmt.Sprint(each)
		header := kafka.Header{Key: "n", Value: []byte(text)}
		all = append(all, kafka.Message{
			Key: []byte("k" + text), Value: []byte(text), Headers: []kafka.Header{header}, Time: time.UnixMilli(firstMs + int64(each)),
		})
	}
	return story.First(w.WriteMessages(ctx, all...), w.Close())
}

func reader(topic string, partition int, changes ...func(*kafka.ReaderConfig)) *kafka.Reader {
	config := kafka.ReaderConfig{Brokers: []string{peer.Address}, Topic: topic, Partition: partition, MaxWait: 200 * time.Millisecond, MaxBytes: 1 << 20}
	for _, each := range changes {
		each(&config)
	}
	return kafka.NewReader(config)
}

// whole is an error unless each partition has its values, and no more.
func whole(ctx context.Context, topic string, count, partitions int) error {
	for part := range partitions {
		r := reader(topic, part)
		defer r.Close()
		for number := part; number < count; number += partitions {
			each, err := r.ReadMessage(ctx)
			if err != nil {
				return fmt.Errorf("record %d: %w", number, err)
			}
			text := fmt.Sprint(number)
			err = story.First(story.Same("the value", string(each.Value), text), story.Same("the key", string(each.Key), "k"+text),
				story.Same("the header", string(each.Headers[0].Value), text), story.Same("the time", each.Time.UnixMilli(), firstMs+int64(number)),
				story.Same("the offset", each.Offset, int64(number/partitions)))
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func produce(changes ...func(*kafka.Writer)) func(context.Context, string) error {
	return func(ctx context.Context, topic string) error {
		return story.First(created(ctx, topic, 3), written(ctx, topic, 3000, 3, changes...), whole(ctx, topic, 3000, 3))
	}
}

func smallRecords(ctx context.Context, topic string) error {
	small := func(w *kafka.Writer) { w.BatchSize = 20 }
	return story.First(created(ctx, topic, 4), written(ctx, topic, 10_000, 4, small), whole(ctx, topic, 10_000, 4))
}

// member reads in a group, and commits what it has read.
type member struct {
	*kafka.Reader
	mutex  sync.Mutex
	values map[string]int
	parts  map[int]bool
}

func joined(ctx context.Context, topic string, balancers ...kafka.GroupBalancer) *member {
	m := &member{values: map[string]int{}, parts: map[int]bool{}}
	m.Reader = reader(topic, 0, func(config *kafka.ReaderConfig) {
		config.GroupID, config.GroupBalancers, config.StartOffset = topic, balancers, kafka.FirstOffset
		config.HeartbeatInterval, config.MaxWait = 300*time.Millisecond, 100*time.Millisecond
		config.CommitInterval = 100 * time.Millisecond
	})
	go func() {
		for {
			each, err := m.FetchMessage(ctx)
			if err != nil {
				return
			}
			m.mutex.Lock()
			m.values[string(each.Value)]++
			m.parts[each.Partition] = true
			m.mutex.Unlock()
			m.CommitMessages(ctx, each)
		}
	}()
	return m
}

// now has how many values were read, and of how many partitions; it forgets the partitions.
func (m *member) now() (values, partitions int) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	values, partitions = len(m.values), len(m.parts)
	m.parts = map[int]bool{}
	return values, partitions
}

func group(balancer kafka.GroupBalancer) func(context.Context, string) error {
	return func(ctx context.Context, topic string) error {
		if err := story.First(created(ctx, topic, 4), written(ctx, topic, 100, 4)); err != nil {
			return err
		}
		first := joined(ctx, topic, balancer)
		defer first.Close()
		if err := story.Until(ctx, "all records", func() bool { values, _ := first.now(); return values == 100 }); err != nil {
			return err
		}
		second := joined(ctx, topic, balancer)
		// a member does not say what it holds, but each record tells
		shared := func(expected ...int) func() bool {
			return func() bool {
				if written(ctx, topic, 40, 4) != nil {
					return false
				}
				time.Sleep(300 * time.Millisecond)
				_, one := first.now()
				_, other := second.now()
				return one == expected[0] && other == expected[1]
			}
		}
		if err := story.First(story.Until(ctx, "two partitions each", shared(2, 2)), second.Close()); err != nil {
			return err
		}
		return story.Until(ctx, "all partitions again", shared(4, 0))
	}
}

func offsets(ctx context.Context, topic string) error {
	if err := story.First(created(ctx, topic, 1), written(ctx, topic, 100, 1)); err != nil {
		return err
	}
	asked := []kafka.OffsetRequest{kafka.FirstOffsetOf(0), kafka.LastOffsetOf(0), kafka.TimeOffsetOf(0, time.UnixMilli(firstMs+7))}
	told, err := client(peer.Address).ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{topic: asked}})
	if err != nil {
		return err
	}
	found := told.Topics[topic][0]
	if err = story.First(found.Error, story.Same("the first", found.FirstOffset, int64(0)), story.Same("the last", found.LastOffset, int64(100))); err != nil {
		return err
	}
	if _, ok := found.Offsets[7]; !ok {
		return fmt.Errorf("the offset of a time: %v", found.Offsets)
	}
	r := reader(topic, 0, func(config *kafka.ReaderConfig) { config.OffsetOutOfRangeError = true })
	defer r.Close()
	if err = r.SetOffsetAt(ctx, time.UnixMilli(firstMs+50)); err != nil {
		return err
	}
	each, err := r.ReadMessage(ctx)
	if err = story.First(err, story.Same("the offset of a time", each.Offset, int64(50)), r.SetOffset(1000)); err != nil {
		return err
	}
	if _, err = r.ReadMessage(ctx); !errors.Is(err, kafka.OffsetOutOfRange) {
		return fmt.Errorf("an offset that is out of range: %v", err)
	}
	return nil
}

func topics(ctx context.Context, topic string) error {
	c := client(peer.Address)
	compact := kafka.ConfigEntry{ConfigName: "cleanup.policy", ConfigValue: "compact"}
	if err := created(ctx, topic, 2, compact); err != nil {
		return err
	}
	if err := created(ctx, topic, 2); !errors.Is(err, kafka.TopicAlreadyExists) {
		return fmt.Errorf("a topic that is there: %v", err)
	}
	more, err := c.CreatePartitions(ctx, &kafka.CreatePartitionsRequest{Topics: []kafka.TopicPartitionsConfig{{Name: topic, Count: 4}}})
	if err != nil {
		return err
	}
	set := kafka.IncrementalAlterConfigsRequestConfig{Name: "retention.ms", Value: "1000", ConfigOperation: kafka.ConfigOperationSet}
	of := kafka.IncrementalAlterConfigsRequestResource{
		ResourceType: kafka.ResourceTypeTopic, ResourceName: topic, Configs: []kafka.IncrementalAlterConfigsRequestConfig{set},
	}
	altered, err := c.IncrementalAlterConfigs(ctx, &kafka.IncrementalAlterConfigsRequest{Resources: []kafka.IncrementalAlterConfigsRequestResource{of}})
	if err = story.First(err, more.Errors[topic]); err != nil {
		return err
	}
	asked := kafka.DescribeConfigRequestResource{ResourceType: kafka.ResourceTypeTopic, ResourceName: topic, ConfigNames: []string{"retention.ms"}}
	configs, err := c.DescribeConfigs(ctx, &kafka.DescribeConfigsRequest{Resources: []kafka.DescribeConfigRequestResource{asked}})
	if err = story.First(err, altered.Resources[0].Error); err != nil {
		return err
	}
	entries := configs.Resources[0].ConfigEntries
	if err = story.First(story.Same("entries", len(entries), 1), story.Same("the age", entries[0].ConfigValue, "1000")); err != nil {
		return err
	}
	// the client keeps what it was told before for some time
	err = story.Until(ctx, "four partitions", func() bool {
		meta, err := c.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{topic}})
		return err == nil && len(meta.Topics[0].Partitions) == 4 && len(meta.Brokers) == 1
	})
	if err != nil {
		return err
	}
	gone, err := c.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{topic}})
	return story.First(err, gone.Errors[topic])
}

func groups(ctx context.Context, topic string) error {
	if err := story.First(created(ctx, topic, 1), written(ctx, topic, 10, 1)); err != nil {
		return err
	}
	c, one := client(peer.Address), joined(ctx, topic)
	if err := story.Until(ctx, "all records", func() bool { values, _ := one.now(); return values == 10 }); err != nil {
		return err
	}
	told, err := c.DescribeGroups(ctx, &kafka.DescribeGroupsRequest{GroupIDs: []string{topic}})
	if err = story.First(err, story.Same("the state", told.Groups[0].GroupState, "Stable")); err != nil {
		return err
	}
	position := func(expected int64) error {
		positions, err := c.OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: topic, Topics: map[string][]int{topic: {0}}})
		return story.First(err, positions.Error, story.Same("the position", positions.Topics[topic][0].CommittedOffset, expected))
	}
	err = story.Until(ctx, "the position of all", func() bool { return position(10) == nil })
	if err = story.First(err, one.Close()); err != nil {
		return err
	}
	moved := map[string][]kafka.OffsetCommit{topic: {{Partition: 0, Offset: 4}}}
	commit, err := c.OffsetCommit(ctx, &kafka.OffsetCommitRequest{GroupID: topic, GenerationID: -1, Topics: moved})
	if err = story.First(err, commit.Topics[topic][0].Error, position(4)); err != nil {
		return err
	}
	listed, err := c.ListGroups(ctx, &kafka.ListGroupsRequest{})
	if err = story.First(err, listed.Error); err != nil {
		return err
	}
	found := false
	for _, each := range listed.Groups {
		found = found || each.GroupID == topic
	}
	gone, err := c.DeleteGroups(ctx, &kafka.DeleteGroupsRequest{GroupIDs: []string{topic}})
	return story.First(err, story.Same("it is listed", found, true), gone.Errors[topic])
}

func acls(ctx context.Context, topic string) error {
	c := client(peer.Secured)
	entry := kafka.ACLEntry{
		ResourceType: kafka.ResourceTypeTopic, ResourceName: topic, ResourcePatternType: kafka.PatternTypeLiteral,
		Principal: "User:alice", Host: "*", Operation: kafka.ACLOperationTypeRead, PermissionType: kafka.ACLPermissionTypeAllow,
	}
	made, err := c.CreateACLs(ctx, &kafka.CreateACLsRequest{ACLs: []kafka.ACLEntry{entry}})
	if err = story.First(err, made.Errors[0]); err != nil {
		return err
	}
	asked := kafka.DeleteACLsFilter{
		ResourceTypeFilter: entry.ResourceType, ResourceNameFilter: topic, ResourcePatternTypeFilter: entry.ResourcePatternType,
		PrincipalFilter: entry.Principal, HostFilter: entry.Host, Operation: entry.Operation, PermissionType: entry.PermissionType,
	}
	gone, err := c.DeleteACLs(ctx, &kafka.DeleteACLsRequest{Filters: []kafka.DeleteACLsFilter{asked}})
	return story.First(err, gone.Results[0].Error, story.Same("removed", len(gone.Results[0].MatchingACLs), 1))
}

func main() {
	peer.Tell("produce-consume", produce())
	for _, each := range []kafka.Compression{kafka.Gzip, kafka.Snappy, kafka.Lz4, kafka.Zstd} {
		peer.Tell("codec-"+each.String(), produce(func(w *kafka.Writer) { w.Compression = each }))
	}
	peer.Tell("small-records", smallRecords)
	peer.Tell("group-range", group(kafka.RangeGroupBalancer{}))
	peer.Tell("group-round-robin", group(kafka.RoundRobinGroupBalancer{}))
	peer.Tell("offsets", offsets)
	peer.Tell("topics", topics)
	peer.Tell("groups", groups)
	peer.Tell("acls", acls)
	fmt.Println("end")
}
