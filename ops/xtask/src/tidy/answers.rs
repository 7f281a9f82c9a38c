//! The CLI reads answers of nodes by the types of `gateway/admin-api`: it declares none of its own, and compares no
//! state with a text.

const ROOT: &str = "ops/src/";
/// The file that calls methods of the private API.
const CALLER: &str = "ops/src/client/api.rs";
/// Files that read what no node has said: files of operators, and what parts of `meridian dev` tell each other.
const READERS: &[&str] = &[
    "ops/src/dev/control.rs",
    "ops/src/dev/layout.rs",
    "ops/src/federation/file.rs",
    "ops/src/init/nodes.rs",
];
/// Files that write JSON without a type of its own.
const WRITERS: &[&str] = &[
    "ops/src/consent.rs",
    "ops/src/federation.rs",
    "ops/src/monitoring/boards.rs",
    "ops/src/monitoring/rules.rs",
    "ops/src/node.rs",
    "ops/src/output.rs",
];
const API: &str = "meridian_admin_api";
/// A word is made a text, and compared.
const AS_TEXT: &[&str] = &["_str() == \"", "_str() != \"", "_string() == \"", "_string() != \""];
/// In a file that uses answers any comparison with a text is suspect.
const WITH_TEXT: &[&str] = &["== \"", "!= \"", "match ", "matches!("];

/// Reports declarations of answers, calls past the types, and states that are compared as text.
pub(super) fn check(file: &str, text: &str, breaches: &mut Vec<String>) {
    if !file.starts_with(ROOT) || is_test(file) {
        return;
    }
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let uses_answers = code.contains(API);
    for (index, line) in code.lines().enumerate() {
        let line = line.split("//").next().unwrap_or_default();
        if let Some(advice) = breach(file, line, uses_answers) {
            breaches.push(format!("{file}:{}: {advice}", index + 1));
        }
    }
}

fn breach(file: &str, line: &str, uses_answers: bool) -> Option<&'static str> {
    let (reads, writes) = (READERS.contains(&file), WRITERS.contains(&file));
    if line.contains("Deserialize") && !reads {
        return Some("answers of nodes have their types in gateway/admin-api: use those");
    }
    if line.contains("MeridianAdminRequest") && file != CALLER {
        return Some("methods are called by their types: use client::api");
    }
    if line.contains("serde_json") && !reads && !writes && file != CALLER {
        return Some("use the types of gateway/admin-api, and a struct for what is printed");
    }
    let is_matched = |what: &str| match what {
        "match " | "matches!(" => line.contains(what) && line.contains("_str()"),
        what => line.contains(what),
    };
    let compares = AS_TEXT.iter().any(|what| line.contains(what))
        || uses_answers && WITH_TEXT.iter().any(|what| is_matched(what));
    compares.then_some("compare states as the enums of gateway/admin-api, not as text")
}

fn is_test(file: &str) -> bool {
    file.split(['/', '.']).any(|part| part == "tests" || part == "testing")
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
    fn an_answer_that_is_declared_or_asked_for_past_its_type_is_reported() {
        let declared = "#[derive(Debug, Deserialize)]\nstruct Status {\n    state: String,\n}\n";
        assert!(breaches("ops/src/cluster.rs", declared)[0].starts_with("ops/src/cluster.rs:1: "));
        assert_eq!(breaches("ops/src/init/nodes.rs", declared), [""; 0]);
        assert_eq!(breaches("gateway/src/config.rs", declared), [""; 0]);
        let asked = "let request = MeridianAdminRequest { method, body };\n";
        assert_eq!(breaches("ops/src/cluster.rs", asked).len(), 1);
        assert_eq!(breaches("ops/src/client/api.rs", asked), [""; 0]);
        let untyped = "let found: serde_json::Value = serde_json::from_slice(&body)?;\n";
        assert_eq!(breaches("ops/src/cluster.rs", untyped).len(), 1);
        assert_eq!(breaches("ops/src/output.rs", untyped), [""; 0]);
    }

    #[test]
    fn a_state_that_is_compared_as_text_is_reported() {
        let import = "use meridian_admin_api::mirror::Stage;\n";
        for compared in [
            "if mirror.stage.as_str() == \"mirroring\" {\n",
            "let is_it = mirror.stage.to_string() != \"paused\";\n",
            "match mirror.stage.as_str() {\n",
            "matches!(it.stage.as_str(), \"mirroring\" | \"paused\")\n",
            "let is_it = stage == \"mirroring\";\n",
        ] {
            let found = breaches("ops/src/mirror.rs", &format!("{import}{compared}"));
            assert_eq!(found.len(), 1, "{compared}");
            assert!(found[0].starts_with("ops/src/mirror.rs:2: compare states"), "{found:?}");
        }
        assert_eq!(breaches("ops/src/target.rs", "match name.as_str() {\n"), [""; 0]);
        let tested = format!("#[cfg(test)]\nmod tests {{\n{import}    x == \"y\";\n}}\n");
        assert_eq!(breaches("ops/src/mirror.rs", &tested), [""; 0]);
    }
}
