//! House rules that no other tool knows.

mod answers;
mod documents;
mod layers;
mod rules;

use std::fs;
use std::path::{Path, PathBuf};

/// A file longer than this is split.
const FILE_LINE_COUNT_MAX: usize = 800;
/// A function longer than this is split.
const FUNCTION_LINE_COUNT_MAX: usize = 70;
/// The leaf crate stays small.
const BASE_LINE_COUNT_MAX: usize = 3000;
/// Crates that decide; they may not know the world.
const PURE_CRATES: &[&str] = &[
    "storage/base",
    "storage",
    "consensus",
    "mirror",
    "gateway/protocol",
    "gateway/broker",
    "gateway/access",
    "gateway/admin-api",
];
const WORLDLY_DEPENDENCIES: &[&str] = &["tokio", "quinn", "rustls", "hyper"];
/// Put together here, so that this file does not find itself.
const BANNED_WORDS: &[(&str, &str)] = &[
    (concat!("TO", "DO"), "open an issue and do it, or leave it out"),
    (concat!("FIX", "ME"), "fix it"),
    (concat!("#[igno", "re"), "a test that does not run tests nothing"),
    (concat!("/// The ", "same"), "say what it is: a reader may see this comment alone"),
    (concat!("//! The ", "same"), "say what it is: a reader may see this comment alone"),
];
/// What has a better one of the project's own: what, in which folder, and the file that may use it.
const WRAPPED: &[(&str, &str, &str, &str)] = &[(
    concat!("time::", "interval("),
    "gateway/",
    "gateway/runtime/src/background.rs",
    "use background::ticks: missed ticks must not come all at once",
)];
const TOP_LEVEL: &[&str] = &[
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "README.md",
    "consensus",
    "docs",
    "gateway",
    "jepsen",
    "mirror",
    "ops",
    "storage",
    "target",
];

/// Checks every rule; reports all breaches at once.
pub(crate) fn run(root: &Path) -> Result<(), String> {
    let mut breaches = Vec::new();
    check_top_level(root, &mut breaches);
    for folder in PURE_CRATES {
        check_manifest(root, folder, &mut breaches);
    }
    let mut files = Vec::new();
    for folder in ["storage", "consensus", "mirror", "gateway", "ops", "jepsen"] {
        collect_sources(&root.join(folder), &mut files);
    }
    files.sort();
    let known_rules = rules::known(root);
    documents::check(root, &mut breaches);
    let mut base_line_count = 0;
    for file in &files {
        let Ok(text) = fs::read_to_string(file) else { continue };
        let name = file.strip_prefix(root).unwrap_or(file).display().to_string();
        if name.starts_with("storage/base/src") {
            base_line_count += text.lines().count();
        }
        check_source(&name, &text, &mut breaches);
        layers::check(&name, &text, &mut breaches);
        answers::check(&name, &text, &mut breaches);
        rules::check(&name, &text, &known_rules, &mut breaches);
    }
    if base_line_count > BASE_LINE_COUNT_MAX {
        breaches.push(format!("storage/base: {base_line_count} lines; a leaf stays small"));
    }
    breaches.extend(crate::docs::check(root).err());
    println!("tidy: {} files, {} breaches", files.len(), breaches.len());
    if breaches.is_empty() { Ok(()) } else { Err(breaches.join("\n")) }
}

fn check_top_level(root: &Path, breaches: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(root) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_data = name == "data" || name == "dev-data";
        if !name.starts_with('.') && !is_data && !TOP_LEVEL.contains(&name.as_str()) {
            breaches.push(format!("{name}: the top level is fixed; put it into a folder there is"));
        }
    }
}

fn check_manifest(root: &Path, folder: &str, breaches: &mut Vec<String>) {
    let Ok(text) = fs::read_to_string(root.join(folder).join("Cargo.toml")) else { return };
    let dependencies = text.split("[dependencies]").nth(1).unwrap_or_default();
    let dependencies = dependencies.split("\n[").next().unwrap_or_default();
    for line in dependencies.lines() {
        let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
        if WORLDLY_DEPENDENCIES.contains(&name) {
            breaches.push(format!("{folder}: a crate that decides may not depend on {name}"));
        }
    }
}

fn collect_sources(folder: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() && !path.ends_with("target") {
            collect_sources(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

fn check_source(name: &str, text: &str, breaches: &mut Vec<String>) {
    let line_count = text.lines().count();
    if line_count > FILE_LINE_COUNT_MAX {
        breaches.push(format!("{name}: {line_count} lines; split it"));
    }
    for (word, advice) in BANNED_WORDS {
        if let Some(index) = text.lines().position(|line| line.contains(word)) {
            breaches.push(format!("{name}:{}: {word}: {advice}", index + 1));
        }
    }
    for (what, folder, wrapper, advice) in WRAPPED {
        if name.starts_with(folder)
            && name != *wrapper
            && let Some(index) = text.lines().position(|line| line.contains(what))
        {
            breaches.push(format!("{name}:{}: {what}: {advice}", index + 1));
        }
    }
    for (line, length) in long_functions(text) {
        breaches.push(format!("{name}:{line}: a function of {length} lines; split it"));
    }
}

/// First line and length of each function that is too long. Relies on the formatter: a function
/// ends at the first closing brace at its own indentation.
fn long_functions(text: &str) -> Vec<(usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut long = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let indentation = line.len() - code.len();
        let words: Vec<&str> = code.split_whitespace().take(5).collect();
        let is_function =
            words.contains(&"fn") && !code.starts_with("//") && !code.starts_with('"');
        if !is_function {
            continue;
        }
        let end = lines[index..].iter().position(|line| {
            line.starts_with('}') && indentation == 0
                || line.len() > indentation
                    && line.starts_with(&" ".repeat(indentation))
                    && line[indentation..].starts_with('}')
        });
        let ends_at_once = code.ends_with(';') || code.ends_with('}');
        if let (Some(length), false) = (end, ends_at_once)
            && length + 1 > FUNCTION_LINE_COUNT_MAX
        {
            long.push((index + 1, length + 1));
        }
    }
    long
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_functions_are_found() {
        let body = "    let x = 1;\n".repeat(FUNCTION_LINE_COUNT_MAX);
        let text = format!("fn short() {{\n}}\nfn long() {{\n{body}}}\n");
        assert_eq!(long_functions(&text), [(3, FUNCTION_LINE_COUNT_MAX + 2)]);
    }

    #[test]
    fn what_is_wrapped_is_used_by_its_wrapper_only() {
        let text = format!("let it = tokio::{}EVERY);\n", concat!("time::", "interval("));
        let count = |name: &str| {
            let mut breaches = Vec::new();
            check_source(name, &text, &mut breaches);
            breaches.len()
        };
        assert_eq!(count("gateway/src/node.rs"), 1);
        assert_eq!(count("gateway/runtime/src/background.rs"), 0);
        assert_eq!(count("ops/src/bench.rs"), 0);
    }

    #[test]
    fn banned_words_are_found() {
        let mut breaches = Vec::new();
        check_source("x.rs", &format!("// {}: later\n", concat!("TO", "DO")), &mut breaches);
        assert_eq!(breaches.len(), 1);
    }
}
