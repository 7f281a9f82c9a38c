//! What a suite's runner says of its tests, and what that comes to.

use super::known::Difference;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::clients) enum Verdict {
    Passed,
    Failed,
    Skipped,
}

/// A test that was run, or left out by the suite itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::clients) struct Case {
    pub(in crate::clients) name: String,
    pub(in crate::clients) verdict: Verdict,
}

impl Case {
    pub(in crate::clients) fn new(name: impl Into<String>, verdict: Verdict) -> Self {
        Self { name: name.into(), verdict }
    }
}

/// All tests of a run, beside the known differences.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::clients) struct Tally {
    passed_count: usize,
    skipped_count: usize,
    /// Failures that are known, and why they are.
    known: Vec<(String, String)>,
    /// Failures that nobody knew.
    pub(in crate::clients) failed: Vec<String>,
    /// Known failures that did not fail.
    stale: Vec<String>,
    /// Failures that nobody knew, and that did not fail again.
    forgiven: Vec<String>,
}

impl Tally {
    pub(in crate::clients) fn of(cases: &[Case], known: &[&Difference]) -> Self {
        let mut tally = Self::default();
        for case in cases {
            match case.verdict {
                Verdict::Passed => tally.passed_count += 1,
                Verdict::Skipped => tally.skipped_count += 1,
                Verdict::Failed => match known.iter().find(|known| known.covers(&case.name)) {
                    Some(known) => tally.known.push((case.name.clone(), known.why.clone())),
                    None => tally.failed.push(case.name.clone()),
                },
            }
        }
        // A runner that says nothing has not run.
        if cases.is_empty() {
            tally.failed.push("no test was run".to_owned());
        }
        for known in known {
            let mut covered = cases.iter().filter(|case| known.covers(&case.name)).peekable();
            if covered.peek().is_none() {
                tally.stale.push(format!("{}: there is no such test", known.test));
            } else if !known.is_at_times() && covered.all(|case| case.verdict == Verdict::Passed) {
                tally.stale.push(format!("{}: passes now", known.test));
            }
        }
        tally
    }

    /// Takes those for passed that pass when they are run again.
    pub(in crate::clients) fn forgive(&mut self, again: &[Case]) {
        let passes = |test: &String| {
            let mut tries = again.iter().filter(|case| case.name == *test).peekable();
            tries.peek().is_some() && tries.all(|case| case.verdict == Verdict::Passed)
        };
        let (forgiven, failed) = std::mem::take(&mut self.failed).into_iter().partition(passes);
        self.failed = failed;
        self.forgiven = forgiven;
        self.passed_count += self.forgiven.len();
    }

    pub(in crate::clients) fn render(&self, run: &str, seconds: u64) -> String {
        let failed_count = self.known.len() + self.failed.len();
        let mut text = format!(
            "== {run}: {} run, {} passed, {failed_count} failed ({} known), {} skipped, {seconds} s\n",
            self.passed_count + failed_count,
            self.passed_count,
            self.known.len(),
            self.skipped_count,
        );
        for (test, why) in &self.known {
            text.push_str(&format!("   known: {test}: {why}\n"));
        }
        for test in &self.failed {
            text.push_str(&format!("   FAILED: {test}\n"));
        }
        for test in &self.forgiven {
            text.push_str(&format!("   passed at the second try: {test}\n"));
        }
        for entry in &self.stale {
            text.push_str(&format!("   take out of known.toml: {entry}\n"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::super::known::Known;
    use super::*;

    #[test]
    fn failures_are_known_or_new_and_known_ones_may_pass() {
        let known = Known::parse(
            "[x]\n\"TLS*\" = \"needs TLS\"\n\"B\" = \"why\"\n\"C\" = \"why\"\n\
             \"E\" = \"at times: slow\"\n",
        )
        .unwrap();
        let cases = [
            Case::new("TLS/1", Verdict::Failed),
            Case::new("TLS/2", Verdict::Passed),
            Case::new("B", Verdict::Passed),
            Case::new("D", Verdict::Failed),
            Case::new("E", Verdict::Passed),
            Case::new("F", Verdict::Skipped),
        ];
        let tally = Tally::of(&cases, &known.of("x", 1));
        assert_eq!(
            tally.render("x-1", 7),
            "== x-1: 5 run, 3 passed, 2 failed (1 known), 1 skipped, 7 s\n   \
             known: TLS/1: needs TLS\n   FAILED: D\n   \
             take out of known.toml: B: passes now\n   \
             take out of known.toml: C: there is no such test\n"
        );
        assert_eq!(tally.failed, ["D"]);
    }

    #[test]
    fn what_fails_twice_failed() {
        let case = |name: &str, verdict| Case::new(name, verdict);
        let first = ["A", "B", "C"].map(|name| case(name, Verdict::Failed));
        let mut tally = Tally::of(&first, &[]);
        tally.forgive(&[case("A", Verdict::Passed), case("B", Verdict::Failed)]);
        assert_eq!(tally.failed, ["B", "C"]);
        assert_eq!(
            tally.render("x", 1),
            "== x: 3 run, 1 passed, 2 failed (0 known), 0 skipped, 1 s\n   FAILED: B\n   \
             FAILED: C\n   passed at the second try: A\n"
        );
    }

    #[test]
    fn a_run_without_a_test_fails() {
        assert_eq!(Tally::of(&[], &[]).failed, ["no test was run"]);
    }
}
