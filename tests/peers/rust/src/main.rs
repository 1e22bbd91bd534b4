//! The stories of rskafka, which has no groups and no transactions: peer ADDRESS ADDRESS-WITH-ACLS PREFIX [STORY...]

use std::collections::BTreeMap;
use std::error::Error;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::DateTime;
use futures::future::{join_all, try_join_all};
use futures::StreamExt;
use rskafka::client::consumer::{StartOffset, StreamConsumerBuilder};
use rskafka::client::error::{Error as ClientError, ProtocolError};
use rskafka::client::partition::{Compression, OffsetAt, PartitionClient, UnknownTopicHandling};
use rskafka::client::producer::aggregator::RecordAggregator;
use rskafka::client::producer::BatchProducerBuilder;
use rskafka::client::{Client, ClientBuilder};
use rskafka::record::Record;

/// How long a story may take: the machine may do much else.
const PATIENCE: Duration = Duration::from_secs(60);
const WAIT_MS: i32 = 30_000;
const FIRST_MS: i64 = 1_700_000_000_000;

type Told = Result<(), Box<dyn Error>>;

fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Told {
    if found == expected {
        return Ok(());
    }
    Err(format!("{what}: expected {expected:?}, found {found:?}").into())
}

fn refused<T>(with: ProtocolError, told: Result<T, ClientError>) -> Told {
    match told {
        Err(ClientError::ServerError { protocol_error, .. }) => same("the error", protocol_error, with),
        Err(other) => Err(other.into()),
        Ok(_) => Err("it was not refused".into()),
    }
}

fn record(number: i64) -> Record {
    Record {
        key: Some(format!("k{number}").into_bytes()),
        value: Some(number.to_string().into_bytes()),
        headers: BTreeMap::from([("n".to_owned(), number.to_string().into_bytes())]),
        timestamp: DateTime::from_timestamp_millis(FIRST_MS + number).expect("a time"),
    }
}

/// A client, and the topic of its story.
struct Peer {
    client: Client,
    topic: String,
}

impl Peer {
    /// The topic's partitions, once it is created.
    async fn created(&self, partitions: i32) -> Result<Vec<Arc<PartitionClient>>, Box<dyn Error>> {
        self.client.controller_client()?.create_topic(&self.topic, partitions, 1, WAIT_MS).await?;
        let opened = (0..partitions)
            .map(|each| self.client.partition_client(&self.topic, each, UnknownTopicHandling::Retry));
        Ok(try_join_all(opened).await?.into_iter().map(Arc::new).collect())
    }
}

/// All records from an offset to the end.
async fn read(partition: &PartitionClient, from: i64) -> Result<Vec<(i64, Record)>, Box<dyn Error>> {
    let end = partition.get_offset(OffsetAt::Latest).await?;
    let (mut found, mut next) = (Vec::new(), from);
    while next < end {
        let (records, high_watermark) = partition.fetch_records(next, 1..1_000_000, 1_000).await?;
        same("the end", high_watermark, end)?;
        next = records.last().ok_or("no records came")?.offset + 1;
        found.extend(records.into_iter().map(|each| (each.offset, each.record)));
    }
    Ok(found)
}

async fn produce_consume(peer: Peer) -> Told {
    for (part, partition) in peer.created(3).await?.iter().enumerate() {
        let sent: Vec<Record> = (0..1000).map(|each| record(each * 3 + part as i64)).collect();
        let offsets = partition.produce(sent.clone(), Compression::NoCompression).await?;
        same("the offsets", offsets, (0..1000).collect())?;
        let expected: Vec<(i64, Record)> = (0..1000).zip(sent).collect();
        same("the records", read(partition, 0).await?, expected)?;
    }
    Ok(())
}

async fn tombstones(peer: Peer) -> Told {
    let partition = &peer.created(1).await?[0];
    let bare = |key: Option<&str>, value: Option<&str>| Record {
        key: key.map(Into::into),
        value: value.map(Into::into),
        headers: BTreeMap::new(),
        ..record(0)
    };
    let sent = vec![bare(None, None), bare(Some(""), Some("")), bare(Some("k"), None)];
    partition.produce(sent.clone(), Compression::NoCompression).await?;
    let found: Vec<Record> = read(partition, 0).await?.into_iter().map(|each| each.1).collect();
    same("the records", found, sent)
}

async fn codec(peer: Peer, kind: Compression) -> Told {
    let partition = &peer.created(1).await?[0];
    for first in [0, 1000] {
        partition.produce((first..first + 1000).map(record).collect(), kind).await?;
    }
    let expected: Vec<(i64, Record)> = (0..2000).map(|each| (each, record(each))).collect();
    same("the records", read(partition, 0).await?, expected)
}

async fn small_records(peer: Peer) -> Told {
    let partition = peer.created(1).await?.remove(0);
    for first in (0..10_000).step_by(100) {
        let requests = (first..first + 100).map(|each| partition.produce(vec![record(each)], Compression::NoCompression));
        let mut offsets: Vec<i64> = try_join_all(requests).await?.concat();
        offsets.sort_unstable();
        same("the offsets", offsets, (first..first + 100).collect())?;
    }
    same("records", read(&partition, 0).await?.len(), 10_000)
}

async fn batches(peer: Peer) -> Told {
    let partition = peer.created(1).await?.remove(0);
    let producer = BatchProducerBuilder::new(partition.clone())
        .with_linger(Duration::from_millis(5))
        .with_compression(Compression::Lz4)
        .build(RecordAggregator::new(10_000));
    let sent = join_all((0..3000).map(|each| producer.produce(record(each)))).await;
    let mut offsets = sent.into_iter().collect::<Result<Vec<i64>, _>>()?;
    offsets.sort_unstable();
    same("the offsets", offsets, (0..3000).collect())
}

async fn stream(peer: Peer) -> Told {
    let partition = peer.created(1).await?.remove(0);
    let reading = StreamConsumerBuilder::new(partition.clone(), StartOffset::Earliest).with_max_wait_ms(500).build();
    let writing = async {
        for each in 0..200 {
            partition.produce(vec![record(each)], Compression::NoCompression).await?;
        }
        Ok::<(), ClientError>(())
    };
    let (found, written) = tokio::join!(reading.take(200).collect::<Vec<_>>(), writing);
    written?;
    for (each, told) in found.into_iter().enumerate() {
        same("the offset", told?.0.offset, each as i64)?;
    }
    Ok(())
}

async fn offsets(peer: Peer) -> Told {
    let partition = &peer.created(1).await?[0];
    partition.produce((0..100).map(record).collect(), Compression::NoCompression).await?;
    let at = |ms: i64| OffsetAt::Timestamp(DateTime::from_timestamp_millis(FIRST_MS + ms).expect("a time"));
    for (asked, offset) in [(OffsetAt::Earliest, 0), (OffsetAt::Latest, 100), (at(7), 7), (at(-50), 0), (at(100), -1)] {
        same(&format!("{asked:?}"), partition.get_offset(asked).await?, offset)?;
    }
    refused(ProtocolError::OffsetOutOfRange, partition.fetch_records(1000, 1..1_000_000, 100).await)
}

async fn delete_records(peer: Peer) -> Told {
    let partition = &peer.created(1).await?[0];
    partition.produce((0..10).map(record).collect(), Compression::NoCompression).await?;
    partition.delete_records(4, WAIT_MS).await?;
    same("the start", partition.get_offset(OffsetAt::Earliest).await?, 4)?;
    same("records", read(partition, 4).await?.len(), 6)?;
    refused(ProtocolError::OffsetOutOfRange, partition.fetch_records(0, 1..1_000_000, 100).await)
}

async fn topics(peer: Peer) -> Told {
    peer.created(4).await?;
    let controller = peer.client.controller_client()?;
    refused(ProtocolError::TopicAlreadyExists, controller.create_topic(&peer.topic, 4, 1, WAIT_MS).await)?;
    let listed = peer.client.list_topics().await?;
    let found = listed.iter().find(|each| each.name == peer.topic).ok_or("it is not listed")?;
    same("partitions", found.partitions.len(), 4)?;
    controller.delete_topic(&peer.topic, WAIT_MS).await?;
    let listed = peer.client.list_topics().await?;
    same("it is listed", listed.iter().any(|each| each.name == peer.topic), false)
}

/// Runs a story unless others are asked for, and prints a line about it.
async fn tell<F: Future<Output = Told>>(arguments: &[String], name: &str, story: impl FnOnce(Peer) -> F) -> Told {
    if arguments.len() > 3 && !arguments[3..].iter().any(|each| each == name) {
        return Ok(());
    }
    let client = ClientBuilder::new(vec![arguments[0].clone()]).build().await?;
    let (begun, peer) = (Instant::now(), Peer { client, topic: format!("{}-{name}", arguments[2]) });
    match tokio::time::timeout(PATIENCE, story(peer)).await {
        Ok(Ok(())) => println!("ok {name} {}", begun.elapsed().as_millis()),
        Ok(Err(error)) => println!("failed {name} {}", error.to_string().replace('\n', " ")),
        Err(_) => println!("failed {name} it does not end"),
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Told {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    tell(&arguments, "produce-consume", produce_consume).await?;
    tell(&arguments, "tombstones", tombstones).await?;
    tell(&arguments, "codec-gzip", |peer| codec(peer, Compression::Gzip)).await?;
    tell(&arguments, "codec-snappy", |peer| codec(peer, Compression::Snappy)).await?;
    tell(&arguments, "codec-lz4", |peer| codec(peer, Compression::Lz4)).await?;
    tell(&arguments, "codec-zstd", |peer| codec(peer, Compression::Zstd)).await?;
    tell(&arguments, "small-records", small_records).await?;
    tell(&arguments, "batches", batches).await?;
    tell(&arguments, "stream", stream).await?;
    tell(&arguments, "offsets", offsets).await?;
    tell(&arguments, "delete-records", delete_records).await?;
    tell(&arguments, "topics", topics).await?;
    println!("end");
    Ok(())
}
