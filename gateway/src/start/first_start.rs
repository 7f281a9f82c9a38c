//! What a new cluster has before its first node serves anybody. Each node sees to it before it serves, so that there
//! is no moment in which one of them serves and nothing is decided.

use meridian_consensus::command::{Command, FeatureLevel};

use super::StartError;
use crate::broker::Broker as _;
use crate::kafka::first_start::{FirstStart, Standing};
use crate::node::Node;

impl Node {
    /// Has the cluster decide what the first-start file says, unless it has decided before.
    pub(super) async fn decide_first_start(&self) -> Result<(), StartError> {
        let Some(path) = &self.config.first_start else { return Ok(()) };
        if self.has_decided(path) {
            return Ok(());
        }
        let first = FirstStart::load(path)?;
        let changes = first.changes(&self.own_end.keys)?;
        if self.metadata().feature_level() < FeatureLevel::RULES {
            let agreed = Command::SetFeatureLevel(FeatureLevel::RULES);
            match self.meta.propose_patiently(agreed).await {
                // The nodes have agreed on a higher one meanwhile.
                Err(_) if self.metadata().feature_level() >= FeatureLevel::RULES => {}
                Err(error) => return Err(error.into()),
                Ok(_) => {}
            }
        }
        let decided = self.meta.propose_patiently(Command::PutRows(changes)).await;
        match decided {
            Ok(_) => {
                tracing::info!(?first, "the new cluster has its first users and its mode");
                Ok(())
            }
            // Another node was faster, with its copy of the file.
            Err(_) if self.has_decided(path) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn has_decided(&self, path: &std::path::Path) -> bool {
        match Standing::of(&self.metadata()) {
            Standing::New => false,
            Standing::Decided => true,
            Standing::InUse => {
                tracing::warn!(
                    file = %path.display(),
                    "security.first_start has no effect: the cluster has topics or users already; \
                     `meridian acl mode` shows and sets whether access rules hold"
                );
                true
            }
        }
    }
}
