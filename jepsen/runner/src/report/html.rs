//! A page that needs nothing else.

use super::plot::{self, escaped};
use super::{by_kind, describe, text};
use crate::run::Outcome;

const STYLE: &str = "\
body{font:15px/1.45 system-ui,sans-serif;max-width:1140px;margin:2em auto;padding:0 1em;color:#1c2430}
h1{font-size:1.4em}h2{font-size:1.1em;margin-top:1.6em}
.valid{color:#0a7d38}.invalid{color:#c0182b}
pre{background:#f4f6f8;padding:.8em;overflow-x:auto;font-size:12.5px}
table{border-collapse:collapse}td,th{padding:.15em .9em .15em 0;text-align:left;vertical-align:top}
svg{width:100%;background:#fcfdfe;border:1px solid #dde3ea}
.t{font-size:11px;fill:#667}.g{stroke:#e3e8ee}
.ok{fill:#2a7de1;stroke:#2a7de1}.fail{fill:#e08a00;stroke:#e08a00}.info{fill:#c0182b;stroke:#c0182b}
.l{fill:none;stroke-width:1.4}";

pub(super) fn page(outcome: &Outcome) -> String {
    let config = &outcome.config;
    let (class, verdict) =
        if outcome.is_valid() { ("valid", "valid") } else { ("invalid", "INVALID") };
    let title = format!("{} under {}, seed {}", config.workload, config.nemesis, config.seed);
    let title = escaped(&title);
    let mut page = format!(
        "<!doctype html>\n<html lang='en'><meta charset='utf-8'><title>{title}: {verdict}</title>\n\
         <style>{STYLE}</style>\n<h1>{title}: <span class='{class}'>{verdict}</span></h1>\n\
         <pre>{}</pre>\n",
        escaped(&text(outcome))
    );
    if !outcome.anomalies.is_empty() {
        page += "<h2>Anomalies</h2>\n<table><tr><th>kind<th>count</tr>\n";
        for (kind, of_kind) in by_kind(&outcome.anomalies) {
            page += &format!("<tr><td>{}<td>{}</tr>\n", escaped(kind), of_kind.len());
        }
        let told = escaped(&describe(&outcome.anomalies, &outcome.history));
        page += &format!("</table>\n<pre>{told}</pre>\n");
    }
    let history = &outcome.history;
    let legend = "<p>Blue succeeded, orange was refused, red is in doubt; faults are shaded.</p>\n";
    for (name, plot) in [
        ("Latency of writes", plot::latency(history, &["send", "txn", "write"])),
        ("Latency of reads", plot::latency(history, &["poll", "read", "committed", "ends"])),
        ("Operations a second", plot::throughput(history)),
    ] {
        page += &format!("<h2>{name}</h2>\n{legend}{plot}\n");
    }
    page += "<h2>Faults</h2>\n<table><tr><th>fault<th>from<th>to<th>hit</tr>\n";
    for window in plot::windows(history) {
        page += &format!(
            "<tr><td>{}<td>{:.1} s<td>{:.1} s<td>{}</tr>\n",
            escaped(&window.name),
            window.begin,
            window.end,
            escaped(&window.detail)
        );
    }
    page + "</table>\n</html>\n"
}
