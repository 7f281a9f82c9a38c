//! The admin API's view of persistent source ids: `source.list`, asked of a partition's leader.

use std::sync::Arc;
use std::time::Duration;

use meridian_admin_api::topic::{ListSources, Source, SourcePage};
use meridian_base::position::Offset;
use tokio::sync::Notify;

use super::Node;
use crate::admin_api::AdminError;
use crate::log::PartitionLog;
use crate::partition::source::{SourceView, Sources};

/// Most sources in one answer.
const LIMIT_MAX: usize = 10_000;
/// How long what is being written is waited for.
const COMMITTED_WITHIN: Duration = Duration::from_secs(10);

fn shown(view: SourceView<'_>) -> Source {
    Source {
        producer_id: view.name.to_owned(),
        last_seqno: view.last_seqno.get(),
        last_offset: view.last_offset.get(),
        last_seen_ms: view.last_seen_ms,
    }
}

impl Node {
    /// Lists sources of a partition that this node leads. What is still being written is waited
    /// for: a client that resumes after it must find it in the log.
    pub(super) async fn list_sources(
        &self,
        request: ListSources,
    ) -> Result<SourcePage, AdminError> {
        let log = self.log_of_sources(&request.topic, request.partition)?;
        let not_led = || AdminError::Unavailable("another node leads the partition".to_owned());
        let listed = log.with_sources(|sources| list(sources, &request)).ok_or_else(not_led)?;
        let last = listed.sources.iter().map(|source| source.last_offset).max();
        if let Some(last) = last {
            let committed = committed_beyond(&log, Offset::new(last));
            match tokio::time::timeout(COMMITTED_WITHIN, committed).await {
                Ok(true) => {}
                Ok(false) => return Err(not_led()),
                Err(_) => {
                    let message = "what sources are writing is not committed yet";
                    return Err(AdminError::Unavailable(message.to_owned()));
                }
            }
        }
        Ok(listed)
    }

    fn log_of_sources(&self, topic: &str, index: u32) -> Result<Arc<PartitionLog>, AdminError> {
        let invalid = |message: String| AdminError::InvalidArguments(message);
        let partition = {
            let metadata = self.meta.metadata();
            let found = metadata
                .topic_named(topic)
                .ok_or_else(|| invalid(format!("there is no topic {topic}")))?;
            if !crate::meta::dedups_sources(&metadata, found.id) {
                return Err(invalid(format!(
                    "topic {topic} remembers no sources; set its config meridian.dedup=source"
                )));
            }
            let partition = metadata.partition_at(found.id, index);
            partition.ok_or_else(|| invalid(format!("{topic} has no partition {index}")))?.0
        };
        let led = self.logs.led(partition);
        led.ok_or_else(|| AdminError::Unavailable("another node leads the partition".to_owned()))
    }
}

fn list(sources: &Sources, request: &ListSources) -> SourcePage {
    let count = sources.count();
    if let Some(name) = &request.producer_id {
        let sources = sources.get(name).map(shown).into_iter().collect();
        return SourcePage { count, sources, more: false };
    }
    let limit = request.limit.unwrap_or(LIMIT_MAX).clamp(1, LIMIT_MAX);
    let mut left = sources.after(request.after.as_deref().unwrap_or(""));
    let sources = left.by_ref().take(limit).map(shown).collect();
    SourcePage { count, sources, more: left.next().is_some() }
}

/// Waits until the high watermark is above `offset`; false if the partition is lost before.
async fn committed_beyond(log: &PartitionLog, offset: Offset) -> bool {
    let bell = Arc::new(Notify::new());
    log.notify_on_progress(&bell);
    loop {
        if log.high_watermark() > offset {
            return true;
        }
        if !log.is_serving() {
            return false;
        }
        bell.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use meridian_protocol::records::{Batch, BatchBuilder};

    use super::*;
    use crate::partition::source::{PRODUCER_ID_HEADER, SEQNO_HEADER, SourcedBatch};

    fn some(names: &[&str]) -> Sources {
        let mut builder = BatchBuilder::new();
        for name in names {
            let headers =
                [(PRODUCER_ID_HEADER, Some(name.as_bytes())), (SEQNO_HEADER, Some(&b"7"[..]))];
            builder.append(1, None, None, &headers);
        }
        let batch = Batch::produced(Some(builder.build())).unwrap();
        let mut sources = Sources::default();
        sources.apply(&SourcedBatch::produced(&batch, 5).unwrap(), Offset::new(100));
        sources
    }

    fn names(arguments: &str) -> (Vec<String>, bool) {
        let listed = list(&some(&["c", "a", "b"]), &serde_json::from_str(arguments).unwrap());
        assert_eq!(listed.count, 3);
        let names = listed.sources.into_iter().map(|source| source.producer_id).collect();
        (names, listed.more)
    }

    #[test]
    fn pages_follow_each_other() {
        let all = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let of = r#"{"topic": "t", "partition": 0}"#;
        assert_eq!(names(of), (all(&["a", "b", "c"]), false));
        let of = r#"{"topic": "t", "partition": 0, "limit": 2}"#;
        assert_eq!(names(of), (all(&["a", "b"]), true));
        let of = r#"{"topic": "t", "partition": 0, "limit": 2, "after": "b"}"#;
        assert_eq!(names(of), (all(&["c"]), false));
        let of = r#"{"topic": "t", "partition": 0, "producer_id": "b"}"#;
        assert_eq!(names(of), (all(&["b"]), false));
        let of = r#"{"topic": "t", "partition": 0, "producer_id": "d"}"#;
        assert_eq!(names(of), (all(&[]), false));
    }
}
