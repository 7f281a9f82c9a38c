//! `meridian alerts` and `meridian dashboards`: rules for Prometheus and boards for Grafana, made from tables of
//! expressions. Tests run each expression against what a node serves.

mod boards;
mod rules;

use std::fs;
use std::path::PathBuf;

use clap::Args;

use crate::failure::{Exit, Failure};
use crate::output;

/// Print alerting rules for Prometheus, as YAML
///
/// Each alert names its section in docs/operating/alerts.md.
///
/// Example: meridian alerts > /etc/prometheus/rules/meridian.yml
#[derive(Debug, Args)]
pub(crate) struct Alerts {
    /// Where the page with a section for each alert is
    #[arg(long, value_name = "URL", default_value = "docs/operating/alerts.md")]
    runbooks: String,
}

/// Write boards for Grafana, as JSON
///
/// Example: meridian dashboards --out /etc/grafana/dashboards
#[derive(Debug, Args)]
pub(crate) struct Dashboards {
    /// The folder for a file of each board; without it, all go to standard output, a line each
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

impl Alerts {
    /// Prints the rules.
    pub(crate) fn run(&self) -> Result<Exit, Failure> {
        output::text(&rules::render(&self.runbooks))?;
        Ok(Exit::Ok)
    }
}

impl Dashboards {
    /// Writes the boards.
    pub(crate) fn run(&self) -> Result<Exit, Failure> {
        let Some(folder) = &self.out else {
            for board in boards::ALL {
                output::text(&format!("{}\n", output::json(&board.render())?))?;
            }
            return Ok(Exit::Ok);
        };
        fs::create_dir_all(folder).map_err(Failure::file(folder))?;
        for board in boards::ALL {
            let path = folder.join(format!("meridian-{}.json", board.name));
            let text = format!("{:#}\n", board.render());
            fs::write(&path, text).map_err(Failure::file(&path))?;
            output::text(&format!("wrote {}\n", path.display()))?;
        }
        Ok(Exit::Ok)
    }
}
