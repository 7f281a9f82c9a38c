//! How old the rules may be that this node goes by: a node that is cut off from the metadata does not hear that a
//! right was taken away.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use meridian_base::env::Instant;

use super::{Authorization, Rights};
use crate::kafka::Front;

/// The metadata leader is asked so often in the time that rules may be old.
const QUESTION_COUNT: u32 = 12;

/// When this node last knew that it has all that was decided.
#[derive(Debug, Default)]
pub(in crate::kafka) struct Freshness {
    confirmed_us: AtomicU64,
}

impl Freshness {
    fn confirm(&self, asked_at: Instant) {
        self.confirmed_us.fetch_max(asked_at.as_micros(), Ordering::Relaxed);
    }

    fn confirmed_at(&self) -> Instant {
        Instant::from_micros(self.confirmed_us.load(Ordering::Relaxed))
    }
}

impl Front {
    /// Asks again and again whether the rules here are those of the cluster; never returns.
    pub(in crate::kafka) async fn confirm_rules(self: Arc<Self>) {
        let every = self.config.rules_age_max / QUESTION_COUNT;
        let mut ticks = crate::background::ticks(every);
        let mut is_said = false;
        loop {
            ticks.tick().await;
            let asked_at = self.now();
            let is_enforced = {
                let metadata = self.broker.metadata();
                self.access_rules.current(&metadata) == Authorization::Enforce
            };
            // Who is cut off does not hear that rules are enforced from now on, as it does not hear of any rule.
            if self.broker.catch_up_within(every).await.is_ok() {
                self.freshness.confirm(asked_at);
            }
            let is_old = self.has_old_rules(self.now());
            if is_old && is_enforced && !is_said {
                tracing::warn!(
                    "this node has not reached the metadata leader for {:?}, and may not know which rights were taken \
                     away: it closes the connections of all but super users; see `meridian cluster status`",
                    self.config.rules_age_max
                );
            }
            is_said = is_old;
        }
    }

    fn has_old_rules(&self, now: Instant) -> bool {
        now.since(self.freshness.confirmed_at()) > self.config.rules_age_max
    }

    /// Whether the rights of a client may have been taken away without this node having heard of it.
    pub(in crate::kafka) fn may_be_wrong(&self, rights: &Rights) -> bool {
        matches!(rights, Rights::User(rights) if rights.is_enforced)
            && self.has_old_rules(self.now())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use meridian_access::Principal;
    use meridian_base::sync::lock;
    use meridian_consensus::command::{Command, ExpectedVersion, RowChange, RowKind};
    use meridian_protocol::messages::MetadataRequest;

    use super::*;
    use crate::config::FrontConfig;
    use crate::kafka::connection::Close;
    use crate::kafka::testing::{FakeBroker, PATIENCE, TestClient, front_of, quick_config};

    #[tokio::test]
    async fn a_node_that_is_cut_off_serves_super_users_alone() {
        let broker = FakeBroker::single();
        let config = FrontConfig {
            super_users: vec![Principal::user("root")],
            rules_age_max: Duration::from_millis(600),
            ..quick_config()
        };
        let front = front_of(&broker, config);
        tokio::spawn(Arc::clone(&front).confirm_rules());
        let change = RowChange {
            kind: RowKind::Authorization,
            key: Authorization::KEY.to_vec(),
            value: Some(Authorization::Enforce.encode()),
            expected: ExpectedVersion::Any,
        };
        broker.decide(Command::PutRows(vec![change]));
        let connect = |name| TestClient::connect_as(&front, &Principal::user(name));
        let (mut al, mut root) = (connect("al"), connect("root"));
        al.call(12, MetadataRequest::default()).await;

        *lock(&broker.catch_up_takes) = Duration::from_secs(3600);
        let refused = async {
            while !front.has_old_rules(front.now()) {
                tokio::task::yield_now().await;
            }
            al.send(12, &MetadataRequest::default()).await;
            al.closed.await.expect("no panic")
        };
        let refused = tokio::time::timeout(PATIENCE, refused).await.expect("in time");
        assert!(matches!(refused, Close::CutOff), "{refused}");
        root.call(12, MetadataRequest::default()).await;

        *lock(&broker.catch_up_takes) = Duration::ZERO;
        let served = async {
            while front.has_old_rules(front.now()) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, served).await.expect("in time");
        connect("al").call(12, MetadataRequest::default()).await;
    }
}
