//! Names of topics that were deleted a moment ago. A client that has deleted a topic and asks for it once more does
//! not want it back, though it may create topics.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use super::lock;

/// For how long a deleted topic is not created by a question for it.
const REST: Duration = Duration::from_secs(2);
/// Most names; the oldest go first.
const NAME_COUNT_MAX: usize = 10_000;

/// The names, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Deleted(Mutex<VecDeque<(Instant, String)>>);

impl Deleted {
    /// A topic of this name is gone.
    pub(crate) fn note(&self, name: &str) {
        let now = Instant::now();
        let mut names = lock(&self.0);
        while names.front().is_some_and(|(at, _)| now - *at >= REST)
            || names.len() >= NAME_COUNT_MAX
        {
            names.pop_front();
        }
        names.push_back((now, name.to_owned()));
    }

    /// Whether a topic of this name was deleted less than a moment ago.
    pub(crate) fn has(&self, name: &str) -> bool {
        let now = Instant::now();
        lock(&self.0).iter().rev().take_while(|(at, _)| now - *at < REST).any(|(_, it)| it == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_name_rests_for_a_moment_and_no_more_than_so_many_do() {
        let deleted = Deleted::default();
        deleted.note("orders");
        assert!(deleted.has("orders") && !deleted.has("bills"));
        tokio::time::advance(REST).await;
        assert!(!deleted.has("orders"));
        for index in 0..=NAME_COUNT_MAX {
            deleted.note(&index.to_string());
        }
        assert_eq!(lock(&deleted.0).len(), NAME_COUNT_MAX);
        assert!(!deleted.has("0") && deleted.has("1"));
    }
}
