//! Whose object store it is. Each cluster draws a nonce, which a row of its metadata keeps and the object `owner` of
//! the store names: another cluster of the same id, cloned or bootstrapped anew, has another one, and neither puts nor
//! deletes anything there.

use std::sync::Arc;
use std::time::Duration;

use meridian_consensus::command::{Command, ExpectedVersion, RowChange, RowKind};
use meridian_consensus::error::Refusal;
use meridian_consensus::state::Metadata;
use serde::{Deserialize, Serialize};

use super::Node;
use crate::broker::Broker;
use crate::log::ObjectsUnusable;
use crate::meta::ProposeError;
use crate::runtime::objects::Objects;

/// Among the rows of [`RowKind::Lifecycle`], which binaries that know nothing of it keep as they are.
const KEY: &[u8] = b"object-store";
/// How often a claim that failed is tried again.
const CLAIM_AGAIN_AFTER: Duration = Duration::from_secs(30);
/// How often it is looked whether the store is still this cluster's.
const CLAIM_EVERY: Duration = Duration::from_secs(600);

/// The row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Claim {
    nonce: u128,
    /// Whether a store has named this cluster as its owner, and so may have objects of it.
    has_store: bool,
}

/// Why it is not known whether the store is this cluster's.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClaimError {
    /// The metadata log took no row.
    #[error("the object store is not claimed: {0}")]
    Propose(#[from] ProposeError),
    /// The row is none of this binary's.
    #[error("the object store is not claimed: the cluster's row about it is unreadable: {0}")]
    Row(postcard::Error),
    /// Chance can't be had.
    #[error("no entropy: {0}")]
    Entropy(#[from] std::io::Error),
    /// The store is another cluster's, or can't be asked.
    #[error(transparent)]
    Objects(#[from] ObjectsUnusable),
}

/// Claims the object store, and looks now and then whether it still is this cluster's, until the node goes down.
pub(super) async fn run_claim(node: Arc<Node>) {
    let Ok(objects) = node.logs.objects().cloned() else { return };
    loop {
        let again_after = match claim(&*node.context, &objects).await {
            Ok(()) => {
                node.logs.note_objects(None);
                CLAIM_EVERY
            }
            Err(error) => {
                if let ClaimError::Objects(error) = &error {
                    node.logs.note_objects(Some(error.to_string()));
                }
                tracing::error!(%error, "cold records stay where they are");
                CLAIM_AGAIN_AFTER
            }
        };
        tokio::time::sleep(again_after).await;
    }
}

/// Makes sure that the store is this cluster's now.
pub(super) async fn claim(broker: &dyn Broker, objects: &Objects) -> Result<(), ClaimError> {
    if read(&broker.metadata())?.is_none() {
        let drawn = Claim { nonce: crate::runtime::entropy::entropy()?, has_store: false };
        write(broker, drawn, ExpectedVersion::Absent).await?;
    }
    let Some((claim, version)) = read(&broker.metadata())? else {
        return Err(ProposeError::TimedOut.into());
    };
    objects.claim(claim.nonce, claim.has_store).await.map_err(ObjectsUnusable::from)?;
    if !claim.has_store {
        let has_store = Claim { has_store: true, ..claim };
        write(broker, has_store, ExpectedVersion::Exactly(version)).await?;
    }
    Ok(())
}

/// The row and its version, if there is one.
fn read(metadata: &Metadata) -> Result<Option<(Claim, u64)>, ClaimError> {
    let row = metadata.extra_row(RowKind::Lifecycle, KEY);
    let decoded = row.map(|row| Ok((postcard::from_bytes(&row.value)?, row.version)));
    decoded.transpose().map_err(ClaimError::Row)
}

/// Another node that was faster has written the same, or what this one reads next.
async fn write(
    broker: &dyn Broker,
    claim: Claim,
    expected: ExpectedVersion,
) -> Result<(), ClaimError> {
    let value = postcard::to_allocvec(&claim).map_err(ClaimError::Row)?;
    let change =
        RowChange { kind: RowKind::Lifecycle, key: KEY.to_vec(), value: Some(value), expected };
    match broker.propose(Command::PutRows(vec![change])).await {
        Ok(_) | Err(ProposeError::Refused(Refusal::StaleRow { .. })) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use meridian_base::id::ClusterId;

    use super::*;
    use crate::kafka::testing::FakeBroker;
    use crate::runtime::objects::ObjectStoreConfig;

    #[tokio::test]
    async fn of_two_clusters_of_one_id_the_first_has_the_store() {
        let name = format!("meridian-object-owner-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let open = |name: &str| {
            let folder = folder.join(name);
            std::fs::create_dir_all(&folder).unwrap();
            let config = ObjectStoreConfig {
                url: format!("file://{}", folder.display()),
                endpoint: None,
                region: None,
                access_key_id: None,
                secret_access_key: None,
                ca: None,
                bytes_per_second: 1 << 20,
            };
            Objects::open(&config, &ClusterId::from_entropy(5)).unwrap()
        };
        let (own, other) = (FakeBroker::three_datacenters(), FakeBroker::three_datacenters());
        claim(&*own, &open("store")).await.unwrap();
        claim(&*own, &open("store")).await.unwrap();
        let foreign = open("store");
        let refused = claim(&*other, &foreign).await.unwrap_err().to_string();
        assert!(refused.contains("belongs to another cluster of this id"), "{refused}");
        assert!(foreign.check_claimed().is_err());
        let elsewhere = open("elsewhere");
        let refused = claim(&*own, &elsewhere).await.unwrap_err().to_string();
        assert!(refused.contains("configure the store that they are in"), "{refused}");
        claim(&*other, &elsewhere).await.unwrap();
        std::fs::remove_dir_all(folder).unwrap();
    }
}
