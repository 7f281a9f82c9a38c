//! Every method, with its request and its answer.

use crate::{Done, Method, NoArguments, OfLink, OfNode, OfTopic};
use crate::{access, client, cluster, disk, lifecycle, link, mirror, node, quota, topic};

macro_rules! methods {
    ($($method:ident = $name:literal: $request:ty => $answer:ty;)+) => {
        $(
            #[doc = concat!("`", $name, "`")]
            #[derive(Clone, Copy, Debug)]
            pub enum $method {}

            impl Method for $method {
                const NAME: &'static str = $name;
                type Request = $request;
                type Answer = $answer;
            }
        )+

        /// The names of all methods.
        pub const NAMES: &[&str] = &[$($name),+];

        /// The types of each method's request and answer.
        #[cfg(test)]
        pub(crate) const TYPES: &[(&str, [fn() -> &'static str; 2])] = &[$(
            ($name, [std::any::type_name::<$request>, std::any::type_name::<$answer>]),
        )+];
    };
}

methods! {
    AccessMode = "access.mode": NoArguments => access::ModeReport;
    AccessModeSet = "access.mode.set": access::SetMode => access::ModeReport;
    AccessCheck = "access.check": access::Check => access::Decision;
    AccessCredentials = "access.credentials": NoArguments => access::Credentials;
    ClientList = "client.list": client::Which => client::ClientReport;
    ClientKick = "client.kick": client::Kick => client::ClientReport;
    QuotaHoldings = "quota.holdings": NoArguments => quota::Holdings;
    ClusterStatus = "cluster.status": NoArguments => cluster::Status;
    NodeStatus = "node.status": NoArguments => node::OwnStatus;
    DiskStatus = "disk.status": NoArguments => disk::Status;
    DiskScrub = "disk.scrub": disk::Scrub => disk::Status;
    LifecycleStatus = "lifecycle.status": OfNode => lifecycle::Stand;
    LifecycleDrain = "lifecycle.drain": OfNode => lifecycle::Stand;
    LifecycleDecommission = "lifecycle.decommission": OfNode => lifecycle::Stand;
    LifecycleEnd = "lifecycle.end": OfNode => lifecycle::Stand;
    LifecycleReplace = "lifecycle.replace": lifecycle::Replace => lifecycle::Stand;
    LinkList = "link.list": NoArguments => Vec<link::LinkReport>;
    LinkTraffic = "link.traffic": NoArguments => Vec<link::Traffic>;
    LinkAllowed = "link.allowed": NoArguments => Vec<link::GrantReport>;
    LinkCreate = "link.create": link::Create => link::LinkReport;
    LinkAlter = "link.alter": link::Alter => link::LinkReport;
    LinkDelete = "link.delete": OfLink => link::LinkReport;
    LinkTest = "link.test": OfLink => link::TestReport;
    LinkReseal = "link.reseal": NoArguments => Vec<link::ResealReport>;
    LinkAllow = "link.allow": link::Allow => link::GrantReport;
    LinkDisallow = "link.disallow": OfLink => link::GrantReport;
    TopicStorage = "topic.storage": topic::OfPartition => topic::Storage;
    SourceList = "source.list": topic::ListSources => topic::SourcePage;
    MirrorList = "mirror.list": NoArguments => Vec<mirror::MirrorReport>;
    MirrorPartitions = "mirror.partitions": NoArguments => Vec<mirror::PartitionReport>;
    MirrorStewards = "mirror.stewards": NoArguments => Vec<mirror::StewardReport>;
    MirrorAudits = "mirror.audits": NoArguments => Vec<mirror::AuditReport>;
    MirrorLeases = "mirror.leases": NoArguments => Vec<mirror::LeaseReport>;
    MirrorContracts = "mirror.contracts": NoArguments => Vec<mirror::ContractReport>;
    MirrorRuleList = "mirror.rule.list": NoArguments => Vec<mirror::RuleReport>;
    MirrorRulePut = "mirror.rule.put": mirror::PutRule => mirror::RuleReport;
    MirrorRuleDelete = "mirror.rule.delete": mirror::DeleteRule => mirror::RuleReport;
    MirrorCreate = "mirror.create": mirror::Create => mirror::MirrorReport;
    MirrorVerify = "mirror.verify": mirror::Verify => mirror::VerifyReport;
    MirrorRejoin = "mirror.rejoin": mirror::Rejoin => mirror::RejoinReport;
    MirrorPause = "mirror.pause": OfTopic => mirror::MirrorReport;
    MirrorResume = "mirror.resume": OfTopic => mirror::MirrorReport;
    MirrorPromote = "mirror.promote": mirror::Promote => mirror::MirrorReport;
    MirrorSwitchover = "mirror.switchover": mirror::Switchover => mirror::StandingReport;
    MirrorRollback = "mirror.rollback": OfTopic => mirror::StandingReport;
    MirrorRecreate = "mirror.recreate": OfTopic => mirror::MirrorReport;
    MirrorGiveWay = "mirror.give-way": mirror::Rejoin => Done;
    MirrorTakeBack = "mirror.take-back": OfTopic => Done;
    MirrorReplace = "mirror.replace": mirror::Rejoin => Done;
    MirrorDropLease = "mirror.drop-lease": OfTopic => Done;
    MirrorStanding = "mirror.standing": OfTopic => mirror::StandingReport;
    MirrorSource = "mirror.source": OfTopic => mirror::StandingReport;
    MirrorDigest = "mirror.digest": mirror::DigestStretch => mirror::StretchDigest;
    MirrorPositions = "mirror.positions": mirror::Positions => mirror::Heard;
    MirrorFence = "mirror.fence": mirror::Fence => mirror::Fenced;
    MirrorRelease = "mirror.release": mirror::Release => Done;
    MirrorReverse = "mirror.reverse": mirror::Reverse => Done;
}
