//! What a node finds of itself: its disk, its partitions, its links, its clock, its certificate.

use std::time::Duration;

use meridian_base::id::NodeId;
use meridian_storage::store::DiskUsage;

use super::{Condition, Partitions, RefusedFor};

/// A disk with less room for puts than this refuses batches of the usual largest size.
const FULL_LEFT_BYTES: u64 = 1 << 20;
/// Above this share of live bytes emptying old files gives hardly any room back.
const NEARLY_FULL_LIVE_PERCENT: u64 = 85;
/// Below this share of room left the disk is nearly full, whatever may be emptied.
const NEARLY_FULL_LEFT_PERCENT: u64 = 5;
/// Blobs that wait longer than this are worth a line: a put takes milliseconds.
pub(crate) const COMMITTED_WITHIN: Duration = Duration::from_secs(5);
/// Most takeovers take less than a second.
pub(crate) const SERVED_WITHIN: Duration = Duration::from_secs(10);
/// A refused request counts for so long: clients retry within a second or so.
pub(crate) const REFUSAL_COUNTS_FOR: Duration = Duration::from_secs(15);
/// A certificate that ends within this is worth a line.
pub(crate) const CERTIFICATE_ENDS_WITHIN: Duration = Duration::from_secs(30 * 24 * 3600);
/// An object store that has failed for so long is worth a line: a request is tried again for longer than a moment.
const OBJECTS_FAIL_FOR: Duration = Duration::from_secs(10);
/// What others take of a disk is worth a line once less than this share of the journal's size is free.
const TAKEN_LEFT_PERCENT: u64 = 20;
/// Partitions that are taken over for longer than this are worth a line: most takeovers take a tenth of it.
pub(crate) const OPENED_WITHIN: Duration = Duration::from_secs(3);
/// A clock this far from the cluster's is worth a line.
const CLOCK_APART_MS_MAX: u64 = 5_000;
/// A peer may be away for so long before it is worth a line: a restart takes less.
pub(crate) const REACHED_WITHIN: Duration = Duration::from_secs(10);

/// A source may be away for so long before its link is down: its leaders move, too.
pub(crate) const LINK_DOWN_AFTER: Duration = Duration::from_secs(5);

/// What was observed of this node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observed {
    pub(crate) disk: Option<DiskObserved>,
    /// Nodes that the cluster takes for alive and that have been away for [`REACHED_WITHIN`].
    pub(crate) unreachable: Vec<NodeId>,
    pub(crate) not_committing: Option<NotCommitting>,
    /// For how long the oldest takeover has lasted, of those that took longer than [`SERVED_WITHIN`].
    pub(crate) not_serving: Option<(Partitions, Duration)>,
    /// Takeovers that took longer than [`OPENED_WITHIN`], and not that long.
    pub(crate) opening: Option<Partitions>,
    /// For how long the object store has failed, and why.
    pub(crate) objects_failing: Option<(Duration, String)>,
    /// Refusals within [`REFUSAL_COUNTS_FOR`].
    pub(crate) refused: Vec<(RefusedFor, Partitions)>,
    /// By the cluster that grants.
    pub(crate) leases_missing: Vec<(String, Partitions)>,
    pub(crate) links: Vec<LinkObserved>,
    pub(crate) secrets: SecretsObserved,
    pub(crate) links_shared: Vec<SharedLink>,
    /// Until the certificate ends; negative once it has.
    pub(crate) certificate_hours_left: Option<i64>,
    /// Until the certificates of listeners end, by the names of these; negative once they have.
    pub(crate) listeners_hours_left: Vec<(String, i64)>,
    /// How far the host's clock is ahead of the cluster's.
    pub(crate) clock_ahead_ms: Option<i64>,
}

/// A node's disk.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DiskObserved {
    pub(crate) usage: DiskUsage,
    /// Whether it refused a put for want of room within [`REFUSAL_COUNTS_FOR`].
    pub(crate) has_refused: bool,
    pub(crate) unreadable: u64,
    /// Room on its file systems, once that is known.
    pub(crate) free_bytes: Option<u64>,
}

/// Partitions whose oldest blob has waited for [`COMMITTED_WITHIN`].
#[derive(Clone, Debug)]
pub(crate) struct NotCommitting {
    pub(crate) partitions: Partitions,
    pub(crate) longest: Duration,
    pub(crate) refused: Vec<NodeId>,
    pub(crate) silent: Vec<NodeId>,
}

/// A link that this node works for.
#[derive(Clone, Debug, Default)]
pub(crate) struct LinkObserved {
    pub(crate) name: String,
    /// Why its source does not answer.
    pub(crate) down: Option<String>,
    pub(crate) stopped: Vec<StoppedObserved>,
    /// Groups of the source that are not looked at, and how many are.
    pub(crate) groups_left_out: Option<(usize, usize)>,
    /// Until its certificate ends; negative once it has.
    pub(crate) certificate_hours_left: Option<i64>,
}

/// A link to this cluster that several clusters use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SharedLink {
    pub(crate) link: String,
    pub(crate) clusters: Vec<String>,
}

/// How the secrets of links are, as far as that is worth a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SecretsObserved {
    /// Links whose secrets this node can't open, and why.
    pub(crate) unopened: Vec<(String, String)>,
    /// Links whose secrets lie in clear in the metadata log.
    pub(crate) in_clear: Vec<String>,
}

/// Partitions of a link that have stopped in one state.
#[derive(Clone, Debug)]
pub(crate) struct StoppedObserved {
    pub(crate) state: &'static str,
    pub(crate) partitions: Partitions,
    pub(crate) why: String,
    pub(crate) mend: String,
}

/// The conditions of a node of which this was observed.
pub(crate) fn conditions(observed: &Observed) -> Vec<Condition> {
    let mut found: Vec<Condition> = Vec::new();
    found.extend(observed.disk.as_ref().and_then(of_room));
    found.extend(observed.disk.as_ref().and_then(of_others));
    if let Some(DiskObserved { unreadable: unreadable @ 1.., .. }) = observed.disk {
        found.push(Condition::DiskDamaged { unreadable });
    }
    found
        .extend(observed.unreachable.iter().map(|peer| Condition::PeerUnreachable { peer: *peer }));
    if let Some(NotCommitting { partitions, longest, refused, silent }) =
        observed.not_committing.clone()
    {
        let seconds = longest.as_secs();
        found.push(Condition::NotCommitting { partitions, seconds, refused, silent });
    }
    if let Some((partitions, longest)) = observed.not_serving.clone() {
        found.push(Condition::NotServing { partitions, seconds: longest.as_secs() });
    }
    if let Some(partitions) = observed.opening.clone() {
        found.push(Condition::Opening { partitions });
    }
    if let Some((lasts, why)) = &observed.objects_failing
        && *lasts >= OBJECTS_FAIL_FOR
    {
        let (seconds, why) = (lasts.as_secs(), why.clone());
        found.push(Condition::ObjectStoreAway { seconds, why });
    }
    for (reason, partitions) in observed.refused.iter().cloned() {
        found.push(Condition::WritesRefused { reason, partitions });
    }
    for (cluster, partitions) in observed.leases_missing.iter().cloned() {
        found.push(Condition::LeaseMissing { partitions, cluster });
    }
    observed.links.iter().for_each(|link| of_link(link, &mut found));
    for SharedLink { link, clusters } in observed.links_shared.iter().cloned() {
        found.push(Condition::LinkKeyShared { link, clusters });
    }
    for (link, why) in observed.secrets.unopened.iter().cloned() {
        found.push(Condition::SecretsUnopened { link, why });
    }
    if !observed.secrets.in_clear.is_empty() {
        found.push(Condition::SecretsInClear { links: observed.secrets.in_clear.join(", ") });
    }
    if let Some(hours_left) = observed.certificate_hours_left.filter(ends_soon) {
        found.push(Condition::CertificateEnds { hours_left });
    }
    for (listener, hours_left) in observed.listeners_hours_left.iter().cloned() {
        if ends_soon(&hours_left) {
            found.push(Condition::ListenerCertificateEnds { listener, hours_left });
        }
    }
    if let Some(ahead_ms) = observed.clock_ahead_ms
        && ahead_ms.unsigned_abs() > CLOCK_APART_MS_MAX
    {
        found.push(Condition::ClockApart { ahead_ms });
    }
    found
}

fn ends_soon(hours_left: &i64) -> bool {
    let hours = i64::try_from(CERTIFICATE_ENDS_WITHIN.as_secs() / 3600).unwrap_or(i64::MAX);
    *hours_left < hours
}

/// What is free falls though the journal does not grow: it will be full before it is as large as it may be.
fn of_others(disk: &DiskObserved) -> Option<Condition> {
    let (free_bytes, wanted_bytes) = (disk.free_bytes?, disk.usage.creatable_bytes);
    let is_little = free_bytes < disk.usage.usable_bytes / 100 * TAKEN_LEFT_PERCENT;
    (free_bytes < wanted_bytes && is_little)
        .then_some(Condition::DiskTaken { free_bytes, wanted_bytes })
}

fn of_room(disk: &DiskObserved) -> Option<Condition> {
    let DiskUsage { used_bytes, live_bytes, usable_bytes, left_bytes, .. } = disk.usage;
    if left_bytes < FULL_LEFT_BYTES || disk.has_refused {
        return Some(Condition::DiskFull { used_bytes, usable_bytes });
    }
    let is_short = left_bytes < usable_bytes / 100 * NEARLY_FULL_LEFT_PERCENT;
    let is_live = live_bytes > usable_bytes / 100 * NEARLY_FULL_LIVE_PERCENT;
    let left_bytes = left_bytes.min(usable_bytes.saturating_sub(live_bytes));
    (is_short || is_live).then_some(Condition::DiskNearlyFull { left_bytes, usable_bytes })
}

fn of_link(observed: &LinkObserved, found: &mut Vec<Condition>) {
    let link = &observed.name;
    if let Some(why) = &observed.down {
        found.push(Condition::LinkDown { link: link.clone(), why: why.clone() });
    }
    for StoppedObserved { state, partitions, why, mend } in observed.stopped.iter().cloned() {
        found.push(Condition::MirrorStopped { link: link.clone(), state, partitions, why, mend });
    }
    if let Some(hours_left) = observed.certificate_hours_left.filter(ends_soon) {
        found.push(Condition::LinkCertificateEnds { link: link.clone(), hours_left });
    }
    if let Some((left_out, count_max)) = observed.groups_left_out.filter(|(count, _)| *count > 0) {
        found.push(Condition::GroupsLeftOut { link: link.clone(), left_out, count_max });
    }
}
