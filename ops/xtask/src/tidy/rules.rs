//! Every rule that a comment names is in `docs/protocol.md`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const DOCUMENT: &str = "docs/protocol.md";

/// The ids of all rules: `**S1** ...` in the text, `| F1 | ...` in a table.
pub(super) fn known(root: &Path) -> BTreeSet<String> {
    fs::read_to_string(root.join(DOCUMENT)).map(|text| ids(&text)).unwrap_or_default()
}

fn ids(text: &str) -> BTreeSet<String> {
    let id = |line: &str| {
        let rest = line.strip_prefix("**").or_else(|| line.strip_prefix("| "))?;
        let word = rest.split(['*', ' ']).next()?;
        is_id(word).then(|| word.to_owned())
    };
    text.lines().filter_map(id).collect()
}

/// A letter or none, and a number: `S1`, `12`.
fn is_id(word: &str) -> bool {
    let number = word.strip_prefix(|letter: char| letter.is_ascii_uppercase()).unwrap_or(word);
    (1..=2).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit())
}

/// Reports rules that comments name and that the document lacks.
pub(super) fn check(file: &str, text: &str, known: &BTreeSet<String>, breaches: &mut Vec<String>) {
    for (index, line) in text.lines().enumerate() {
        let Some((_, comment)) = line.split_once("//") else { continue };
        for id in named(comment).filter(|id| !known.contains(*id)) {
            breaches.push(format!("{file}:{}: rule {id} is not in {DOCUMENT}", index + 1));
        }
    }
}

/// The ids after `rule` or `rules`: one, or several with commas, `and` and `to` between them.
fn named(comment: &str) -> impl Iterator<Item = &str> {
    let mut is_list = false;
    comment.split_whitespace().filter_map(move |word| {
        let bare = word.trim_matches(|letter: char| !letter.is_ascii_alphanumeric());
        if bare == "rule" || bare == "rules" {
            is_list = true;
            return None;
        }
        let is_found = is_list && is_id(bare);
        is_list &= is_found || matches!(bare, "and" | "to");
        is_found.then_some(bare)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_that_the_document_lacks_is_reported_with_its_place() {
        let known = ids("**S1** Refuse.\n| F1 | The leader pulls. |\n| 12 | Older copies. |\nS9\n");
        let of = |line: &str| {
            let mut breaches = Vec::new();
            check("x.rs", &format!("\n{line}\n"), &known, &mut breaches);
            breaches
        };
        for good in
            ["// (rule S1)", "/// rules S1, F1 and 12.", "// ground rules", "let rule = S9;"]
        {
            assert_eq!(of(good), [""; 0], "{good}");
        }
        let missing = format!("// ({} S9)", "rule");
        assert_eq!(of(&missing), ["x.rs:2: rule S9 is not in docs/protocol.md"]);
        assert_eq!(of("// rules S1 to 13: why").len(), 1);
        assert_eq!(of("// rule S1. In 99 of 100").len(), 0);
    }
}
