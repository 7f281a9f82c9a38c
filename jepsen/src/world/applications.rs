//! Applications of the world, and the coordinators that they ask.

use std::time::Duration;

use meridian_jepsen_runner::chance::Chance;

use super::{APPLY_DELAY, Event, World};
use crate::application::{Application, Character};
use crate::broker::Asker;
use crate::check::Verdict;
use crate::desk::Told;
use crate::net::Endpoint;
use crate::node::{Packet, endpoint_of};
use crate::topics::{GROUPS, TRANSACTIONS, is_internal};

const PLAIN: Character = Character {
    group: "classic",
    is_consumer: false,
    is_static: false,
    is_transactional: false,
    is_old: false,
};
const STATIC: Character = Character { is_static: true, ..PLAIN };
const EXACT: Character = Character { group: "exact", is_transactional: true, ..PLAIN };
const EXACT_OLD: Character = Character { is_old: true, ..EXACT };
const CONSUMER: Character = Character { group: "consumer", is_consumer: true, ..PLAIN };
const EXACT_CONSUMER: Character =
    Character { group: "exact-consumer", is_transactional: true, ..CONSUMER };
const EXACT_OLD_CONSUMER: Character = Character { is_old: true, ..EXACT_CONSUMER };

/// Who there is: members of four groups, of both protocols, with transactions of both versions and without.
pub(super) const CHARACTERS: [Character; 12] = [
    PLAIN,
    PLAIN,
    STATIC,
    EXACT,
    EXACT,
    EXACT_OLD,
    CONSUMER,
    CONSUMER,
    CONSUMER,
    EXACT_CONSUMER,
    EXACT_CONSUMER,
    EXACT_OLD_CONSUMER,
];

/// A question that a node may answer once it has applied all that was decided when it came.
#[derive(Clone, Debug)]
pub(crate) struct Confirmed {
    pub(super) node: usize,
    boot: u64,
    decided: u64,
    from: Endpoint,
    packet: Box<Packet>,
}

impl World {
    /// Adds the internal partitions and the applications.
    pub(super) fn add_applications(&mut self, root: &mut Chance) {
        let data = self.partitions.clone();
        self.partitions.extend([GROUPS, TRANSACTIONS]);
        for (id, character) in CHARACTERS.into_iter().enumerate() {
            let endpoint = Endpoint(self.nodes.len() + self.clients.len() + id);
            let chance = root.branch();
            let id = id as u32 + 1;
            let application = Application::new(endpoint, id, character, data.clone(), chance);
            self.applications.push(application);
            self.application_wakes.push(0);
            self.wake_application(self.applications.len() - 1, Duration::from_millis(200));
        }
    }

    pub(super) fn application_acts(&mut self, application: usize, wake: u64) -> Verdict {
        if self.application_wakes[application] != wake {
            return Ok(());
        }
        let (question, wake_after) = self.applications[application].wake(self.now);
        self.note_facts(application)?;
        if let Some(question) = question {
            let from = self.applications[application].endpoint;
            let guide = self.chance.below(self.nodes.len());
            let owner = self.nodes[guide].owner(question.to);
            if let Some(leader) = owner.map(|owner| owner.node) {
                self.counters.operation_count += 1;
                let asker = Asker { client: from, request: question.number };
                let (partition, ask) = (question.to, Box::new(question.ask));
                let packet = Packet::Ask { partition, asker, ask };
                self.count_request(&packet);
                self.send(from, endpoint_of(leader), packet);
            }
        }
        self.wake_application(application, wake_after);
        Ok(())
    }

    /// Whether who asks has closed the connection that this came by.
    pub(super) fn is_given_up(&self, from: Endpoint, packet: &Packet) -> bool {
        let Packet::Ask { asker, .. } = packet else { return false };
        let asking = self.applications.iter().find(|it| it.endpoint == from);
        asking.is_some_and(|it| !it.may_arrive(asker.request))
    }

    /// Takes what a node says to an application.
    pub(super) fn tell_application(
        &mut self,
        application: usize,
        from: Endpoint,
        packet: Packet,
    ) -> Verdict {
        let (request, told) = match packet {
            Packet::Told { request, told } => (request, *told),
            Packet::Reply { request, reply } => (request, Told::Appended(reply)),
            _ => return Ok(()),
        };
        let to = self.applications[application].endpoint;
        self.trace.event(self.now, format_args!("{}->{} #{request} {told:?}", from.0, to.0));
        let sooner = self.applications[application].on_told(self.now, request, told);
        self.note_facts(application)?;
        if let Some(delay) = sooner {
            self.wake_application(application, delay);
        }
        Ok(())
    }

    /// A node asks how far decisions have come, for a question that it was asked.
    pub(super) fn confirm(&mut self, node: usize, from: Endpoint, packet: Box<Packet>) {
        // Who is not answered asks again.
        if !self.reaches_majority(node) {
            return;
        }
        let decided = self.decisions.last_index();
        let boot = self.nodes[node].boot;
        let delay = self.chance.around(APPLY_DELAY);
        let question = Confirmed { node, boot, decided, from, packet };
        self.schedule(delay, Event::Confirmed(Box::new(question)));
    }

    /// It has heard how far; it answers when it has come that far.
    pub(super) fn confirmed(&mut self, question: Confirmed) -> Verdict {
        let Confirmed { node, boot, decided, .. } = question;
        if !self.nodes[node].is_up() || self.nodes[node].boot != boot {
            return Ok(());
        }
        if self.nodes[node].applied_index() < decided {
            self.schedule(APPLY_DELAY, Event::Confirmed(Box::new(question)));
            return Ok(());
        }
        let Confirmed { from, packet, .. } = question;
        self.with_node(node, |node, now, out| node.on_confirmed(now, from, *packet, out))
    }

    fn note_facts(&mut self, application: usize) -> Verdict {
        let facts = self.applications[application].take_facts();
        facts.into_iter().try_for_each(|fact| self.checker.fact(fact))
    }

    fn wake_application(&mut self, application: usize, delay: Duration) {
        self.application_wakes[application] += 1;
        let wake = self.application_wakes[application];
        self.schedule(delay, Event::ApplicationWake { application, wake });
    }

    /// The applications end what they have begun.
    pub(crate) fn stop_applications(&mut self) {
        for application in 0..self.applications.len() {
            self.applications[application].stop();
            self.wake_application(application, Duration::ZERO);
        }
    }

    /// Whether all applications, and all coordinators, have come to rest.
    pub(crate) fn is_coordination_idle(&self) -> bool {
        let mut internal = self.partitions.iter().filter(|partition| is_internal(**partition));
        self.applications.iter().all(Application::is_idle)
            && internal.all(|partition| {
                let owner = self.owner(*partition);
                owner.is_some_and(|owner| {
                    let node = &self.nodes[owner.node.get() as usize];
                    let broker = node.broker(*partition, owner.generation);
                    broker.is_some_and(|broker| broker.is_desk_idle())
                })
            })
    }
}
