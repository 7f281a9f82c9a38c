//! Rooms of the node (`gateway/src`), from the lowest: each may import those below it, and none above or beside it.

const LAYERS: &[&[&str]] = &[
    &["topic_config", "health", "config", "peers"],
    &["log"],
    &["meta", "linked_topics"],
    &["broker"],
    &["features", "cluster_time"],
    &["admin_api", "context"],
    &["kafka"],
    &["mirror"],
    &["node"],
    &["admin"],
    &["start"],
    &["fuzz"],
];
const ROOT: &str = "gateway/src/";

/// Reports imports of a room above, and rooms that are in no layer.
pub(super) fn check(file: &str, text: &str, breaches: &mut Vec<String>) {
    let Some(room) = file.strip_prefix(ROOT).map(room_of).filter(|room| *room != "lib") else {
        return;
    };
    let Some(layer) = layer_of(room) else {
        breaches
            .push(format!("{file}: {room} is in no layer; add it to ops/xtask/src/tidy/layers.rs"));
        return;
    };
    if is_test(file) {
        return;
    }
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    for (index, line) in code.lines().enumerate() {
        for (name, above) in imports(line).filter_map(|name| Some((name, layer_of(name)?))) {
            if above >= layer && name != room {
                breaches.push(format!(
                    "{file}:{}: {room} imports crate::{name}, a room above or beside it; what both need belongs into {room} or below",
                    index + 1
                ));
            }
        }
    }
}

fn layer_of(room: &str) -> Option<usize> {
    LAYERS.iter().position(|rooms| rooms.contains(&room))
}

fn room_of(path: &str) -> &str {
    path.split(['/', '.']).next().unwrap_or_default()
}

/// Tests may use what is above: they put a node together.
fn is_test(file: &str) -> bool {
    file.split(['/', '.']).any(|part| part.ends_with("tests") || part == "testing")
}

/// Names that follow `crate::` in a line of code.
fn imports(line: &str) -> impl Iterator<Item = &str> {
    let code = line.split("//").next().unwrap_or_default();
    code.split("crate::").skip(1).filter_map(|rest| {
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        Some(&rest[..end]).filter(|name| !name.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaches(file: &str, text: &str) -> Vec<String> {
        let mut found = Vec::new();
        check(file, text, &mut found);
        found
    }

    #[test]
    fn an_import_of_a_room_above_is_reported_with_its_place() {
        let found = breaches("gateway/src/config/tiers.rs", "use crate::peers::Wire;\n");
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("gateway/src/config/tiers.rs:1: config imports crate::peers"));
        assert_eq!(breaches("gateway/src/log.rs", "use crate::config::ScrubConfig;\n"), [""; 0]);
    }

    #[test]
    fn rooms_of_a_layer_do_not_import_each_other() {
        let found = breaches("gateway/src/meta.rs", "use crate::linked_topics::forget;\n");
        assert!(found[0].contains("meta imports crate::linked_topics"), "{found:?}");
        assert_eq!(breaches("gateway/src/meta/thread.rs", "use crate::meta::Meta;\n"), [""; 0]);
    }

    #[test]
    fn tests_may_import_what_is_above() {
        let text = "#[cfg(test)]\nmod tests {\n    use crate::kafka::testing;\n}\n";
        assert_eq!(breaches("gateway/src/log.rs", text), [""; 0]);
        assert_eq!(breaches("gateway/src/log/tests.rs", "use crate::kafka::testing;\n"), [""; 0]);
    }

    #[test]
    fn a_new_room_needs_a_layer() {
        assert!(breaches("gateway/src/attic.rs", "")[0].contains("attic is in no layer"));
    }
}
