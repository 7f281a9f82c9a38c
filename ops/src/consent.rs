//! What commands that destroy or risk something have in common: `--dry-run`, a prompt that names what is lost,
//! and `--yes`.

use std::io::{self, BufRead, IsTerminal, Write};

use clap::Args;
use serde_json::json;

use crate::failure::Failure;
use crate::output::{self, Format};

/// Whether a command that destroys or risks something is meant.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct Consent {
    /// Only say what would be lost or risked
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do it without asking
    #[arg(long)]
    yes: bool,
}

/// What became of the question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Consented {
    /// It is meant.
    Yes,
    /// Only what would be lost was asked for.
    DryRun,
}

impl Consent {
    /// Whether nothing is to be asked.
    pub(crate) fn is_given(self) -> bool {
        self.yes && !self.dry_run
    }

    /// Asks about `loss`: what is done, and what is lost or risked by it. Without a terminal nobody can be asked,
    /// and without `--yes` nothing is done then.
    pub(crate) fn ask(self, loss: &str) -> Result<Consented, Failure> {
        let is_asked = io::stdin().is_terminal() && io::stderr().is_terminal();
        let mut terminal = is_asked.then(|| (io::stdin().lock(), io::stderr().lock()));
        self.ask_at(loss, terminal.as_mut().map(|(input, output)| (input as _, output as _)))
    }

    fn ask_at(
        self,
        loss: &str,
        terminal: Option<(&mut dyn BufRead, &mut dyn Write)>,
    ) -> Result<Consented, Failure> {
        if self.dry_run {
            return Ok(Consented::DryRun);
        }
        if self.yes {
            return Ok(Consented::Yes);
        }
        let Some((input, output)) = terminal else {
            return Err(Failure::Refused(format!(
                "{loss}; nothing was done. Add --yes to do it, or --dry-run to see what it would do"
            )));
        };
        write!(output, "{loss}.\nGo on? [y/N] ")
            .and_then(|()| output.flush())
            .map_err(Failure::Stdio)?;
        let mut answer = String::new();
        input.read_line(&mut answer).map_err(Failure::Stdio)?;
        match answer.trim().to_ascii_lowercase().as_str() {
            "y" | "yes" => Ok(Consented::Yes),
            _ => Err(Failure::Refused("nothing was done".to_owned())),
        }
    }

    /// Like [`Consent::ask`], for a command that has nothing more to say in a dry run than `loss`; false if that is all.
    pub(crate) fn ask_or_show(self, format: Format, loss: &str) -> Result<bool, Failure> {
        match self.ask(loss)? {
            Consented::Yes => Ok(true),
            Consented::DryRun => {
                let shown = json!({"dry_run": true, "would": loss});
                output::print(format, &shown, |_| format!("would be done: {loss}\n"))?;
                Ok(false)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOSS: &str = "topic t is deleted with 5 records, for ever";

    fn consent(dry_run: bool, yes: bool) -> Consent {
        Consent { dry_run, yes }
    }

    fn answered(text: &str) -> (Result<Consented, String>, String) {
        let (mut input, mut output) = (text.as_bytes(), Vec::new());
        let asked = consent(false, false).ask_at(LOSS, Some((&mut input, &mut output)));
        (asked.map_err(|error| error.to_string()), String::from_utf8(output).unwrap())
    }

    #[test]
    fn a_prompt_names_what_is_lost_and_only_yes_is_consent() {
        let (asked, shown) = answered("y\n");
        assert_eq!(asked, Ok(Consented::Yes));
        assert_eq!(shown, "topic t is deleted with 5 records, for ever.\nGo on? [y/N] ");
        assert_eq!(answered("Yes\n").0, Ok(Consented::Yes));
        for no in ["\n", "", "n\n", "yup\n"] {
            assert_eq!(answered(no).0, Err("nothing was done".to_owned()), "{no:?}");
        }
    }

    #[test]
    fn without_a_terminal_only_yes_does_it() {
        assert_eq!(consent(false, true).ask_at(LOSS, None).unwrap(), Consented::Yes);
        let refused = consent(false, false).ask_at(LOSS, None).unwrap_err();
        assert!(matches!(refused, Failure::Refused(_)), "exit code 3");
        let text = refused.to_string();
        assert!(text.starts_with(LOSS) && text.contains("Add --yes"), "{text}");
        // Who asks what would be done does not mean it.
        assert_eq!(consent(true, true).ask_at(LOSS, None).unwrap(), Consented::DryRun);
    }
}
