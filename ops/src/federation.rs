//! `meridian apply|diff|export`: links, mirrors, rules and topics as a file.
//!
//! ```text
//! file.yaml -> File (every value with its place) --+
//!                                                 +-> Plan: changes, or errors with line and column
//! cluster   -> State (as the admin methods say) --+
//! ```
//!
//! What a file does not name is left alone, down to each option of a link and each config of a topic: nothing is ever
//! deleted, and an option goes only if the file gives it an empty value.

mod file;
mod plan;
mod state;

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use self::file::File;
use self::plan::{Plan, carry_out};
use self::state::State;
use crate::failure::{Exit, Failure};
use crate::output::{self, Format, Table};
use crate::target::Target;

/// Make a cluster what a file says: links, topics, mirrors, rules
///
/// Changes what differs and leaves alone what the file does not name; an empty value takes an option or a config
/// away. ${NAME} in a value is taken from the environment, so that passwords need not be in the file. Errors have line and column. Nothing is
/// changed if the file has one; what only the cluster can tell ends it at the change in question.
///
/// Example: meridian apply -f federation.yaml
#[derive(Debug, Args)]
pub(crate) struct Apply {
    #[command(flatten)]
    target: Target,
    /// The file
    #[arg(long, short)]
    file: PathBuf,
    /// Only show what would change
    #[arg(long)]
    dry_run: bool,
    /// Set secrets and certificates of existing links again: they cannot be compared
    #[arg(long)]
    secrets: bool,
}

/// Show what `meridian apply` would change; exit code 2 if that is anything
///
/// Secrets of links cannot be compared.
///
/// Example: meridian diff -f federation.yaml
#[derive(Debug, Args)]
pub(crate) struct Diff {
    #[command(flatten)]
    target: Target,
    /// The file
    #[arg(long, short)]
    file: PathBuf,
}

/// Print links, topics, mirrors and rules as a file for `meridian apply`
///
/// Secrets become ${NAMES} of the environment.
///
/// Example: meridian export > federation.yaml
#[derive(Debug, Args)]
pub(crate) struct Export {
    #[command(flatten)]
    target: Target,
}

impl Apply {
    pub(crate) async fn run(self) -> Result<Exit, Failure> {
        let file = File::read(&self.file)?;
        let client = self.target.connect().await?;
        let plan = Plan::new(&file, &State::read(&client).await?, self.secrets)?;
        if !self.dry_run {
            carry_out(&client, &file, &plan).await?;
        }
        show(&plan, self.target.output)?;
        Ok(Exit::Ok)
    }
}

impl Diff {
    pub(crate) async fn run(self) -> Result<Exit, Failure> {
        let file = File::read(&self.file)?;
        let client = self.target.connect().await?;
        let plan = Plan::new(&file, &State::read(&client).await?, false)?;
        show(&plan, self.target.output)?;
        Ok(if plan.changes.is_empty() { Exit::Ok } else { Exit::Degraded })
    }
}

impl Export {
    pub(crate) async fn run(self) -> Result<Exit, Failure> {
        let client = self.target.connect().await?;
        let file = State::read(&client).await?.exported();
        let text = serde_saphyr::to_string(&file)
            .map_err(|error| Failure::Invalid(format!("what is there cannot be YAML: {error}")))?;
        output::text(&text)?;
        Ok(Exit::Ok)
    }
}

fn show(plan: &Plan, format: Format) -> Result<(), Failure> {
    let changes: Vec<_> = plan
        .changes
        .iter()
        .map(|it| json!({"kind": it.kind, "name": it.name, "action": it.action(), "what": it.what}))
        .collect();
    output::print(format, &changes, |_| {
        if plan.changes.is_empty() {
            return "nothing to change\n".to_owned();
        }
        let mut table = Table::new(&["ACTION", "KIND", "NAME", "WHAT"]);
        for it in &plan.changes {
            let action = it.action().to_owned();
            table.row([action, it.kind.to_owned(), it.name.clone(), it.what.join(", ")]);
        }
        table.render()
    })
}
