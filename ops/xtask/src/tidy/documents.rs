//! Documents stay as short as they were meant to be.

use std::fs;
use std::path::Path;

/// A document, and the lines that it may have. Of a folder each page may.
const BUDGETS: &[(&str, usize)] = &[
    ("CHANGELOG.md", 60),
    ("README.md", 120),
    ("docs/README.md", 70),
    ("docs/architecture.md", 160),
    ("docs/benchmarks.md", 120),
    ("docs/compatibility.md", 200),
    ("docs/federation.md", 160),
    ("docs/kafka.md", 160),
    ("docs/operating", 150),
    ("docs/planner.md", 100),
    ("docs/protocol.md", 570),
    ("docs/reliability.md", 165),
];

/// Reports documents that are longer than their budget.
pub(super) fn check(root: &Path, breaches: &mut Vec<String>) {
    for (name, line_count_max) in BUDGETS {
        let path = root.join(name);
        if let Ok(pages) = fs::read_dir(&path) {
            for page in pages.flatten() {
                let name = format!("{name}/{}", page.file_name().to_string_lossy());
                check_page(&name, &page.path(), *line_count_max, breaches);
            }
        } else {
            check_page(name, &path, *line_count_max, breaches);
        }
    }
}

fn check_page(name: &str, path: &Path, line_count_max: usize, breaches: &mut Vec<String>) {
    let Ok(text) = fs::read_to_string(path) else {
        return breaches.push(format!("{name}: it has a budget in tidy, and is not there"));
    };
    let line_count = text.lines().count();
    if line_count > line_count_max {
        breaches.push(format!(
            "{name}: {line_count} lines, {line_count_max} are its budget; shorten it, or split it by subject"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_that_is_too_long_or_missing_is_reported() {
        let folder = std::env::temp_dir().join(format!("meridian-tidy-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let page = folder.join("page.md");
        let count = |line_count: usize| {
            fs::write(&page, "line\n".repeat(line_count)).unwrap();
            let mut breaches = Vec::new();
            check_page("page.md", &page, 3, &mut breaches);
            breaches.len()
        };
        assert_eq!((count(3), count(4)), (0, 1));
        fs::remove_dir_all(&folder).unwrap();
        let mut breaches = Vec::new();
        check_page("page.md", &page, 3, &mut breaches);
        assert_eq!(breaches.len(), 1);
    }
}
