//! The connections of this node as operators see them, and how they close one.

pub(super) mod operators;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use meridian_protocol::messages::ApiVersionsRequest;
use tokio::sync::Notify;

use super::dispatch::{Client, is_software};
use super::lock;
use super::usage::{ClientName, ClientUsage, Usage, shown};

/// The software that a client says it is (KIP-511).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Software {
    pub(super) name: Arc<str>,
    pub(super) version: Arc<str>,
}

impl Software {
    /// What a client says, if it says it in the form that Kafka takes.
    pub(super) fn of(request: &ApiVersionsRequest) -> Option<Self> {
        let (name, version) = (&request.client_software_name, &request.client_software_version);
        let is_said = is_software(name) && is_software(version);
        is_said.then(|| Self { name: shown(name), version: shown(version) })
    }
}

/// What a connection has done, and what its client says of itself.
#[derive(Debug, Default)]
pub(super) struct Presence {
    request_count: AtomicU64,
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
    throttled_us: AtomicU64,
    said: Mutex<Said>,
    software: Mutex<Option<Software>>,
    kicked: Notify,
}

#[derive(Debug, Default)]
struct Said {
    client_id: Arc<str>,
    /// The counters of the name; `None` before the first request.
    usage: Option<ClientUsage>,
}

impl Presence {
    /// A request came. Clients say with each of them what they call themselves; almost always the same.
    pub(super) fn on_request(
        &self,
        usage: &Usage,
        user: impl FnOnce() -> Arc<str>,
        client_id: Option<&str>,
        size_bytes: usize,
    ) {
        self.request_count.fetch_add(1, Ordering::Relaxed);
        self.received_bytes.fetch_add(size_bytes as u64, Ordering::Relaxed);
        let client_id = client_id.unwrap_or_default();
        let mut said = lock(&self.said);
        if said.usage.is_none() || *said.client_id != *client_id {
            let client_id = shown(client_id);
            if said.usage.is_none() || said.client_id != client_id {
                // Given back first, so that a name that is used no more can make room.
                said.usage = None;
                let name = ClientName { user: user(), client_id: Arc::clone(&client_id) };
                said.usage = Some(usage.client(name));
                said.client_id = client_id;
            }
        }
        if let Some(usage) = &said.usage {
            usage.on_request(size_bytes);
        }
    }

    pub(super) fn on_sent(&self, size_bytes: usize) {
        self.sent_bytes.fetch_add(size_bytes as u64, Ordering::Relaxed);
        if let Some(usage) = &lock(&self.said).usage {
            usage.on_sent(size_bytes);
        }
    }

    pub(super) fn on_throttled(&self, pause: Duration) {
        let pause_us = u64::try_from(pause.as_micros()).unwrap_or(u64::MAX);
        self.throttled_us.fetch_add(pause_us, Ordering::Relaxed);
        if let Some(usage) = &lock(&self.said).usage {
            usage.on_throttled_us(pause_us);
        }
    }

    /// The client said which software it is.
    pub(super) fn on_software(&self, software: Option<Software>) {
        if software.is_some() {
            *lock(&self.software) = software;
        }
    }

    /// Ends when an operator closes the connection.
    pub(super) async fn is_kicked(&self) {
        self.kicked.notified().await;
    }

    /// Closes the connection.
    pub(super) fn kick(&self) {
        self.kicked.notify_one();
    }

    pub(super) fn client_id(&self) -> Arc<str> {
        Arc::clone(&lock(&self.said).client_id)
    }

    pub(super) fn software(&self) -> Option<Software> {
        lock(&self.software).clone()
    }

    pub(super) fn request_count(&self) -> u64 {
        self.request_count.load(Ordering::Relaxed)
    }

    pub(super) fn received_bytes(&self) -> u64 {
        self.received_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn sent_bytes(&self) -> u64 {
        self.sent_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn throttled(&self) -> Duration {
        Duration::from_micros(self.throttled_us.load(Ordering::Relaxed))
    }
}

/// A connection that is open.
#[derive(Clone, Debug)]
pub(super) struct Open {
    /// Its number at this node.
    pub(super) id: u64,
    /// When it was taken, after its login.
    pub(super) since_ms: i64,
    pub(super) client: Arc<Client>,
}

/// The connections that are open: as many as the server lets in.
#[derive(Debug, Default)]
pub(super) struct Connections {
    last_id: AtomicU64,
    open: Mutex<BTreeMap<u64, (i64, Weak<Client>)>>,
}

/// A connection is listed until this is dropped.
pub(super) struct Listed<'a> {
    connections: &'a Connections,
    id: u64,
}

impl Connections {
    pub(super) fn list(&self, client: &Arc<Client>, now_ms: i64) -> Listed<'_> {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        lock(&self.open).insert(id, (now_ms, Arc::downgrade(client)));
        Listed { connections: self, id }
    }

    /// All of them, the oldest first.
    pub(super) fn all(&self) -> Vec<Open> {
        let open = lock(&self.open);
        let known = open.iter().filter_map(|(id, (since_ms, client))| {
            Some(Open { id: *id, since_ms: *since_ms, client: client.upgrade()? })
        });
        known.collect()
    }
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        lock(&self.connections.open).remove(&self.id);
    }
}
