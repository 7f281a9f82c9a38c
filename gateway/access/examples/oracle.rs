//! Compares decisions with those of Kafka's own `StandardAuthorizer`, in random rule sets, with and without
//! `allow.everyone.if.no.acl.found`.
//!
//! `cargo xtask clients --oracle` brings what it needs and runs it; its arguments are the number of rule sets, a
//! seed, and the command that starts `ops/tests/clients/oracle/Oracle.java`, which says what its lines mean.

use std::collections::BTreeSet;
use std::error::Error;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::process::{Command, Stdio};

use meridian_access::{
    Operation, Operations, Pattern, PatternType, Permission, Principal, Resource, ResourceType,
    Rule, Rules, WILDCARD,
};

/// Rules of a set, at most.
const RULE_COUNT_MAX: u64 = 40;
/// Questions about one resource, for each rule set.
const QUESTION_COUNT: usize = 60;
/// Questions about any resource of a type, for each rule set.
const ANY_COUNT: usize = 8;
const HOSTS: &[&str] = &["10.0.0.1", "10.0.0.2", "0:0:0:0:0:0:0:1"];
const USERS: &[&str] = &["alice", "bob", "carol"];
/// What names are made of: few letters, so that many are prefixes of others.
const LETTERS: &[char] = &['a', 'b', 'é', '.', '-', '*', 'A', '語', '🦀'];

/// Pseudo-random numbers by SplitMix64: a seed gives the same questions everywhere.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        let index = self.below(all.len() as u64);
        all[usize::try_from(index).unwrap_or_default()]
    }

    /// A name. Most are short and have two letters alone. None but `*` itself begins with `*`: for such a resource
    /// Kafka passes over the rules for `*`, also those that deny, and they hold here.
    fn name(&mut self) -> String {
        if self.below(8) == 0 {
            return WILDCARD.to_owned();
        }
        let letters = if self.below(4) == 0 { LETTERS } else { &LETTERS[..2] };
        let length = 1 + self.below(5);
        let name: String = (0..length).map(|_| self.of(letters)).collect();
        name.trim_start_matches('*').to_owned() + &self.of(&LETTERS[..2]).to_string()
    }

    fn kind(&mut self) -> ResourceType {
        if self.below(3) > 0 { ResourceType::Topic } else { self.of(ResourceType::ALL) }
    }

    fn rule(&mut self) -> Rule {
        let user = if self.below(4) == 0 { Principal::WILDCARD_NAME } else { self.of(USERS) };
        let host = if self.below(2) == 0 { WILDCARD } else { self.of(HOSTS) };
        let kind = self.kind();
        let pattern_type = self.of(PatternType::ALL);
        Rule {
            pattern: Pattern { kind, pattern_type, name: self.name() },
            principal: Principal::user(user),
            host: host.to_owned(),
            operation: self.of(Operation::ALL),
            permission: if self.below(4) == 0 { Permission::Deny } else { Permission::Allow },
        }
    }

    /// Some rules, and their index; others came and went before.
    fn rule_set(&mut self) -> (Vec<Rule>, Rules) {
        let count = self.below(RULE_COUNT_MAX + 1);
        let rules: BTreeSet<Rule> = (0..count).map(|_| self.rule()).collect();
        let rules: Vec<Rule> = rules.into_iter().collect();
        let gone: Vec<Rule> = (0..count / 4).map(|_| self.rule()).collect();
        let mut index = Rules::default();
        gone.iter().chain(&rules).for_each(|rule| index.add(rule));
        gone.iter().filter(|rule| !rules.contains(rule)).for_each(|rule| index.remove(rule));
        (rules, index)
    }
}

/// A question, as a line, and our answer.
struct Question {
    line: String,
    is_allowed: bool,
}

fn about_one(chance: &mut Chance, rules: &[Rule], index: &Rules, is_open: bool) -> Question {
    // Half of the names are, or begin as, the name of a rule.
    let near = (!rules.is_empty() && chance.below(2) == 0).then(|| {
        rules[usize::try_from(chance.below(rules.len() as u64)).unwrap_or_default()].clone()
    });
    let (kind, name) = match near {
        Some(rule) if chance.below(2) == 0 => (rule.pattern.kind, rule.pattern.name),
        Some(rule) if rule.pattern.name != WILDCARD => {
            (rule.pattern.kind, rule.pattern.name + &chance.name())
        }
        Some(rule) => (rule.pattern.kind, chance.name()),
        None => (chance.kind(), chance.name()),
    };
    let (user, host) = (chance.of(USERS), chance.of(HOSTS));
    let operation = some_operation(chance);
    let verdict = index.verdict(&Principal::user(user), host, Resource { kind, name: &name });
    let line = format!("ASK\t{kind}\t{name}\tUser:{user}\t{host}\t{operation}");
    let is_allowed = match is_open {
        true => verdict.allows_if_open(operation),
        false => verdict.allows(operation),
    };
    Question { line, is_allowed }
}

/// Kafka asks this of writing alone. It first asks about the topic `hardcode`, for which other operations imply
/// describing, and then goes by rules for the operation itself: the questions are about operations of which both
/// say one thing.
fn about_any(chance: &mut Chance, index: &Rules, is_open: bool) -> Question {
    let operation = loop {
        let operation = some_operation(chance);
        if operation.allowed_by() == Operations::of(&[Operation::All, operation]) {
            break operation;
        }
    };
    let (kind, user, host) = (chance.kind(), chance.of(USERS), chance.of(HOSTS));
    let is_allowed = is_open && index.leaves_any(kind)
        || index.allow_any(&Principal::user(user), host, operation, kind);
    let line = format!("ANY\t{kind}\tUser:{user}\t{host}\t{operation}");
    Question { line, is_allowed }
}

fn some_operation(chance: &mut Chance) -> Operation {
    loop {
        let operation = chance.of(Operation::ALL);
        if operation != Operation::All {
            return operation;
        }
    }
}

fn rule_line(rule: &Rule) -> String {
    let Rule { pattern, principal, host, operation, permission } = rule;
    let Pattern { kind, pattern_type, name } = pattern;
    format!("RULE\t{kind}\t{pattern_type}\t{name}\t{principal}\t{host}\t{operation}\t{permission}")
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: oracle RULE-SETS SEED COMMAND ...";
    let mut number = || arguments.next().ok_or(usage)?.parse::<u64>().map_err(|_| usage);
    let (set_count, seed) = (number()?, number()?);
    let program = arguments.next().ok_or(usage)?;
    let mut command = Command::new(program);
    let mut oracle =
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut ask = BufWriter::new(oracle.stdin.take().ok_or("the oracle has no input")?);
    let mut answers =
        BufReader::new(oracle.stdout.take().ok_or("the oracle says nothing")?).lines();
    let mut chance = Chance(seed);
    let (mut decision_count, mut allowed_count, mut wrong_count) = (0_u64, 0_u64, 0_u64);
    for set in 0..set_count {
        let (rules, index) = chance.rule_set();
        let is_open = chance.below(2) == 0;
        let one = (0..QUESTION_COUNT).map(|_| about_one(&mut chance, &rules, &index, is_open));
        let mut questions: Vec<Question> = one.collect();
        questions.extend((0..ANY_COUNT).map(|_| about_any(&mut chance, &index, is_open)));
        for line in rules.iter().map(rule_line) {
            writeln!(ask, "{line}")?;
        }
        writeln!(ask, "LOAD\t{is_open}")?;
        for question in &questions {
            writeln!(ask, "{}", question.line)?;
        }
        writeln!(ask, "FLUSH")?;
        ask.flush()?;
        for Question { line, is_allowed } in questions {
            let answer = answers.next().ok_or("the oracle has ended; its own error is above")??;
            decision_count += 1;
            allowed_count += u64::from(is_allowed);
            if answer != if is_allowed { "ALLOWED" } else { "DENIED" } {
                wrong_count += 1;
                println!(
                    "set {set}: {line}: Kafka says {answer}, and we do not, open {is_open}, by"
                );
                rules.iter().for_each(|rule| println!("    {rule}"));
            }
        }
    }
    drop(ask);
    oracle.wait()?;
    println!(
        "{decision_count} decisions in {set_count} rule sets (seed {seed}), {allowed_count} of them allowed: \
         {wrong_count} differ from Kafka's"
    );
    if wrong_count == 0 { Ok(()) } else { Err("decisions differ from Kafka's".into()) }
}
