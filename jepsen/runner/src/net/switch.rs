//! The switch: takes packets from every cable, holds them as the weather says, and passes them on.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::tun::MTU_BYTES;
use super::weather::{Effect, Port, Rule, RuleId, Weather};
use crate::chance::Chance;
use crate::clock;
use crate::failure::Failure;

/// Packets taken from one cable before the next has its turn.
const BURST_COUNT: usize = 64;
/// What waits for a pair of ports with a limited rate before packets are dropped.
const BACKLOG_MAX: Duration = Duration::from_millis(500);
/// To look whether the switch is to end.
const IDLE_WAIT: Duration = Duration::from_millis(100);
const DESTINATION: std::ops::Range<usize> = 16..20;

/// A cable and who is at its end.
pub(crate) struct Cable {
    pub(crate) address: Ipv4Addr,
    pub(crate) end: OwnedFd,
}

/// What passed and what did not.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) passed: AtomicU64,
    pub(crate) dropped: AtomicU64,
    /// Bytes that were not dropped, by port from, then port to.
    bytes: Vec<Vec<AtomicU64>>,
}

impl Traffic {
    fn of(port_count: usize) -> Self {
        let row = || (0..port_count).map(|_| AtomicU64::new(0)).collect();
        Self { bytes: (0..port_count).map(|_| row()).collect(), ..Self::default() }
    }

    /// Bytes that went from one port to another.
    pub(crate) fn bytes(&self, from: Port, to: Port) -> u64 {
        self.bytes[from.0][to.0].load(Ordering::Relaxed)
    }
}

/// The handle of the switch. It ends with it.
pub(crate) struct Switch {
    shared: Arc<Shared>,
}

struct Shared {
    weather: Mutex<Weather>,
    changed: AtomicBool,
    stop: AtomicBool,
    traffic: Traffic,
}

impl Switch {
    /// Joins the cables; the index of each is its port.
    pub(crate) fn start(cables: Vec<Cable>, chance: Chance) -> Result<Self, Failure> {
        let shared = Arc::new(Shared {
            weather: Mutex::default(),
            changed: AtomicBool::new(true),
            stop: AtomicBool::new(false),
            traffic: Traffic::of(cables.len()),
        });
        let mut engine = Engine::new(cables, chance, Arc::clone(&shared));
        std::thread::Builder::new()
            .name("switch".to_owned())
            .spawn(move || engine.run())
            .map_err(Failure::system("a thread"))?;
        Ok(Self { shared })
    }

    pub(crate) fn add(&self, rule: Rule) -> RuleId {
        let id = self.weather(|weather| weather.add(rule));
        self.shared.changed.store(true, Ordering::Release);
        id
    }

    pub(crate) fn remove(&self, id: RuleId) {
        self.weather(|weather| weather.remove(id));
        self.shared.changed.store(true, Ordering::Release);
    }

    pub(crate) fn traffic(&self) -> &Traffic {
        &self.shared.traffic
    }

    fn weather<T>(&self, change: impl FnOnce(&mut Weather) -> T) -> T {
        change(&mut self.shared.weather.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
    }
}

/// A packet on its way. Ordered by when it is due, then by when it came.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Held {
    due: Instant,
    number: u64,
    to: usize,
    packet: Vec<u8>,
}

struct Engine {
    cables: Vec<File>,
    ports: BTreeMap<Ipv4Addr, usize>,
    /// By port from, then port to.
    effects: Vec<Vec<Effect>>,
    /// When the last packet of a pair with a limited rate has left.
    busy_until: BTreeMap<(usize, usize), Instant>,
    held: BinaryHeap<Reverse<Held>>,
    next_number: u64,
    chance: Chance,
    shared: Arc<Shared>,
}

impl Engine {
    fn new(cables: Vec<Cable>, chance: Chance, shared: Arc<Shared>) -> Self {
        let ports = cables.iter().enumerate().map(|(port, cable)| (cable.address, port)).collect();
        Self {
            effects: vec![vec![Effect::default(); cables.len()]; cables.len()],
            cables: cables.into_iter().map(|cable| File::from(cable.end)).collect(),
            ports,
            busy_until: BTreeMap::new(),
            held: BinaryHeap::new(),
            next_number: 0,
            chance,
            shared,
        }
    }

    fn run(&mut self) {
        let mut buffer = vec![0; MTU_BYTES as usize + 64];
        while !self.shared.stop.load(Ordering::Acquire) {
            if self.shared.changed.swap(false, Ordering::AcqRel) {
                self.take_weather();
            }
            let ready = self.wait();
            let now = clock::now();
            for from in ready {
                for _ in 0..BURST_COUNT {
                    match self.cables[from].read(&mut buffer) {
                        Ok(size_bytes) => self.take(from, &buffer[..size_bytes], now),
                        Err(_) => break,
                    }
                }
            }
            self.release(clock::now());
        }
    }

    fn take_weather(&mut self) {
        let weather = self.shared.weather.lock().unwrap_or_else(PoisonError::into_inner);
        for (from, row) in self.effects.iter_mut().enumerate() {
            for (to, effect) in row.iter_mut().enumerate() {
                *effect = weather.between(Port(from), Port(to));
            }
        }
    }

    /// The ports that have packets, when some have or a held one is due.
    #[expect(unsafe_code, reason = "the standard library has no poll")]
    fn wait(&self) -> Vec<usize> {
        let due = self.held.peek().map(|Reverse(held)| held.due);
        let wait = due.map_or(IDLE_WAIT, |due| due.saturating_duration_since(clock::now()));
        let wait = wait.min(IDLE_WAIT);
        let timeout = libc::timespec { tv_sec: 0, tv_nsec: wait.subsec_nanos().into() };
        let entry =
            |cable: &File| libc::pollfd { fd: cable.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let mut entries: Vec<libc::pollfd> = self.cables.iter().map(entry).collect();
        let count = entries.len() as libc::nfds_t;
        // SAFETY: the entries and the time outlive the call; no signal mask is given.
        unsafe { libc::ppoll(entries.as_mut_ptr(), count, &raw const timeout, std::ptr::null()) };
        let has_packets = |entry: &libc::pollfd| entry.revents & libc::POLLIN != 0;
        (0..entries.len()).filter(|port| has_packets(&entries[*port])).collect()
    }

    fn take(&mut self, from: usize, packet: &[u8], now: Instant) {
        let Some(destination) = packet.get(DESTINATION) else { return };
        let octets: [u8; 4] = [destination[0], destination[1], destination[2], destination[3]];
        // IPv6 neighbours are looked for in vain.
        let Some(&to) = self.ports.get(&Ipv4Addr::from(octets)) else { return };
        let effect = self.effects[from][to];
        if effect.cut || self.chance.per_mille(effect.loss_per_mille) {
            return self.drop_one();
        }
        let mut due = now;
        if let Some(nanos) = (packet.len() as u64 * 1_000_000_000).checked_div(effect.rate_bytes) {
            let free = self.busy_until.entry((from, to)).or_insert(now);
            if *free > now + BACKLOG_MAX {
                return self.drop_one();
            }
            *free = (*free).max(now) + Duration::from_nanos(nanos);
            due = *free;
        }
        let bytes = &self.shared.traffic.bytes[from][to];
        bytes.fetch_add(packet.len() as u64, Ordering::Relaxed);
        let copies = 1 + usize::from(self.chance.per_mille(effect.duplicate_per_mille));
        for _ in 0..copies {
            let late = effect.delay + self.chance.between(Duration::ZERO, effect.jitter);
            if due + late <= now {
                self.pass(to, packet);
            } else {
                let number = self.next_number;
                self.next_number += 1;
                let packet = packet.to_vec();
                self.held.push(Reverse(Held { due: due + late, number, to, packet }));
            }
        }
    }

    fn release(&mut self, now: Instant) {
        while self.held.peek().is_some_and(|Reverse(held)| held.due <= now) {
            let Some(Reverse(held)) = self.held.pop() else { return };
            self.pass(held.to, &held.packet);
        }
    }

    fn pass(&mut self, to: usize, packet: &[u8]) {
        match self.cables[to].write(packet) {
            Ok(_) => {
                self.shared.traffic.passed.fetch_add(1, Ordering::Relaxed);
            }
            // Its host has no room, or is gone: packets get lost.
            Err(error) if error.kind() != ErrorKind::Interrupted => self.drop_one(),
            Err(_) => {}
        }
    }

    fn drop_one(&self) {
        self.shared.traffic.dropped.fetch_add(1, Ordering::Relaxed);
    }
}
