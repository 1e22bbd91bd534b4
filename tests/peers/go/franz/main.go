// The stories of franz-go: franz ADDRESS ADDRESS-WITH-ACLS PREFIX [STORY...]
package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"distlog/peers/story"
)

var peer = story.New()

func client(options ...kgo.Opt) *kgo.Client {
	made, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(peer.Address)}, options...)...)
	if err != nil {
		panic(err)
	}
	return made
}

func admin(at string) *kadm.Client {
	made, err := kadm.NewOptClient(kgo.SeedBrokers(at))
	if err != nil {
		panic(err)
	}
	return made
}

func created(ctx context.Context, topic string, partitions int32) error {
	a := admin(peer.Address)
	defer a.Close()
	made, err := a.CreateTopic(ctx, partitions, 1, nil, topic)
	return story.First(err, made.Err)
}

// written sends values 0, 1, ... to partitions in turn.
func written(ctx context.Context, topic string, count int, partitions int32, options ...kgo.Opt) error {
	c := client(append(options, kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	defer c.Close()
	var all []*kgo.Record
	for i := range count {
		all = append(all, &kgo.Record{Topic: topic, Partition: int32(i) % partitions, Value: fmt.Appendf(nil, "%d", i)})
	}
	results := c.ProduceSync(ctx, all...)
	for i, each := range all {
		if each.Offset != int64(i)/int64(partitions) {
			return story.First(results.FirstErr(), fmt.Errorf("record %d has offset %d", i, each.Offset))
		}
	}
	return results.FirstErr()
}

// read polls until so many records have come.
func read(ctx context.Context, c *kgo.Client, count int) ([]*kgo.Record, error) {
	var found []*kgo.Record
	for len(found) < count {
		fetches := c.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return found, fmt.Errorf("after %d records: %w", len(found), err)
		}
		found = append(found, fetches.Records()...)
	}
	return found, nil
}

func produce(ctx context.Context, topic string) error {
	if err := created(ctx, topic, 3); err != nil {
		return err
	}
	if err := written(ctx, topic, 3000, 3); err != nil {
		return err
	}
	c := client(kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	defer c.Close()
	found, err := read(ctx, c, 3000)
	return story.First(err, story.Same("records", len(found), 3000))
}

func codecs(ctx context.Context, topic string) error {
	if err := created(ctx, topic, 1); err != nil {
		return err
	}
	c := client(kgo.ConsumeTopics(topic))
	defer c.Close()
	all := []kgo.CompressionCodec{kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression()}
	for i, each := range all {
		p := client(kgo.ProducerBatchCompression(each), kgo.DefaultProduceTopic(topic))
		for range 100 {
			p.Produce(ctx, kgo.StringRecord("a value that is compressed, and compressed"), nil)
		}
		err := p.Flush(ctx)
		p.Close()
		if err != nil {
			return fmt.Errorf("codec %d: %w", i, err)
		}
	}
	found, err := read(ctx, c, 400)
	return story.First(err, story.Same("records", len(found), 400))
}

func group(next bool, options ...kgo.Opt) func(context.Context, string) error {
	return func(ctx context.Context, topic string) error {
		if err := story.First(created(ctx, topic, 4), written(ctx, topic, 400, 4)); err != nil {
			return err
		}
		if next {
			ctx = context.WithValue(ctx, "opt_in_kafka_next_gen_balancer_beta", true)
		}
		member := func() *kgo.Client {
			return client(append(options, kgo.WithContext(ctx), kgo.ConsumerGroup(topic), kgo.ConsumeTopics(topic),
				kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit())...)
		}
		first := member()
		defer first.Close()
		found, err := read(ctx, first, 400)
		if err = story.First(err, story.Same("records", len(found), 400)); err != nil {
			return err
		}
		if err = first.CommitUncommittedOffsets(ctx); err != nil {
			return err
		}
		second := member()
		defer second.Close()
		go first.PollFetches(ctx)
		go second.PollFetches(ctx)
		a := admin(peer.Address)
		defer a.Close()
		for {
			if ctx.Err() != nil {
				return errors.New("the members do not have two partitions each")
			}
			if len(first.UncommittedOffsets()) == 0 && held(first, topic) == 2 && held(second, topic) == 2 {
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
		told, err := a.FetchOffsets(ctx, topic)
		if err != nil {
			return err
		}
		sum := int64(0)
		told.Each(func(each kadm.OffsetResponse) { sum += each.At })
		return story.First(told.Error(), story.Same("positions", sum, int64(400)))
	}
}

func held(c *kgo.Client, topic string) int {
	return len(c.CommittedOffsets()[topic])
}

func transactions(ctx context.Context, topic string) error {
	if err := created(ctx, topic, 2); err != nil {
		return err
	}
	c := client(kgo.TransactionalID(topic), kgo.DefaultProduceTopic(topic))
	defer c.Close()
	for i := range 10 {
		if err := c.BeginTransaction(); err != nil {
			return err
		}
		results := c.ProduceSync(ctx, kgo.StringRecord("a"), kgo.StringRecord("b"))
		if err := story.First(results.FirstErr(), c.EndTransaction(ctx, kgo.TransactionEndTry(i%2 == 0))); err != nil {
			return err
		}
	}
	r := client(kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	defer r.Close()
	found, err := read(ctx, r, 10)
	return story.First(err, story.Same("records", len(found), 10))
}

func exactlyOnce(ctx context.Context, topic string) error {
	target := topic + "-out"
	if err := story.First(created(ctx, topic, 2), created(ctx, target, 2), written(ctx, topic, 500, 2)); err != nil {
		return err
	}
	session, err := kgo.NewGroupTransactSession(kgo.SeedBrokers(peer.Address), kgo.TransactionalID(topic),
		kgo.ConsumerGroup(topic), kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DefaultProduceTopic(target), kgo.RequireStableFetchOffsets())
	if err != nil {
		return err
	}
	defer session.Close()
	for count := 0; count < 500; {
		fetches := session.PollFetches(ctx)
		if err := story.First(fetches.Err(), session.Begin()); err != nil {
			return err
		}
		fetches.EachRecord(func(each *kgo.Record) { session.Produce(ctx, kgo.SliceRecord(each.Value), nil) })
		committed, err := session.End(ctx, kgo.TryCommit)
		if err != nil {
			return err
		}
		if committed {
			count += fetches.NumRecords()
		}
	}
	r := client(kgo.ConsumeTopics(target), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	defer r.Close()
	found, err := read(ctx, r, 500)
	return story.First(err, story.Same("records", len(found), 500))
}

func topics(ctx context.Context, topic string) error {
	a := admin(peer.Address)
	defer a.Close()
	policy := "compact"
	made, err := a.CreateTopic(ctx, 2, 1, map[string]*string{"cleanup.policy": &policy}, topic)
	if err = story.First(err, made.Err); err != nil {
		return err
	}
	more, err := a.UpdatePartitions(ctx, 4, topic)
	if err = story.First(err, more.Error()); err != nil {
		return err
	}
	listed, err := a.ListTopics(ctx, topic)
	if err = story.First(err, listed.Error(), story.Same("partitions", len(listed[topic].Partitions), 4)); err != nil {
		return err
	}
	configs, err := a.DescribeTopicConfigs(ctx, topic)
	if err != nil {
		return err
	}
	for _, each := range configs[0].Configs {
		if each.Key == "cleanup.policy" && each.MaybeValue() != policy {
			return fmt.Errorf("the policy is %s", each.MaybeValue())
		}
	}
	value := "1000"
	altered, err := a.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: &value}}, topic)
	if err = story.First(err, altered[0].Err); err != nil {
		return err
	}
	meta, err := a.BrokerMetadata(ctx)
	if err = story.First(err, story.Same("brokers", len(meta.Brokers), 1)); err != nil {
		return err
	}
	gone, err := a.DeleteTopic(ctx, topic)
	if err = story.First(err, gone.Err); err != nil {
		return err
	}
	again, err := a.DeleteTopic(ctx, topic)
	if err == nil {
		err = again.Err
	}
	if !errors.Is(err, kerr.UnknownTopicOrPartition) {
		return fmt.Errorf("a missing topic: %v", err)
	}
	return nil
}

func offsets(ctx context.Context, topic string) error {
	if err := story.First(created(ctx, topic, 1), written(ctx, topic, 10, 1)); err != nil {
		return err
	}
	a := admin(peer.Address)
	defer a.Close()
	ends, err := a.ListEndOffsets(ctx, topic)
	if err = story.First(err, ends.Error(), story.Same("end", ends[topic][0].Offset, int64(10))); err != nil {
		return err
	}
	wanted := kadm.Offsets{}
	wanted.AddOffset(topic, 0, 4, -1)
	if err = a.CommitAllOffsets(ctx, topic, wanted); err != nil {
		return err
	}
	told, err := a.FetchOffsets(ctx, topic)
	if err = story.First(err, told.Error(), story.Same("position", told[topic][0].At, int64(4))); err != nil {
		return err
	}
	low, err := a.DeleteRecords(ctx, wanted)
	if err = story.First(err, low.Error(), story.Same("low", low[topic][0].LowWatermark, int64(4))); err != nil {
		return err
	}
	deleted, err := a.DeleteGroup(ctx, topic)
	return story.First(err, deleted.Err)
}

func acls(ctx context.Context, topic string) error {
	a := admin(peer.Secured)
	defer a.Close()
	b := kadm.NewACLs().Topics(topic).Allow("User:alice").AllowHosts().Operations(kadm.OpRead).ResourcePatternType(kadm.ACLPatternLiteral)
	made, err := a.CreateACLs(ctx, b)
	if err = story.First(err, made[0].Err, story.Same("made", len(made), 1)); err != nil {
		return err
	}
	removed, err := a.DeleteACLs(ctx, b)
	return story.First(err, removed[0].Err, story.Same("removed", len(removed[0].Deleted), 1))
}

func main() {
	peer.Tell("produce-consume", produce)
	peer.Tell("codecs", codecs)
	peer.Tell("group-cooperative", group(false))
	peer.Tell("group-range", group(false, kgo.Balancers(kgo.RangeBalancer())))
	peer.Tell("group-848", group(true))
	peer.Tell("transactions", transactions)
	peer.Tell("exactly-once", exactlyOnce)
	peer.Tell("topics", topics)
	peer.Tell("offsets", offsets)
	peer.Tell("acls", acls)
	fmt.Println("end")
}
