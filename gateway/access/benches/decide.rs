//! What a decision costs with many rules: `cargo bench -p meridian-access`.

use std::hint::black_box;
use std::sync::Mutex;
use std::time::Instant;

use meridian_access::{
    Decisions, Operation, Pattern, PatternType, Permission, Principal, Resource, ResourceType,
    Rule, Rules,
};

const RULE_COUNT: u32 = 100_000;
const DECISION_COUNT: u32 = 1_000_000;

fn rule(number: u32) -> Rule {
    let (pattern_type, name) = match number % 4 {
        0 => (PatternType::Prefixed, format!("team-{}.", number / 4)),
        _ => (PatternType::Literal, format!("team-{}.topic-{number}", number / 4)),
    };
    Rule {
        pattern: Pattern { kind: ResourceType::Topic, pattern_type, name },
        principal: Principal::user(&format!("user-{}", number % 1000)),
        host: "*".to_owned(),
        operation: Operation::Read,
        permission: Permission::Allow,
    }
}

#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn main() {
    let mut rules = Rules::default();
    let started = Instant::now();
    (0..RULE_COUNT).for_each(|number| rules.add(&rule(number)));
    println!("{} rules were indexed in {:?}", rules.count(), started.elapsed());
    let names: Vec<String> =
        (0..1024).map(|it| format!("team-{}.topic-{}", it * 24, it * 97 + 1)).collect();
    let users: Vec<Principal> =
        (0..1024).map(|it| Principal::user(&format!("user-{it}"))).collect();
    for _ in 0..5 {
        let mut allowed_count = 0u32;
        let started = Instant::now();
        for number in 0..DECISION_COUNT as usize {
            let resource = Resource::topic(&names[number % names.len()]);
            let verdict = rules.verdict(&users[number % 1021], "10.0.0.1", resource);
            allowed_count += u32::from(black_box(verdict).allows(Operation::Read));
        }
        let each = started.elapsed() / DECISION_COUNT;
        println!("{each:?} for each decision; {allowed_count} of {DECISION_COUNT} allowed");
    }
    again(&rules, &names[..64]);
}

/// What the next request of a client about the same topics costs.
#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn again(rules: &Rules, names: &[String]) {
    let (user, decisions) = (Principal::user("user-1"), Mutex::new(Decisions::default()));
    for _ in 0..5 {
        let mut known_count = 0u32;
        let started = Instant::now();
        for number in 0..DECISION_COUNT as usize {
            let resource = Resource::topic(&names[number % names.len()]);
            let known = decisions.lock().expect("no other thread").known(1, resource);
            known_count += u32::from(known.is_some());
            let verdict = known.unwrap_or_else(|| {
                let verdict = rules.verdict(&user, "10.0.0.1", resource);
                decisions.lock().expect("no other thread").remember(1, resource, verdict);
                verdict
            });
            black_box(verdict.allows(Operation::Read));
        }
        let each = started.elapsed() / DECISION_COUNT;
        println!("{each:?} for each decision that was made before; {known_count} were");
    }
}
