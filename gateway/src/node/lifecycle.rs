//! The operators' methods about nodes that rest, leave or are replaced: `lifecycle.*` of the private
//! admin API. Any node answers them; what is decided is a row, or a slot, of the metadata log.

use bytes::Bytes;
use meridian_admin_api::lifecycle::{self, Replace, Stand};
use meridian_admin_api::methods::{
    LifecycleDecommission, LifecycleDrain, LifecycleEnd, LifecycleReplace, LifecycleStatus,
};
use meridian_admin_api::{Besides, Method, OfNode};
use meridian_base::id::NodeId;
use meridian_consensus::command::{Command, FeatureLevel, Liveness};
use meridian_consensus::lifecycle::{Denial, Lease, Leases, Purpose, grant, plan_replacement};

use super::Node;
use super::status::liveness;
use crate::admin_api::{AdminError, answered, answered_now};
use crate::broker::Broker;
use crate::features::agree;
use crate::meta::ProposeError;

impl Node {
    /// Answers a method about the life of nodes.
    pub(super) async fn answer_lifecycle(
        &self,
        method: &str,
        body: &Bytes,
    ) -> Result<Bytes, AdminError> {
        Broker::catch_up(&*self.context).await.map_err(unavailable)?;
        match method {
            LifecycleStatus::NAME => answered_now::<LifecycleStatus>(body, |OfNode { node }| {
                self.stand(NodeId::new(node))
            }),
            LifecycleDrain::NAME => {
                answered::<LifecycleDrain, _>(body, |it| self.lease(it, Purpose::Rest)).await
            }
            LifecycleDecommission::NAME => {
                answered::<LifecycleDecommission, _>(body, |it| self.lease(it, Purpose::Leave))
                    .await
            }
            LifecycleEnd::NAME => answered::<LifecycleEnd, _>(body, |it| self.end_lease(it)).await,
            LifecycleReplace::NAME => {
                answered::<LifecycleReplace, _>(body, |it| self.replace_slot(it)).await
            }
            _ => Err(AdminError::UnknownMethod(method.to_owned())),
        }
    }

    async fn replace_slot(&self, Replace { node, with }: Replace) -> Result<Stand, AdminError> {
        let (from, to) = (NodeId::new(node), with.map(NodeId::new));
        if let Err(error) = agree(&*self.context, FeatureLevel::SLOT_LIVES).await {
            tracing::warn!(%error, "the disk that takes the slot goes on in the life it has");
        }
        let command = plan_replacement(&self.meta.metadata(), from, to).map_err(denied)?;
        let replaced_by = match &command {
            Command::ReplaceSlot { to, .. } => Some(to.get()),
            _ => None,
        };
        self.decide(command).await?;
        Ok(Stand { replaced_by, ..self.stand(from)? })
    }

    async fn lease(&self, OfNode { node }: OfNode, purpose: Purpose) -> Result<Stand, AdminError> {
        let lease = Lease { node: NodeId::new(node), purpose };
        if let Err(error) = agree(&*self.context, FeatureLevel::LEASES_CHECKED).await {
            tracing::warn!(%error, "what fails before the lease is written is not looked at");
        }
        let command = grant(&self.meta.metadata(), lease).map_err(denied)?;
        self.decide(command).await?;
        self.mark(lease.node, Liveness::Alive, Liveness::Draining).await?;
        self.stand(lease.node)
    }

    async fn end_lease(&self, OfNode { node }: OfNode) -> Result<Stand, AdminError> {
        let id = NodeId::new(node);
        let leases = self.leases()?;
        if leases.purpose(id).is_some() {
            self.decide(leases.without(id)).await?;
        }
        self.mark(id, Liveness::Draining, Liveness::Alive).await?;
        self.stand(id)
    }

    /// Marks a node that is marked as `from`; the Raft leader would see to it too, a little later.
    async fn mark(&self, id: NodeId, from: Liveness, to: Liveness) -> Result<(), AdminError> {
        let marked = self.meta.metadata().node(id).map(|node| (node.epoch, node.liveness));
        match marked {
            Some((epoch, liveness)) if liveness == from => {
                self.decide(Command::MarkNode { node: id, epoch, liveness: to }).await
            }
            _ => Ok(()),
        }
    }

    fn leases(&self) -> Result<Leases, AdminError> {
        Leases::read(&self.meta.metadata()).map_err(|error| denied(error.into()))
    }

    fn stand(&self, id: NodeId) -> Result<Stand, AdminError> {
        let lease = self.leases()?.purpose(id);
        let metadata = self.meta.metadata();
        let node = metadata.node(id);
        Ok(Stand {
            node: id.get(),
            registered: node.is_some(),
            liveness: node.map(|node| liveness(node.liveness)),
            lease: lease.map(purpose),
            slot: metadata.slot_filled_by(id).map(|(_, slot)| slot.index()),
            leaders: metadata.led_count(id),
            replaced_by: None,
            besides: Besides::new(),
        })
    }

    async fn decide(&self, command: Command) -> Result<(), AdminError> {
        match self.meta.propose(command).await {
            Ok(_) => Ok(()),
            // What was read has changed meanwhile: another operator, or the cluster itself.
            Err(error @ ProposeError::Refused(_)) => Err(AdminError::Failed(error.to_string())),
            Err(error) => Err(unavailable(error)),
        }
    }
}

fn purpose(purpose: Purpose) -> lifecycle::Purpose {
    match purpose {
        Purpose::Rest => lifecycle::Purpose::Rest,
        Purpose::Leave => lifecycle::Purpose::Leave,
    }
}

fn unavailable(error: impl ToString) -> AdminError {
    AdminError::Unavailable(error.to_string())
}

/// A request that would be unsafe is told apart from one that makes no sense.
fn denied(denial: Denial) -> AdminError {
    match denial {
        Denial::AtRisk { .. } | Denial::NoSpare(_) => AdminError::Unsafe(denial.to_string()),
        Denial::UnknownNode(_) | Denial::NoSlot(_) | Denial::UnsuitableSpare { .. } => {
            AdminError::InvalidArguments(denial.to_string())
        }
        Denial::Leases(_) => AdminError::Failed(denial.to_string()),
    }
}
