//! DescribeTransactions and ListTransactions (KIP-664, KIP-994, KIP-1152).

use std::collections::{BTreeMap, HashSet};

use meridian_access::{Operation, Resource};
use meridian_consensus::state::{Metadata, Topic};
use meridian_protocol::messages::{
    DescribeTransactionsRequest, DescribeTransactionsResponse, DescribedTransaction,
    DescribedTransactionTopic, ListTransactionsRequest, ListTransactionsResponse,
    ListedTransaction,
};
use meridian_protocol::{ErrorCode, Str};
use regex::{Regex, RegexBuilder};

use super::Kept;
use crate::kafka::access::Rights;
use crate::kafka::dispatch::Call;
use crate::transaction::Transaction;

/// What Kafka knows as states. The last two are never seen here: fencing and expiry are decided in
/// one step.
const STATES: [&str; 8] = [
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "PrepareEpochFence",
    "Dead",
];
/// Memory that a pattern may take once it is compiled.
const PATTERN_SIZE_BYTES_MAX: usize = 1 << 20;

/// Describes transactions by their ids.
pub(crate) async fn describe(
    call: Call,
    request: DescribeTransactionsRequest,
) -> DescribeTransactionsResponse {
    let describe = |transactional_id: Str| match describe_one(&call, &transactional_id) {
        Ok(described) => DescribedTransaction { transactional_id, ..described },
        Err(error_code) => {
            call.front.metrics.on_error(error_code);
            DescribedTransaction { error_code, transactional_id, ..Default::default() }
        }
    };
    let transaction_states = request.transactional_ids.into_iter().map(describe).collect();
    DescribeTransactionsResponse { transaction_states, ..Default::default() }
}

fn describe_one(call: &Call, id: &str) -> Result<DescribedTransaction, ErrorCode> {
    if id.is_empty() {
        return Err(ErrorCode::InvalidRequest);
    }
    call.check(Operation::Describe, Resource::transactional_id(id))?;
    let coordinator = call.front.transaction_coordinator(id)?;
    // In this order everywhere: the metadata, then a state.
    let metadata = call.front.broker.metadata();
    let transactions = coordinator.state()?;
    let known = transactions.get(id).ok_or(ErrorCode::TransactionalIdNotFound)?;
    if !is_of_client(call, &metadata, known) {
        return Err(ErrorCode::TransactionalIdNotFound);
    }
    Ok(DescribedTransaction {
        transaction_state: known.phase().name().into(),
        transaction_timeout_ms: known.timeout_ms(),
        transaction_start_time_ms: known.open().map_or(-1, |open| open.started_at_ms),
        producer_id: known.current().id,
        producer_epoch: known.current().epoch,
        topics: topics(call, &metadata, known),
        ..Default::default()
    })
}

fn topics(
    call: &Call,
    metadata: &Metadata,
    transaction: &Transaction,
) -> Vec<DescribedTransactionTopic> {
    let mut topics: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
    let partitions = transaction.open().into_iter().flat_map(|open| &open.partitions);
    for partition in partitions.filter_map(|id| metadata.partition(*id)) {
        let Some(topic) = metadata.topic(partition.topic) else { continue };
        if !call.sees(Operation::Describe, Resource::topic(&topic.name)) {
            continue;
        }
        topics.entry(&topic.name).or_default().push(partition.index.cast_signed());
    }
    let told = |(topic, partitions): (&str, _)| DescribedTransactionTopic {
        topic: topic.into(),
        partitions,
    };
    topics.into_iter().map(told).collect()
}

/// Whether the client may see and end a transaction whose id it has the right to. A link may, before a switchover, if
/// it is open in a topic that the link may take over.
fn is_of_client(call: &Call, metadata: &Metadata, transaction: &Transaction) -> bool {
    let Rights::Link(_) = call.rights else { return true };
    let may = |topic: &Topic| call.may(Operation::Alter, Resource::topic(&topic.name));
    let partitions = transaction.open().into_iter().flat_map(|open| &open.partitions);
    let partitions = partitions.filter_map(|it| metadata.partition(*it));
    partitions.filter_map(|it| metadata.topic(it.topic)).any(may)
}

/// Refuses a client that may not begin a new instance of a producer, which ends the transaction of the one before.
pub(crate) fn check_end(call: &Call, id: &str) -> Result<(), ErrorCode> {
    call.check(Operation::Write, Resource::transactional_id(id))?;
    let Rights::Link(_) = call.rights else { return Ok(()) };
    let coordinator = call.front.transaction_coordinator(id)?;
    let metadata = call.front.broker.metadata();
    let transactions = coordinator.state()?;
    let may_end = transactions.get(id).is_some_and(|known| is_of_client(call, &metadata, known));
    if may_end { Ok(()) } else { Err(ErrorCode::TransactionalIdAuthorizationFailed) }
}

/// Which transactions to list.
struct Filter {
    states: HashSet<Str>,
    producer_ids: HashSet<i64>,
    began_before_ms: Option<i64>,
    pattern: Option<Regex>,
}

impl Filter {
    fn new(now_ms: i64, request: &ListTransactionsRequest) -> Result<Self, ErrorCode> {
        let pattern = request.transactional_id_pattern.as_deref().filter(|it| !it.is_empty());
        let compile = |pattern: &str| {
            let compiled = RegexBuilder::new(pattern).size_limit(PATTERN_SIZE_BYTES_MAX).build();
            compiled.map_err(|_| ErrorCode::InvalidRegularExpression)
        };
        // The whole id must match; what is no pattern by itself does not become one by that.
        let whole =
            |pattern: &str| compile(pattern).and_then(|_| compile(&format!("^(?:{pattern})$")));
        let age_ms = Some(request.duration_filter).filter(|age_ms| *age_ms >= 0);
        Ok(Self {
            states: request.state_filters.iter().cloned().collect(),
            producer_ids: request.producer_id_filters.iter().copied().collect(),
            began_before_ms: age_ms.map(|age_ms| now_ms.saturating_sub(age_ms)),
            pattern: pattern.map(whole).transpose()?,
        })
    }

    fn takes(&self, id: &str, transaction: &Transaction) -> bool {
        let state = transaction.phase().name();
        let has_state = self.states.is_empty() || self.states.contains(state);
        let producer_id = transaction.current().id;
        let has_id = self.producer_ids.is_empty() || self.producer_ids.contains(&producer_id);
        let is_old = self.began_before_ms.is_none_or(|before_ms| {
            transaction.open().is_some_and(|open| open.started_at_ms < before_ms)
        });
        let matches = self.pattern.as_ref().is_none_or(|pattern| pattern.is_match(id));
        has_state && has_id && is_old && matches
    }
}

/// Lists the transactions that this node coordinates.
pub(crate) async fn list(call: Call, request: ListTransactionsRequest) -> ListTransactionsResponse {
    match try_list(&call, &request) {
        Ok(transaction_states) => {
            let is_unknown = |state: &&Str| !STATES.contains(&&***state);
            let unknown = request.state_filters.iter().filter(is_unknown).cloned().collect();
            let unknown_state_filters = unknown;
            ListTransactionsResponse {
                unknown_state_filters,
                transaction_states,
                ..Default::default()
            }
        }
        Err(error_code) => {
            call.front.metrics.on_error(error_code);
            ListTransactionsResponse { error_code, ..Default::default() }
        }
    }
}

fn try_list(
    call: &Call,
    request: &ListTransactionsRequest,
) -> Result<Vec<ListedTransaction>, ErrorCode> {
    let filter = Filter::new(call.front.broker.wall_time_ms(), request)?;
    let coordinators = call.front.internal_partitions::<Kept>();
    // In this order everywhere: the metadata, then a state.
    let metadata = call.front.broker.metadata();
    let may = |id: &str, transaction: &Transaction| {
        call.sees(Operation::Describe, Resource::transactional_id(id))
            && is_of_client(call, &metadata, transaction)
    };
    let mut listed = Vec::new();
    for coordinator in coordinators {
        let coordinator = coordinator?;
        let transactions = coordinator.state()?;
        let taken = transactions.all().filter(|(id, it)| filter.takes(id, it) && may(id, it));
        listed.extend(taken.map(|(id, transaction)| ListedTransaction {
            transactional_id: id.into(),
            producer_id: transaction.current().id,
            transaction_state: transaction.phase().name().into(),
        }));
    }
    listed.sort_unstable_by(|a, b| a.transactional_id.cmp(&b.transactional_id));
    Ok(listed)
}
