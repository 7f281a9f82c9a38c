//! What this node holds of quotas, for operators: `quota.*` of the private API, and metrics.

use std::time::Duration;

use bytes::Bytes;
use meridian_admin_api::methods::QuotaHoldings;
use meridian_admin_api::quota::{Holding, Holdings};
use meridian_admin_api::{Besides, Method};
use meridian_base::id::NodeId;
use meridian_broker::quota::node::Holding as HeldQuota;

use super::entity::Part;
use super::throttles::Label;
use super::{Traffic, scope};
use crate::admin_api::{AdminError, answered_now};
use crate::kafka::dispatch::Call;
use crate::kafka::metrics::Sample;
use crate::kafka::{Front, usage};

/// How the names of these methods begin.
pub(in crate::kafka) const FAMILY: &str = "quota.";

/// Kinds of traffic whose quotas may hold for the cluster.
const SHARED: [Traffic; 3] = [Traffic::Produce, Traffic::Fetch, Traffic::Mutations];

fn holding(found: HeldQuota<Label>) -> Holding {
    let Label { traffic, shared_by } = found.label;
    let part = |part: Part| match part {
        Part::Absent => None,
        Part::Default => Some("<default>".to_owned()),
        Part::Named(name) => Some(usage::shown(&name).to_string()),
    };
    let ms = |left: Duration| u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
    Holding {
        quota: traffic.quota().to_owned(),
        user: part(shared_by.user),
        client_id: part(shared_by.client_id),
        ip: part(shared_by.ip),
        per_second: found.per_second,
        share_per_second: found.share,
        lease_ms: found.lease_left.map(ms),
        used_per_second: found.used_per_second,
        demand_per_second: found.demand,
        debt: found.debt,
        home: found.home.map(NodeId::get),
        besides: Besides::new(),
    }
}

/// Answers a method.
pub(in crate::kafka) fn answer(
    call: &Call,
    method: &str,
    body: &[u8],
) -> Result<Bytes, AdminError> {
    match method {
        QuotaHoldings::NAME => answered_now::<QuotaHoldings>(body, |_| Ok(holdings(&call.front))),
        _ => Err(AdminError::UnknownMethod(method.to_owned())),
    }
}

fn holdings(front: &Front) -> Holdings {
    let held = front.throttles.holdings(front.now());
    // The home is never locked under a guard of the metadata.
    let scope = scope::name(&front.broker.metadata()).to_owned();
    Holdings {
        node: front.broker.node().get(),
        scope,
        home_of: front.throttles.homed_count(),
        quotas: held.into_iter().map(holding).collect(),
    }
}

impl Front {
    /// What is published of quotas. Shares are sums over entities: clients choose their names.
    pub(in crate::kafka) fn quota_samples(&self) -> Vec<Sample> {
        let holdings = self.throttles.holdings(self.now());
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let plain = |name, value| Sample { name, label: None, value };
        let leases = holdings.iter().filter(|it| it.lease_left.is_some()).count();
        let mut samples = vec![
            plain("meridian_quota_entities", count(holdings.len())),
            plain("meridian_quota_leases", count(leases)),
            plain("meridian_quota_homed_entities", count(self.throttles.homed_count())),
        ];
        for traffic in SHARED {
            let of = || holdings.iter().filter(move |it| it.label.traffic == traffic);
            let (share, demand) =
                (of().map(|it| it.share).sum::<f64>(), of().map(|it| it.demand).sum::<f64>());
            let labelled = |name, value: f64| {
                // Saturates: a quota may be more than there are numbers for.
                Sample { name, label: Some(("quota", traffic.quota())), value: value as i64 }
            };
            samples.push(labelled("meridian_quota_share", share));
            samples.push(labelled("meridian_quota_demand", demand));
        }
        samples
    }
}
