//! The parts of documents that are made from the code: `cargo xtask docs` writes them, `cargo xtask
//! tidy` compares them.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::bench::{ROWS, rows};

/// The page with the reference of configuration keys.
pub(crate) const PAGE: &str = "docs/operating/configuration.md";
/// The page with the figures, of which this part is made of rows.
const BENCHMARKS: &str = "docs/benchmarks.md";
/// The tables of the configuration file, `File` first.
const TABLES: &[&str] = &[
    "gateway/src/config/file.rs",
    "gateway/src/config/listeners.rs",
    "gateway/src/config/tiers.rs",
    "gateway/src/config/object_store.rs",
];
/// The settings under Kafka's names.
const SETTINGS: &str = "gateway/src/config/settings.rs";

/// Writes the pages anew.
pub(crate) fn run(root: &Path) -> Result<(), String> {
    for Made { page, is, made } in pages(root)? {
        if is == made {
            println!("docs: {page} is as it should be");
        } else {
            println!("docs: {page} is written anew");
            fs::write(root.join(page), made).map_err(|error| format!("{page}: {error}"))?;
        }
    }
    Ok(())
}

/// An error if a page differs from what it is made of.
pub(crate) fn check(root: &Path) -> Result<(), String> {
    match pages(root)?.into_iter().find(|it| it.is != it.made) {
        None => Ok(()),
        Some(Made { page, .. }) => {
            Err(format!("{page}: differs from what it is made of; run cargo xtask docs"))
        }
    }
}

/// A page as it is, and as it should be.
struct Made {
    page: &'static str,
    is: String,
    made: String,
}

fn pages(root: &Path) -> Result<[Made; 2], String> {
    let read = |name: &str| {
        fs::read_to_string(root.join(name)).map_err(|error| format!("{name}: {error}"))
    };
    let page = read(PAGE)?;
    let tables = TABLES.iter().map(|name| read(name)).collect::<Result<String, String>>()?;
    let keys = keys_table(&tables)?;
    let made = replace(&page, PAGE, "keys", &keys)?;
    let made = replace(&made, PAGE, "kafka names", &names_table(&read(SETTINGS)?))?;
    let benchmarks = read(BENCHMARKS)?;
    let rows = rows::read(&root.join(ROWS))?;
    let table = replace(&benchmarks, BENCHMARKS, "beside kafka", &rows::table(&rows))?;
    Ok([
        Made { page: PAGE, is: page, made },
        Made { page: BENCHMARKS, is: benchmarks, made: table },
    ])
}

/// The page with another text between the two marks of a part.
fn replace(text: &str, page: &str, part: &str, with: &str) -> Result<String, String> {
    let (begin, end) =
        (format!("<!-- begin {part}: cargo xtask docs -->\n"), format!("<!-- end {part} -->"));
    let missing = || format!("{page}: the marks of its part \"{part}\" are missing");
    let (before, rest) = text.split_once(&begin).ok_or_else(missing)?;
    let (_, after) = rest.split_once(&end).ok_or_else(missing)?;
    Ok(format!("{before}{begin}\n{with}\n{end}{after}"))
}

/// A key of the file.
struct Key<'a> {
    name: &'a str,
    kind: &'a str,
    doc: String,
}

fn keys_table(source: &str) -> Result<String, String> {
    let mut out = "| key | default | meaning |\n| --- | --- | --- |\n".to_owned();
    for section in keys(source, "File")? {
        let path = match section.kind.starts_with("BTreeMap<") {
            true => format!("{}.NAME", section.name),
            false => section.name.to_owned(),
        };
        section_rows(source, &path, &section_struct(section.name), &mut out)?;
    }
    Ok(out)
}

fn section_rows(source: &str, path: &str, name: &str, out: &mut String) -> Result<(), String> {
    for key in keys(source, name)? {
        let path = format!("{path}.{}", key.name);
        if key.doc.is_empty() {
            section_rows(source, &path, &section_struct(key.name), out)?;
            continue;
        }
        let (meaning, default) = match key.doc.rsplit_once(" Default: ") {
            Some((meaning, default)) => (meaning, default.trim_end_matches('.')),
            None if key.kind.starts_with("Option<") => {
                return Err(format!("{path}: its comment lacks a last sentence \"Default: ...\""));
            }
            None => (&*key.doc, "required"),
        };
        _ = writeln!(out, "| `{path}` | {default} | {meaning} |");
    }
    Ok(())
}

/// The struct of a table: `object_store` is `ObjectStoreTable`.
fn section_struct(key: &str) -> String {
    let word = |word: &str| word[..1].to_uppercase() + &word[1..];
    key.split('_').map(word).collect::<String>() + "Table"
}

/// The fields of a struct, as the formatter lays them out.
fn keys<'a>(source: &'a str, name: &str) -> Result<Vec<Key<'a>>, String> {
    let start = format!("struct {name} {{\n");
    let (_, body) = source
        .split_once(&start)
        .ok_or_else(|| format!("{name}: no such struct in {}", TABLES.join(", ")))?;
    let (mut keys, mut doc) = (Vec::new(), Vec::new());
    for line in body.lines().map(str::trim).take_while(|line| *line != "}") {
        if let Some(text) = line.strip_prefix("///") {
            doc.push(text.trim());
        } else if let Some((field, kind)) = line.split_once(": ").filter(|_| !line.starts_with('#'))
        {
            let name = field.rsplit(' ').next().unwrap_or(field);
            keys.push(Key { name, kind, doc: doc.join(" ") });
            doc.clear();
        }
    }
    Ok(keys)
}

/// A row for each `setting(name, kind, access, doc)`.
fn names_table(source: &str) -> String {
    let mut out = "| name | meaning |\n| --- | --- |\n".to_owned();
    let all = source.split("ALL: &[Setting] = &[").nth(1).unwrap_or_default();
    let all = all.split("\n];").next().unwrap_or_default();
    for setting in all.split("setting(").skip(1) {
        let mut texts = setting.split('"').skip(1).step_by(2);
        let name = texts.next().unwrap_or_default();
        _ = writeln!(out, "| `{name}` | {} |", texts.last().unwrap_or_default());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "struct File {\n    pub(super) node: NodeTable,\n}\n\
        struct NodeTable {\n    /// Its number,\n    /// from 1.\n    pub(super) id: u32,\n\
        \x20   /// How fast.\n    /// Default: 5 MiB.\n    #[serde(default = \"x: y\")]\n\
        \x20   rate: Option<u64>,\n    tiers: Option<TiersTable>,\n}\n\
        struct TiersTable {\n    /// Where. Default: none.\n    folder: Option<PathBuf>,\n}\n";

    #[test]
    fn each_key_has_its_path_default_and_meaning() {
        let table = keys_table(SOURCE).unwrap();
        let rows: Vec<&str> = table.lines().skip(2).collect();
        assert_eq!(
            rows,
            [
                "| `node.id` | required | Its number, from 1. |",
                "| `node.rate` | 5 MiB | How fast. |",
                "| `node.tiers.folder` | none | Where. |",
            ]
        );
    }

    #[test]
    fn an_optional_key_without_its_default_is_an_error() {
        let source = SOURCE.replace("    /// Default: 5 MiB.\n", "");
        assert!(keys_table(&source).unwrap_err().contains("node.rate"));
    }

    #[test]
    fn settings_have_their_name_and_doc() {
        let source = "ALL: &[Setting] = &[\n    setting(\"a.b\", INT, count!(a), \"One.\"),\n    \
                      setting(\n        \"c\",\n        \"Two.\",\n    ),\n];\n\"not this\"";
        let table = names_table(source);
        assert_eq!(
            table.lines().skip(2).collect::<Vec<_>>(),
            ["| `a.b` | One. |", "| `c` | Two. |"]
        );
    }

    #[test]
    fn only_what_is_between_the_marks_is_written() {
        let page = "a\n<!-- begin keys: cargo xtask docs -->\nold\n<!-- end keys -->\nb\n";
        let made = replace(page, "p", "keys", "new\n").unwrap();
        assert_eq!(made, page.replace("old", "\nnew\n"));
        assert_eq!(replace(&made, "p", "keys", "new\n").unwrap(), made);
        assert!(replace(page, "p", "names", "").is_err());
    }
}
