//! The metadata plane: one Raft group that decides ownership and configuration.
//!
//! Owns: every decision of the cluster ([`command`]), the state they add up to ([`state`]), the log
//! that makes them last ([`log`]) and the judgement who is dead and who leads what
//! ([`supervisor`]). Never does: threads, sockets, clocks, chance, anything per message or batch.
//! Source: Ongaro, *Consensus: Bridging Theory and Practice*; raft-rs is the implementation.
//!
//! # Running a node
//!
//! One thread owns the [`node::Node`] and its [`meridian_base::env::Disk`]. Calls block for the
//! disk, hence a thread of its own.
//!
//! Start, once:
//!
//! ```text
//! match RaftLog::open(disk, segment size) {
//!     Opened::Log(log)    => go on with it
//!     Opened::Empty(disk) => ask the configured voters what they are; Formation says:
//!         Bootstrap       => RaftLog::bootstrap(disk, .., RaftId::first(node), voters,
//!                                               snapshot::encode(&Metadata::default()))
//!         Rejoin          => have AllocateRaftLife decided (any node forwards it to the leader),
//!                            RaftLog::join(disk, .., RaftId { node, life })
//! }
//! Err(LogError::Corrupt)  => keep a copy of the folder, then as Rejoin
//!
//! store = SledStore::open(folder, cache size)
//! node  = Node::start(log, store, config, seed, now)
//! ```
//!
//! A node answers others that ask what it is: `Empty` without a log, `Forming` while
//! `Node::applied_index` is 1 or less, else `Formed`.
//!
//! Then for ever:
//!
//! ```text
//! 1 wait for input, at most until node.next_tick()
//! 2 feed in all the input there is, in any order and number:
//!       node.tick(now)                      when next_tick has come
//!       node.step(from, bytes)              a Raft message arrived
//!       node.propose(&proposal)             NotLeader: forward it to the leader it names
//!       node.read_index(id)                 somebody needs a linearizable read
//!       node.change_membership(..)          see membership::plan_change
//!       node.report_unreachable(member)     a message could not be sent
//!       node.report_snapshot(member, ok)    always, after a message with is_snapshot
//! 3 progress = node.process(|outbound| put outbound.bytes in the send queue of outbound.to.node)
//! 4 for each progress.applied: act on its changes, answer whoever waits for its request id
//!   for each progress.reads: answer from node.metadata().read()
//!   progress.leadership: start or drop the Supervisor
//! 5 as leader, about every Config::node_heartbeat:
//!       supervisor.heard(now, node)         for each heartbeat that came
//!       supervisor.poll(now, own, &metadata) propose its commands under new request ids
//!       membership::plan_change(..)         change_membership with what it returns, if anything
//! ```
//!
//! `process` writes and sends in the only right order, so that there is none to get wrong: it calls
//! back for a leader's messages before it writes and for votes and acknowledgements after the write
//! is durable. The callback must not block.
//!
//! What must be kept:
//!
//! * An error of `process`, `StepError::LogLost` or `StepError::LifeOver` is the end of this node: stop
//!   the process. After these two and `LogError::Corrupt` it rejoins in a new life; otherwise it just
//!   starts again.
//! * A proposal has succeeded when its request id is seen in `progress.applied`, whose `result`
//!   says what came of it. Without that its fate is unknown: propose it again under the same id,
//!   here or elsewhere. The result stays in `Metadata::result_of` for the next 8192 requests.
//! * A read or proposal may be dropped in silence: repeat it after a while. Read ids are unique for
//!   all time.
//! * Other threads read the state through `Node::metadata`; a change is visible there before it is
//!   reported. After `state_replaced` (a snapshot) derive everything anew.
//! * A node that restarts proposes [`placement::plan_reclaim`] once it has registered, because it
//!   does not know how far it got in its partitions' generations.
//!
//! # Architecture invariants
//!
//! * Generations, incarnations, partition ids and producer ids come from [`state`] alone.
//! * [`store`] holds nothing that the log and its snapshot cannot rebuild.
//! * No lease decides ownership: reads go through a majority.

pub mod command;
pub mod config;
pub mod detector;
pub mod error;
pub mod events;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod lifecycle;
pub mod log;
pub mod membership;
pub mod metrics;
pub mod mutation;
pub mod node;
pub mod placement;
pub mod snapshot;
pub mod state;
pub mod store;
pub mod supervisor;
