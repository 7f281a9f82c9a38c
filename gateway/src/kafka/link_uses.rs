//! Which clusters use the certificate of each link: one cluster each. A second one has a copy of its private key.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use meridian_base::env::Instant;

use super::lock;
use crate::client::security::LINK_CLIENT_ID;
use crate::health::own::SharedLink;

/// A cluster uses a link for so long after it has asked something over it. A link that is idle asks more often.
const USED_FOR: Duration = Duration::from_secs(120);
/// Clusters that are remembered of a link; the links themselves are as many as there are connections.
const CLUSTER_COUNT_MAX: usize = 8;
const LINK_COUNT_MAX: usize = 1024;

/// When each cluster asked last over each link.
#[derive(Debug, Default)]
pub struct LinkUses(Mutex<BTreeMap<String, BTreeMap<String, Instant>>>);

impl LinkUses {
    fn note(&self, now: Instant, link: &str, cluster: &str) {
        let mut links = lock(&self.0);
        if !links.contains_key(link) && links.len() >= LINK_COUNT_MAX {
            return;
        }
        let clusters = links.entry(link.to_owned()).or_default();
        clusters.retain(|_, at| now.since(*at) < USED_FOR);
        if clusters.len() < CLUSTER_COUNT_MAX || clusters.contains_key(cluster) {
            clusters.insert(cluster.to_owned(), now);
        }
    }

    /// The links that more than one cluster uses.
    pub(crate) fn shared(&self, now: Instant) -> Vec<SharedLink> {
        let mut links = lock(&self.0);
        links.retain(|_, clusters| {
            clusters.retain(|_, at| now.since(*at) < USED_FOR);
            !clusters.is_empty()
        });
        let shared = links.iter().filter(|(_, clusters)| clusters.len() > 1);
        let of = |(link, clusters): (&String, &BTreeMap<String, Instant>)| SharedLink {
            link: link.clone(),
            clusters: clusters.keys().cloned().collect(),
        };
        shared.map(of).collect()
    }
}

/// The link that a connection belongs to.
#[derive(Clone, Debug)]
pub(super) struct LinkUse {
    pub(super) link: Arc<str>,
    pub(super) uses: Arc<LinkUses>,
}

impl LinkUse {
    /// A request came over it. A cluster of an older binary does not say which it is.
    pub(super) fn note(&self, now: Instant, client_id: Option<&str>) {
        if let Some(cluster) = client_id.and_then(|it| it.strip_prefix(LINK_CLIENT_ID)) {
            self.uses.note(now, &self.link, cluster);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_two_clusters_use_is_named_until_one_of_them_has_gone() {
        let uses = Arc::new(LinkUses::default());
        let of = |link: &str| LinkUse { link: link.into(), uses: Arc::clone(&uses) };
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        of("east").note(at(0), Some("meridian-link aaa"));
        of("south").note(at(0), Some("meridian-link bbb"));
        of("south").note(at(1), Some("meridian"));
        of("south").note(at(1), None);
        assert_eq!(uses.shared(at(1)), [], "each has its own, or does not say");
        of("east").note(at(2), Some("meridian-link bbb"));
        let shared =
            SharedLink { link: "east".to_owned(), clusters: vec!["aaa".into(), "bbb".into()] };
        assert_eq!(uses.shared(at(60)), [shared]);
        of("east").note(at(100), Some("meridian-link bbb"));
        assert_eq!(uses.shared(at(121)), [], "only one is left");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let uses = LinkUses::default();
        for number in 0..2 * LINK_COUNT_MAX {
            uses.note(Instant::ZERO, &format!("link-{number}"), "a");
            uses.note(Instant::ZERO, "link-0", &format!("cluster-{number}"));
        }
        let links = lock(&uses.0);
        assert_eq!((links.len(), links["link-0"].len()), (LINK_COUNT_MAX, CLUSTER_COUNT_MAX));
    }
}
