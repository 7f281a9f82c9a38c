//! Says what a command waits for, while it waits.

use std::pin::pin;
use std::time::Duration;

use meridian_admin_api::cluster::Condition;

use crate::client::Client;
use crate::cluster::{self, stops};

/// A wait this long is worth a line; a takeover is over by then.
const SAID_AFTER: Duration = Duration::from_secs(5);
/// And then this often.
const SAID_EVERY: Duration = Duration::from_secs(10);
/// How long the cluster may take to say what is wrong.
const ASKED_FOR: Duration = Duration::from_secs(5);

/// Does `work`; if it takes long, says on standard error for what it waits.
pub(super) async fn explained<T>(client: &Client, work: impl Future<Output = T>) -> T {
    let mut waited = Duration::ZERO;
    let tick = async || {
        let wait = if waited.is_zero() { SAID_AFTER } else { SAID_EVERY };
        tokio::time::sleep(wait).await;
        waited += wait;
        waited.as_secs()
    };
    let say = |line: String| eprintln!("{line}");
    explained_by(work, tick, async || reasons(client).await, say).await
}

/// `tick` comes when it is time to say something, with the seconds that were waited.
async fn explained_by<T>(
    work: impl Future<Output = T>,
    mut tick: impl AsyncFnMut() -> u64,
    reasons: impl AsyncFn() -> String,
    say: impl Fn(String),
) -> T {
    let mut work = pin!(work);
    loop {
        let seconds = tokio::select! {
            biased;
            done = &mut work => return done,
            seconds = tick() => seconds,
        };
        tokio::select! {
            biased;
            done = &mut work => return done,
            reasons = reasons() => say(format!("waiting for {seconds} s: {reasons}")),
        }
    }
}

/// What the cluster says stops or threatens writes.
async fn reasons(client: &Client) -> String {
    match tokio::time::timeout(ASKED_FOR, cluster::ask(client)).await {
        Ok(Ok(status)) => said(cluster::conditions(&status)),
        Ok(Err(error)) => format!("the cluster can't be asked why ({error})"),
        Err(_) => "the cluster does not say why: no node answers".to_owned(),
    }
}

/// What stops writes, or else what threatens them.
fn said(conditions: &[Condition]) -> String {
    let stopping = conditions.iter().any(stops);
    let shown = conditions.iter().filter(|it| stops(it) || !stopping);
    let lines: Vec<String> =
        shown.map(|it| format!("{}\n  to mend it: {}", cluster::line(it), it.mend)).collect();
    match lines.is_empty() {
        true => {
            "the cluster knows of nothing that stops writes; `meridian cluster status`".to_owned()
        }
        false => lines.join("\n"),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[tokio::test]
    async fn a_long_wait_says_why_again_and_again() {
        let lines = RefCell::new(Vec::new());
        let (done, work) = tokio::sync::oneshot::channel();
        let done = RefCell::new(Some(done));
        let say = |line| {
            lines.borrow_mut().push(line);
            if lines.borrow().len() == 2 {
                done.take().unwrap().send(7).unwrap();
            }
        };
        let mut waited = 0;
        let tick = async || {
            waited += 5;
            waited
        };
        let written = explained_by(work, tick, async || "the disks are full".to_owned(), say).await;
        assert_eq!(written, Ok(7));
        assert_eq!(
            *lines.borrow(),
            ["waiting for 5 s: the disks are full", "waiting for 10 s: the disks are full"]
        );
    }

    #[tokio::test]
    async fn what_is_done_at_once_needs_no_reason() {
        let never = |line: String| panic!("{line}");
        assert_eq!(explained_by(async { 7 }, async || 5, async || String::new(), never).await, 7);
    }

    #[test]
    fn what_stops_writes_is_said_before_what_threatens_them() {
        let of = |severity: &str, what: &str| -> Condition {
            let json = serde_json::json!({
                "condition": "x", "severity": severity, "nodes": [2], "what": what, "mend": "do it",
            });
            serde_json::from_value(json).unwrap()
        };
        let full = of("threatens", "the disk is full");
        let stalled = of("stops", "partition t-0 can't commit");
        let line = "stops: node 2: partition t-0 can't commit\n  to mend it: do it";
        assert_eq!(said(&[stalled, full.clone()]), line);
        assert_eq!(said(&[full]), "threatens: node 2: the disk is full\n  to mend it: do it");
        assert!(said(&[]).contains("nothing that stops writes"));
    }
}
