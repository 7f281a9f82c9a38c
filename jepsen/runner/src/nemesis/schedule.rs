//! When which fault begins and ends: drawn from the seed.

use std::time::Duration;

use super::{Entry, MIXES, Needs, Nemesis, Scene, Scope, catalogue};
use crate::check::{self, AfterOverload};
use crate::clock;
use crate::failure::Failure;
use crate::history::{Body, Kind, Process, Recorder};

/// Faults at the same time.
const TOGETHER_MAX: usize = 3;
/// Peace before the first fault.
const QUIET: Duration = Duration::from_secs(4);
/// For writes to be as quick as before an overload.
const CALM_WITHIN: Duration = Duration::from_secs(60);
/// Not too often: to look costs what clients could use.
const CALM_LOOK_EVERY: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(50);

/// Which faults, and how often.
pub(crate) struct Plan {
    pub(crate) faults: Vec<Entry>,
    /// Between two begins, on average.
    pub(crate) interval: Duration,
    /// How long a fault lasts, on average.
    pub(crate) lasting: Duration,
}

struct Active {
    name: &'static str,
    scope: Scope,
    fault: Box<dyn Nemesis>,
    until: Duration,
}

impl Plan {
    /// The faults of these names, separated by commas; names of mixes stand for all of theirs.
    pub(crate) fn parse(
        names: &str,
        has_network: bool,
        has_other_binary: bool,
    ) -> Result<(Self, Vec<&'static str>), Failure> {
        let mut wanted = Vec::new();
        for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            match MIXES.iter().find(|(mix, _)| *mix == name) {
                Some((_, of)) => wanted.extend(of.iter().map(|it| (*it).to_owned())),
                None => wanted.push(name.to_owned()),
            }
        }
        let (mut faults, mut lacking) = (Vec::new(), Vec::new());
        for name in wanted {
            let Some(entry) = catalogue().into_iter().find(|entry| entry.name == name) else {
                let known: Vec<_> = catalogue().iter().map(|entry| entry.name).collect();
                let mixes: Vec<_> = MIXES.iter().map(|(name, _)| *name).collect();
                return Err(Failure::Invalid(format!(
                    "no fault is called {name:?}; there are {} and the mixes {}",
                    known.join(", "),
                    mixes.join(", ")
                )));
            };
            let can = match entry.needs {
                Needs::Nothing | Needs::Spare => true,
                Needs::Network => has_network,
                Needs::OtherBinary => has_other_binary,
            };
            if can {
                faults.push(entry);
            } else {
                lacking.push(entry.name);
            }
        }
        let (interval, lasting) = (Duration::from_secs(5), Duration::from_secs(6));
        Ok((Self { faults, interval, lasting }, lacking))
    }

    /// Whether a fault asks for a spare.
    pub(crate) fn needs_spare(&self) -> bool {
        self.faults.iter().any(|entry| entry.needs == Needs::Spare)
    }

    /// Whether every fault leaves service.
    pub(crate) fn is_within(&self) -> bool {
        self.faults.iter().all(|entry| entry.scope == Scope::Within)
    }
}

/// Begins and ends faults until the time is over; then ends what is left.
pub(crate) fn drive(
    plan: &Plan,
    scene: &mut Scene<'_>,
    recorder: &Recorder,
    until: Duration,
) -> Result<(), Failure> {
    let mut active: Vec<Active> = Vec::new();
    let mut next = QUIET;
    loop {
        let now = recorder.time();
        let over = now >= until;
        let due = |it: &Active| over || it.until <= now;
        while let Some(position) = active.iter().position(due) {
            finish(active.remove(position), scene, recorder)?;
        }
        if over {
            wait_for_calm(recorder);
            return Ok(());
        }
        if now >= next && !plan.faults.is_empty() {
            if let Some(begun) = begin(plan, &active, scene, recorder)? {
                active.push(begun);
            }
            next = recorder.time() + scene.chance.around(plan.interval).max(TICK);
        }
        clock::sleep(TICK);
    }
}

/// After an overload clients go on until it can be judged.
fn wait_for_calm(recorder: &Recorder) {
    let until = recorder.time() + CALM_WITHIN;
    while recorder.time() < until
        && check::after_overload(&recorder.history()) == AfterOverload::NotYet
    {
        clock::sleep(CALM_LOOK_EVERY);
    }
}

fn begin(
    plan: &Plan,
    active: &[Active],
    scene: &mut Scene<'_>,
    recorder: &Recorder,
) -> Result<Option<Active>, Failure> {
    let entry = &plan.faults[scene.chance.below(plan.faults.len())];
    let alone = |scope| scope == Scope::Beyond;
    let is_occupied = active.iter().any(|it| alone(it.scope) || it.name == entry.name)
        || active.len() >= TOGETHER_MAX
        || (alone(entry.scope) && !active.is_empty());
    if is_occupied {
        return Ok(None);
    }
    let mut fault = (entry.make)();
    let Some(detail) = fault.begin(scene)? else { return Ok(None) };
    note(recorder, entry.name, true, detail);
    // It lasts from when it is there: some take long to begin.
    let started = recorder.time();
    let lasting = scene.chance.between(plan.lasting / 4, plan.lasting * 7 / 4);
    let (name, scope) = (entry.name, entry.scope);
    Ok(Some(Active { name, scope, fault, until: started + lasting }))
}

fn finish(mut it: Active, scene: &mut Scene<'_>, recorder: &Recorder) -> Result<(), Failure> {
    it.fault.end(scene)?;
    note(recorder, it.name, false, String::new());
    Ok(())
}

fn note(recorder: &Recorder, name: &str, begins: bool, detail: String) {
    let fault = Body::Fault { name: name.to_owned(), begins, detail };
    recorder.record(Kind::Info, Process::Nemesis, fault);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_mixes_are_known() {
        for (mix, _) in MIXES {
            assert!(Plan::parse(mix, true, true).is_ok(), "{mix}");
        }
        let (plan, lacking) = Plan::parse("nastiest", true, false).unwrap();
        assert!(plan.is_within() && lacking.is_empty());
        let (plan, lacking) = Plan::parse("kill, one-way,upgrade", false, false).unwrap();
        assert_eq!((plan.faults.len(), lacking), (1, vec!["one-way", "upgrade"]));
        let unknown = Plan::parse("kil", true, true).err().map(|error| error.to_string());
        assert!(unknown.is_some_and(|text| text.contains("kill-leader")));
        let (plan, _) = Plan::parse("kill,halves", true, true).unwrap();
        assert!(!plan.is_within());
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = catalogue().iter().map(|entry| entry.name).collect();
        names.extend(MIXES.iter().map(|(name, _)| *name));
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
