//! What hostile clients do. Each attack ends in time, has few connections (but for the one that is about many),
//! and sends to loopback only.

mod kept;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use meridian_protocol::RequestMessage;
use meridian_protocol::frame;
use meridian_protocol::messages::{
    AlterConfigsRequest, AlterConfigsResource, ApiVersionsRequest, CreatableTopic,
    CreateTopicsRequest, DescribeConfigsRequest, DescribeConfigsResource, DescribeLogDirsRequest,
    DescribeLogDirsTopic, FetchPartition, FetchRequest, FetchTopic, FindCoordinatorRequest,
    MetadataRequest, MetadataRequestTopic, ProducePartition, ProduceRequest, ProduceTopic,
};
use meridian_protocol::records::BatchBuilder;

use crate::client::connection::Connection;
use crate::client::{CallError, Tape};
use crate::clock;
use crate::failure::Failure;

/// Where the node is.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) kafka: SocketAddr,
    pub(super) admin: SocketAddr,
    /// Connections of the attack that opens many.
    pub(super) connection_count: usize,
}

/// One kind of hostility.
pub(super) struct Attack {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) run: fn(&Target, Instant),
}

pub(super) const ATTACKS: [Attack; 18] = [
    Attack {
        name: "trickle",
        about: "requests of 100 MiB are announced, most of them sent, and then little by little",
        run: trickle,
    },
    Attack {
        name: "half-open",
        about: "connections that begin a request and say no more",
        run: half_open,
    },
    Attack { name: "many", about: "thousands of connections that say nothing", run: many },
    Attack {
        name: "slow-probes",
        about: "connections to /health that never ask",
        run: slow_probes,
    },
    Attack { name: "names", about: "topics by the hundred thousand are created", run: names },
    Attack {
        name: "repeats",
        about: "one topic is named as often as a request has room for",
        run: repeats,
    },
    Attack { name: "configs", about: "configs of topics are altered and described", run: configs },
    Attack {
        name: "directories",
        about: "each partition is asked for by its number",
        run: directories,
    },
    Attack {
        name: "queue",
        about: "a fetch that waits for weeks, and large requests behind it",
        run: queue,
    },
    Attack { name: "deaf", about: "fetches of all there is whose answers nobody reads", run: deaf },
    Attack {
        name: "pipeline",
        about: "small requests without end, whose answers nobody reads",
        run: pipeline,
    },
    Attack { name: "impatient", about: "records whose answer is not waited for", run: impatient },
    Attack {
        name: "clients",
        about: "each request has a client id of its own",
        run: kept::clients,
    },
    Attack {
        name: "sessions",
        about: "fetch sessions begin and are not used",
        run: kept::sessions,
    },
    Attack {
        name: "members",
        about: "groups by the ten thousand, of members that never come back",
        run: kept::members,
    },
    Attack {
        name: "groups",
        about: "KIP-848 groups by the ten thousand, of one heartbeat each",
        run: kept::groups,
    },
    Attack {
        name: "producers",
        about: "producers by the ten thousand that write one record each",
        run: kept::producers,
    },
    Attack { name: "tails", about: "records in a thousand partitions at once", run: kept::tails },
];

const BULK: &str = "bulk";
const BULK_PARTITION_COUNT: i32 = 100;
const BULK_SIZE_BYTES: usize = 64 << 20;
const BATCH_SIZE_BYTES: usize = 900 << 10;
const LONGEST_BYTES: usize = 100 << 20;
const PAUSE: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(5);
const CLIENT_ID: &str = "hostile";

impl Target {
    /// Asks whether the node is well.
    pub(super) fn health(&self, patience: Duration) -> Result<(), CallError> {
        let address = self.admin;
        let broken = |source| CallError::Broken { address, source };
        let answer = self.get("/health", patience).map_err(broken)?;
        let detail = answer.lines().next().unwrap_or_default().to_owned();
        let is_well = detail.contains(" 200 ");
        if is_well { Ok(()) } else { Err(CallError::Nonsense { address, detail }) }
    }

    fn get(&self, path: &str, patience: Duration) -> io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&self.admin, patience)?;
        stream.set_read_timeout(Some(patience))?;
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: node\r\n\r\n").as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect_timeout(&self.kafka, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(stream)
    }

    /// Sends a frame again and again on connections of its own; reads no answer if `is_deaf`.
    fn send_on(&self, frame: &[u8], is_deaf: bool, until: Instant) {
        while clock::now() < until {
            let Ok(mut stream) = self.connect() else { return clock::sleep(PAUSE) };
            let sent = stream.write_all(frame);
            if !is_deaf && sent.is_ok() {
                let _or_closed = drain_one(&mut stream, until);
            }
            clock::sleep(PAUSE);
        }
    }
}

/// Creates a topic.
pub(super) fn create_topic(target: &Target, name: &str, count: i32) -> Result<(), Failure> {
    let failed = |error: CallError| Failure::Cluster(format!("topic {name}: {error}"));
    let mut connection =
        Connection::open(target.kafka, CLIENT_ID, &Arc::new(Tape::default())).map_err(failed)?;
    let topic = CreatableTopic {
        name: name.into(),
        num_partitions: count,
        replication_factor: -1,
        ..CreatableTopic::default()
    };
    let request = CreateTopicsRequest { topics: vec![topic], ..CreateTopicsRequest::default() };
    let answer = connection.call(&request, PATIENCE).map_err(failed)?;
    let code = answer.topics.first().map(|topic| topic.error_code).unwrap_or_default();
    CallError::check("create", code).map_err(failed)
}

/// Gives the attacks something to ask for.
pub(super) fn prepare(target: &Target) -> Result<(), Failure> {
    create_topic(target, BULK, BULK_PARTITION_COUNT)?;
    let failed = |error: CallError| Failure::Cluster(format!("topic {BULK}: {error}"));
    let mut connection =
        Connection::open(target.kafka, CLIENT_ID, &Arc::new(Tape::default())).map_err(failed)?;
    let batch_count = BULK_SIZE_BYTES / BATCH_SIZE_BYTES;
    for number in 0..batch_count {
        let partition = i32::try_from(number).unwrap_or_default() % BULK_PARTITION_COUNT;
        let answer = connection
            .call(&produce(partition, BATCH_SIZE_BYTES, 10_000), PATIENCE)
            .map_err(failed)?;
        let told = answer.responses.first().and_then(|topic| topic.partition_responses.first());
        let code = told.map(|told| told.error_code).unwrap_or_default();
        CallError::check("produce", code).map_err(failed)?;
    }
    // The topics of groups and of transactions are created by the first question for a coordinator.
    for kind in
        [FindCoordinatorRequest::KEY_TYPE_GROUP, FindCoordinatorRequest::KEY_TYPE_TRANSACTION]
    {
        find_coordinator(&mut connection, kind).map_err(failed)?;
    }
    Ok(())
}

fn find_coordinator(connection: &mut Connection, key_type: i8) -> Result<(), CallError> {
    let coordinator_keys = vec![CLIENT_ID.into()];
    let request = FindCoordinatorRequest { key: CLIENT_ID.into(), key_type, coordinator_keys };
    let until = clock::now() + PATIENCE;
    loop {
        let found = connection.call(&request, PATIENCE)?;
        let code = found.coordinators.first().map_or(found.error_code, |it| it.error_code);
        let checked = CallError::check("find the coordinator", code);
        if checked.is_ok() || clock::now() > until {
            return checked;
        }
        clock::sleep(PAUSE);
    }
}

fn trickle(target: &Target, until: Instant) {
    let run = |sent_bytes: usize| {
        let Ok(mut stream) = target.connect() else { return };
        let size = u32::try_from(LONGEST_BYTES).unwrap_or(u32::MAX);
        // Produce, version 9.
        let begun =
            stream.write_all(&size.to_be_bytes()).and_then(|()| stream.write_all(&[0, 0, 0, 9]));
        let some = vec![0; 1 << 20];
        let most = (0..sent_bytes >> 20).try_for_each(|_| stream.write_all(&some));
        if begun.and(most).is_err() {
            return;
        }
        while clock::now() < until && stream.write_all(&[0]).is_ok() {
            clock::sleep(PAUSE);
        }
    };
    std::thread::scope(|scope| {
        for number in 0..6 {
            // Half of them only announce.
            let sent_bytes = if number % 2 == 0 { LONGEST_BYTES - (2 << 20) } else { 128 << 10 };
            scope.spawn(move || run(sent_bytes));
        }
    });
}

fn half_open(target: &Target, until: Instant) {
    let open = |bytes: &'static [u8]| {
        let mut stream = target.connect().ok()?;
        stream.write_all(bytes).ok()?;
        Some(stream)
    };
    let begun: [&[u8]; 3] = [&[0, 0], &[0, 0, 1, 0], &[0, 0, 16, 0, 0, 3, 0, 12]];
    let held: Vec<TcpStream> = begun.iter().cycle().take(300).filter_map(|it| open(it)).collect();
    wait(until);
    drop(held);
}

fn many(target: &Target, until: Instant) {
    let mut held = Vec::new();
    while held.len() < target.connection_count && clock::now() < until {
        match TcpStream::connect_timeout(&target.kafka, PATIENCE) {
            Ok(stream) => held.push(stream),
            // This process, or the node, has no more.
            Err(_) => break,
        }
    }
    println!("{:<22} {} connections", "", held.len());
    wait(until);
    drop(held);
}

fn slow_probes(target: &Target, until: Instant) {
    while clock::now() < until {
        let open = |_| {
            let mut stream = TcpStream::connect_timeout(&target.admin, PATIENCE).ok()?;
            stream.write_all(b"GET /hea").ok()?;
            Some(stream)
        };
        let held: Vec<TcpStream> = (0..64).filter_map(open).collect();
        clock::sleep(PAUSE * 10);
        drop(held);
    }
}

fn names(target: &Target, until: Instant) {
    let topic = |number: usize| CreatableTopic {
        name: format!("t{number}").into(),
        num_partitions: 1,
        ..CreatableTopic::default()
    };
    let topics = (0..200_000).map(topic).collect();
    let request = CreateTopicsRequest { topics, validate_only: true, ..Default::default() };
    side_by_side(4, || target.send_on(&encode(5, &request), false, until));
}

fn repeats(target: &Target, until: Instant) {
    let topic = MetadataRequestTopic { name: Some(BULK.into()), ..Default::default() };
    let request = MetadataRequest { topics: Some(vec![topic; 200_000]), ..Default::default() };
    let metadata = encode(8, &request);
    let partition = FetchPartition { partition_max_bytes: i32::MAX, ..Default::default() };
    let fetch = encode(11, &fetch(vec![partition; 100_000], 0));
    std::thread::scope(|scope| {
        scope.spawn(|| target.send_on(&metadata, false, until));
        scope.spawn(|| target.send_on(&fetch, false, until));
    });
}

fn configs(target: &Target, until: Instant) {
    let names = || (0..200_000).map(|number| format!("t{number}"));
    let altered = |name: String| AlterConfigsResource {
        resource_type: 2,
        resource_name: name.into(),
        ..Default::default()
    };
    let request =
        AlterConfigsRequest { resources: names().map(altered).collect(), ..Default::default() };
    let alter = encode(1, &request);
    let described = DescribeConfigsResource {
        resource_type: 2,
        resource_name: BULK.into(),
        ..Default::default()
    };
    let request =
        DescribeConfigsRequest { resources: vec![described; 200_000], ..Default::default() };
    let describe = encode(1, &request);
    std::thread::scope(|scope| {
        scope.spawn(|| target.send_on(&alter, false, until));
        scope.spawn(|| target.send_on(&describe, false, until));
    });
}

fn directories(target: &Target, until: Instant) {
    let topic =
        DescribeLogDirsTopic { topic: BULK.into(), partitions: (0..400_000).rev().collect() };
    let request = DescribeLogDirsRequest { topics: Some(vec![topic]) };
    side_by_side(2, || target.send_on(&encode(1, &request), false, until));
}

fn queue(target: &Target, until: Instant) {
    let partition = FetchPartition {
        fetch_offset: i64::from(u32::MAX),
        partition_max_bytes: 1 << 20,
        ..Default::default()
    };
    // At the end of a partition that has nothing: it waits.
    let partition =
        FetchPartition { partition: BULK_PARTITION_COUNT - 1, fetch_offset: 0, ..partition };
    let waiting = encode(11, &FetchRequest { min_bytes: 1, ..fetch(vec![partition], i32::MAX) });
    let topic = MetadataRequestTopic { name: Some("".into()), ..Default::default() };
    let request = MetadataRequest { topics: Some(vec![topic; 500_000]), ..Default::default() };
    let behind = encode(1, &request);
    side_by_side(6, || {
        let Ok(mut stream) = target.connect() else { return };
        if stream.write_all(&waiting).is_err() {
            return;
        }
        // Stops when it is not read any more.
        for _ in 0..62 {
            if clock::now() > until || stream.write_all(&behind).is_err() {
                break;
            }
        }
        wait(until);
    });
}

fn deaf(target: &Target, until: Instant) {
    let partition = |number: i32| FetchPartition {
        partition: number,
        partition_max_bytes: 50 << 20,
        ..Default::default()
    };
    let all = (0..BULK_PARTITION_COUNT).map(partition).collect();
    let request = encode(11, &fetch(all, 0));
    side_by_side(64, || {
        let Ok(mut stream) = target.connect() else { return };
        let _or_closed = (0..16).try_for_each(|_| stream.write_all(&request));
        wait(until);
    });
}

fn pipeline(target: &Target, until: Instant) {
    let versions = encode(0, &ApiVersionsRequest::default());
    let all = encode(1, &MetadataRequest { topics: None, ..Default::default() });
    let many = [versions, all].concat().repeat(100);
    side_by_side(16, || {
        let Ok(mut stream) = target.connect() else { return };
        while clock::now() < until && stream.write_all(&many).is_ok() {}
    });
}

fn impatient(target: &Target, until: Instant) {
    let frame = encode(9, &produce(BULK_PARTITION_COUNT - 2, BATCH_SIZE_BYTES, 1));
    side_by_side(4, || {
        let Ok(mut stream) = target.connect() else { return };
        // Slow enough that the disk has time for others.
        while clock::now() < until && stream.write_all(&frame).is_ok() {
            let _or_closed = drain_one(&mut stream, until);
            clock::sleep(PAUSE);
        }
    });
}

fn produce(index: i32, size_bytes: usize, timeout_ms: i32) -> ProduceRequest {
    let mut batch = BatchBuilder::new();
    batch.append(clock::wall_ms(), None, Some(&vec![7; size_bytes]), &[]);
    let topic = ProduceTopic {
        name: BULK.into(),
        partition_data: vec![ProducePartition { index, records: Some(batch.build()) }],
        ..Default::default()
    };
    ProduceRequest { acks: -1, timeout_ms, topic_data: vec![topic], ..Default::default() }
}

fn fetch(partitions: Vec<FetchPartition>, max_wait_ms: i32) -> FetchRequest {
    let topic = FetchTopic { topic: BULK.into(), partitions, ..Default::default() };
    let topics = vec![topic];
    FetchRequest {
        max_wait_ms,
        max_bytes: i32::MAX,
        session_epoch: -1,
        topics,
        ..Default::default()
    }
}

fn encode<R: RequestMessage>(version: i16, request: &R) -> Bytes {
    encode_as(CLIENT_ID, version, request)
}

fn encode_as<R: RequestMessage>(client_id: &str, version: i16, request: &R) -> Bytes {
    let frame = frame::encode_request(version, 1, Some(client_id), request);
    // All requests here can be said in their versions.
    frame.map(|frame| frame.into_bytes()).unwrap_or_default()
}

/// Reads one answer.
fn drain_one(stream: &mut TcpStream, until: Instant) -> io::Result<()> {
    let patience = until.saturating_duration_since(clock::now()).max(PAUSE);
    stream.set_read_timeout(Some(patience))?;
    let mut prefix = [0; 4];
    stream.read_exact(&mut prefix)?;
    let size = u64::from(u32::from_be_bytes(prefix));
    io::copy(&mut stream.take(size), &mut io::sink()).map(drop)
}

fn side_by_side(count: usize, run: impl Fn() + Sync) {
    std::thread::scope(|scope| {
        for _ in 0..count {
            scope.spawn(&run);
        }
    });
}

fn wait(until: Instant) {
    clock::sleep(until.saturating_duration_since(clock::now()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_attacks_can_be_said() {
        assert!(encode(9, &produce(0, 10, 1)).len() > 10);
        assert!(!encode(11, &fetch(vec![FetchPartition::default()], 1)).is_empty());
    }

    #[test]
    fn names_of_attacks_are_not_repeated() {
        let mut names: Vec<&str> = ATTACKS.iter().map(|attack| attack.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ATTACKS.len());
    }
}
