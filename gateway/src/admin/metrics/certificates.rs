//! When certificates end, as a metric.

use std::time::SystemTime;

use super::{Family, Sample, Snapshot, gauge};
use crate::node::Node;
use crate::runtime::clock;

pub(super) const FAMILIES: &[Family] = &[gauge(
    "meridian_certificate_expires_seconds",
    "Until a certificate of this node ends: its own, and those of listeners and links; below 0 once it has ended.",
    |s| s.certificates.iter().map(Certificate::sample).collect(),
)];

/// A certificate that this node uses.
pub(super) struct Certificate {
    /// `node`, `listener` or `link`.
    pub(super) usage: &'static str,
    /// Of the listener or link.
    pub(super) name: String,
    pub(super) left_seconds: f64,
}

impl Certificate {
    fn new(usage: &'static str, name: String, ends_at: SystemTime) -> Self {
        let now = clock::wall_time();
        let left_seconds = match ends_at.duration_since(now) {
            Ok(left) => left.as_secs_f64(),
            Err(over) => -over.duration().as_secs_f64(),
        };
        Self { usage, name, left_seconds }
    }

    fn sample(&self) -> Sample {
        let labels = vec![("use", self.usage.to_owned()), ("name", self.name.clone())];
        Sample { labels, value: self.left_seconds }
    }
}

impl Snapshot {
    pub(super) fn certificates_of(node: &Node) -> Vec<Certificate> {
        let own = node.health.certificate_end();
        let own = own.map(|at| Certificate::new("node", node.config.node.to_string(), at));
        let listeners = node.health.listener_certificates().into_iter();
        let listeners = listeners.map(|(name, at)| Certificate::new("listener", name, at));
        let links = node.mirrors.link_certificates().into_iter();
        let links = links.map(|(name, at)| Certificate::new("link", name, at));
        own.into_iter().chain(listeners).chain(links).collect()
    }
}
