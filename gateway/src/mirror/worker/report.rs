//! What operators see of the partitions that a worker mirrors.

use meridian_admin_api::Besides;
use meridian_admin_api::mirror::{PartitionReport, PartitionState};
use meridian_base::position::{LeaderEpoch, Offset};
use meridian_mirror::Pace;
use meridian_mirror::digest::Difference;
use meridian_mirror::seed::Part;
use meridian_mirror::state::State;

use super::{LinkWorker, Mirrored};
use crate::mirror::plan::Target;
use crate::mirror::switchover::millis;

/// A partition of which nothing but its state is known.
pub(in crate::mirror) fn bare(
    node: u32,
    (topic, partition): (String, u32),
    state: &State,
) -> PartitionReport {
    PartitionReport {
        topic,
        partition,
        node,
        state: state.into(),
        reason: state.to_string(),
        advice: state.advice().map(str::to_owned),
        end_offset: None,
        source_end_offset: None,
        source_seen_ms_ago: None,
        lag_records: 0,
        lag_bytes: 0,
        lag_ms: 0,
        mirrored_bytes: 0,
        source_lag_max_ms: None,
        source_lease: None,
        source_records_per_second: None,
        besides: Besides::new(),
    }
}

/// While a partition takes from its seed, how far it is behind its source is not known.
fn of_seed(node: u32, target: &Target, part: Part) -> PartitionReport {
    let until = part.until;
    let reason = format!("takes up to offset {until} from what it was before, then over the link");
    let end = target.log.high_watermark();
    let missing = u64::try_from(until.get() - end.get()).unwrap_or(0);
    let place = (target.mirror.name.clone(), target.index);
    PartitionReport {
        reason,
        end_offset: Some(end.get()),
        lag_records: missing,
        ..bare(node, place, &State::CatchingUp)
    }
}

/// Comparing a partition with its source has found this, which matters unless it has stopped already.
pub(in crate::mirror) fn note_difference(report: &mut PartitionReport, difference: &Difference) {
    let works = [PartitionState::Verifying, PartitionState::CatchingUp, PartitionState::Mirroring];
    if !works.contains(&report.state) {
        return;
    }
    let (at, epoch) = (difference.from, LeaderEpoch::UNKNOWN);
    report.state = (&State::Diverged { at, epoch }).into();
    report.reason = difference.to_string();
    report.advice = Some("`meridian mirror repair` says how it is mended".to_owned());
}

impl LinkWorker {
    pub(super) fn reports(&self) -> Vec<PartitionReport> {
        let now = self.clock.now();
        let node = self.node.config.node.get();
        let report = |mirrored: &Mirrored| {
            let status = mirrored.machine.as_ref().map(|machine| machine.status(now));
            if let Some(part) = mirrored.target.seed {
                return of_seed(node, &mirrored.target, part);
            }
            let end = mirrored.target.log.high_watermark();
            let state = match (&status, &mirrored.unreadable) {
                (Some(status), _) => status.state.clone(),
                (None, None) => State::Verifying,
                (None, Some(error)) => State::Unreadable { detail: error.to_string() },
            };
            let lag = status.as_ref().map(|status| status.lag).unwrap_or_default();
            let source_end = status.as_ref().and_then(|status| status.source_end);
            let pace = status.as_ref().and_then(|status| status.source_pace);
            let seen_ago = status.as_ref().and_then(|status| status.source_seen_ago);
            PartitionReport {
                topic: mirrored.target.mirror.name.clone(),
                partition: mirrored.target.index,
                node,
                state: (&state).into(),
                reason: state.to_string(),
                advice: state.advice().map(str::to_owned),
                end_offset: Some(status.as_ref().map_or(end, |status| status.end).get()),
                source_end_offset: source_end.map(Offset::get),
                source_seen_ms_ago: seen_ago.map(millis),
                lag_records: lag.records,
                lag_bytes: lag.bytes,
                lag_ms: millis(lag.time),
                mirrored_bytes: status.as_ref().map_or(0, |status| status.mirrored_bytes),
                source_lag_max_ms: self.teller.limit_ms(&mirrored.target.mirror.source_name),
                source_lease: self.lease_of(mirrored),
                source_records_per_second: pace.map(per_second),
                besides: Besides::new(),
            }
        };
        self.partitions.values().map(report).collect()
    }
}

fn per_second(pace: Pace) -> f64 {
    pace.records as f64 / pace.within.as_secs_f64()
}
