use std::sync::{Mutex, MutexGuard};

use meridian_protocol::messages::{
    ApiVersion, ApiVersionsResponse, MetadataBroker, MetadataPartition, MetadataResponse,
    MetadataTopic, ProducePartitionResponse, ProduceTopicResponse,
};
use meridian_protocol::records::{BatchBuilder, BatchHeader};
use meridian_protocol::{Request, Response, frame};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;

const TOPIC: &str = "t";
const BATCH_COUNT: i32 = 40;

/// How a leader ends that is the first one no longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// It says so.
    Refuses,
    /// Its connections break.
    Dies,
}

/// One partition, whose leader moves from the first of two brokers to the second.
#[derive(Debug)]
struct Cluster {
    ports: [u16; 2],
    end: End,
    /// The first leader's last batch.
    moves_after: i32,
    /// The sequence that comes next: all before it are written.
    next: i32,
    produce_count: usize,
}

impl Cluster {
    async fn start(end: End, moves_after: i32) -> Arc<Mutex<Self>> {
        let mut listeners = Vec::new();
        for _ in 0..2 {
            listeners.push(TcpListener::bind("127.0.0.1:0").await.expect("a port"));
        }
        let port = |at: usize| listeners[at].local_addr().expect("bound").port();
        let ports = [port(0), port(1)];
        let it = Self { ports, end, moves_after, next: 0, produce_count: 0 };
        let cluster = Arc::new(Mutex::new(it));
        for (index, listener) in listeners.into_iter().enumerate() {
            let cluster = Arc::clone(&cluster);
            tokio::spawn(async move {
                while let Ok((client, _)) = listener.accept().await {
                    tokio::spawn(serve(client, index, Arc::clone(&cluster)));
                }
            });
        }
        cluster
    }

    fn leader(&self) -> usize {
        usize::from(self.next >= self.moves_after)
    }

    fn answer(&mut self, broker: usize, request: &Request) -> Option<Response> {
        match request {
            Request::ApiVersions(_) => {
                let api_keys = ApiVersion::advertise(ApiKey::ALL);
                Some(ApiVersionsResponse { api_keys, ..Default::default() }.into())
            }
            Request::Metadata(_) => Some(self.metadata().into()),
            Request::Produce(request) => {
                self.produce_count += 1;
                if broker != self.leader() && self.end == End::Dies {
                    return None;
                }
                Some(self.produce(broker, request).into())
            }
            other => panic!("not expected: {other:?}"),
        }
    }

    fn metadata(&self) -> MetadataResponse {
        let leader_id = i32::from(self.leader() == 1);
        let partition = MetadataPartition { leader_id, ..Default::default() };
        let topic = MetadataTopic {
            name: Some(TOPIC.into()),
            partitions: vec![partition],
            ..Default::default()
        };
        let broker = |(node_id, port): (i32, &u16)| MetadataBroker {
            node_id,
            host: "127.0.0.1".into(),
            port: i32::from(*port),
            rack: None,
        };
        let brokers = (0..).zip(&self.ports).map(broker).collect();
        MetadataResponse { brokers, topics: vec![topic], ..Default::default() }
    }

    /// Batches of one record, in order or not at all.
    fn produce(&mut self, broker: usize, request: &ProduceRequest) -> ProduceResponse {
        let records = request.topic_data[0].partition_data[0].records.clone().expect("a batch");
        let sequence = sequence_of(&records);
        let (error_code, base_offset) = if broker != self.leader() {
            (ErrorCode::NotLeaderOrFollower, -1)
        } else if sequence < self.next {
            (ErrorCode::DuplicateSequenceNumber, i64::from(sequence))
        } else if sequence > self.next {
            (ErrorCode::OutOfOrderSequenceNumber, -1)
        } else {
            self.next += 1;
            (ErrorCode::None, i64::from(sequence))
        };
        let answer = ProducePartitionResponse { error_code, base_offset, ..Default::default() };
        let topic = ProduceTopicResponse {
            name: TOPIC.into(),
            partition_responses: vec![answer],
            ..Default::default()
        };
        ProduceResponse { responses: vec![topic], ..Default::default() }
    }
}

fn sequence_of(records: &Bytes) -> i32 {
    BatchHeader::parse(records).expect("a batch").base_sequence
}

fn lock(cluster: &Mutex<Cluster>) -> MutexGuard<'_, Cluster> {
    cluster.lock().expect("nobody panicked")
}

async fn serve(mut client: TcpStream, broker: usize, cluster: Arc<Mutex<Cluster>>) {
    while let Ok(size_bytes) = client.read_u32().await {
        let mut bytes = vec![0; size_bytes as usize];
        if client.read_exact(&mut bytes).await.is_err() {
            return;
        }
        let (header, request) = frame::decode_request(bytes.into()).expect("a request");
        let Some(response) = lock(&cluster).answer(broker, &request) else { return };
        let answer = frame::encode_response(header.version, header.correlation_id, &response);
        if client.write_all(&answer.expect("fits").into_bytes()).await.is_err() {
            return;
        }
    }
}

/// Writes batches, always as many in flight as may be; gives how often one was sent again.
async fn write_all(cluster: &Mutex<Cluster>) -> u64 {
    let port = lock(cluster).ports[1];
    let client = Client::connect(&format!("127.0.0.1:{port}")).await.expect("it serves");
    let options = WriteOptions {
        acks: Acks::All,
        in_flight_max: IDEMPOTENT_IN_FLIGHT_MAX,
        delivery_timeout: Duration::from_secs(60),
        lane: Lane::CONTROL,
    };
    let mut writer = PartitionWriter::new(client, TOPIC, 0, options);
    let (mut sent, mut acked) = (0, 0);
    while acked < BATCH_COUNT {
        while sent < BATCH_COUNT && !writer.is_full() {
            let mut batch = BatchBuilder::new().producer(7, 0, sent);
            batch.append(0, None, Some(b"v"), &[]);
            writer.send(batch.build(), sent).await;
            sent += 1;
        }
        let answer = writer.next().await.expect("in flight").expect("written");
        assert_eq!((answer.tag, answer.base_offset), (acked, i64::from(acked)));
        acked += 1;
    }
    writer.retry_count()
}

#[tokio::test]
async fn after_a_change_of_leader_everything_in_flight_is_sent_again_once() {
    for end in [End::Refuses, End::Dies] {
        let cluster = Cluster::start(end, BATCH_COUNT / 2).await;
        let retry_count = write_all(&cluster).await;
        assert_eq!(lock(&cluster).next, BATCH_COUNT);
        assert!(retry_count <= 5, "{end:?}: {retry_count} batches were sent again");
        let sent_count = lock(&cluster).produce_count;
        assert!(sent_count <= BATCH_COUNT as usize + 5, "{end:?}: {sent_count} were sent");
    }
}

#[test]
fn sequences_wrap_to_zero_and_stay_unset_without_an_id() {
    let identity = ProducerIdentity { id: 7, epoch: 0 };
    assert_eq!(identity.first_sequence(), 0);
    assert_eq!(identity.advance(0, 3), 3);
    assert_eq!(identity.advance(i32::MAX, 1), 0);
    assert_eq!(identity.advance(i32::MAX - 1, 3), 1);
    assert_eq!(ProducerIdentity::NONE.advance(NO_SEQUENCE, 3), NO_SEQUENCE);
    assert_eq!(ProducerIdentity::NONE.first_sequence(), NO_SEQUENCE);
}
