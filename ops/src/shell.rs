//! `meridian completions` and `meridian man`: what shells and `man` show of the commands, made from the commands.

use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;

use crate::failure::{Exit, Failure};
use crate::output;

/// Print the completions of a shell
///
/// Example: meridian completions bash > /etc/bash_completion.d/meridian
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

/// Write the manual pages, one for each command
///
/// Example: meridian man --out /usr/local/share/man/man1
#[derive(Debug, Args)]
pub(crate) struct Man {
    /// Folder to write them to; it is made if it is not there
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
}

impl Completions {
    /// Prints the completions of `command`.
    pub(crate) fn run(&self, mut command: Command) -> Result<Exit, Failure> {
        let mut script = Vec::new();
        let name = command.get_name().to_owned();
        clap_complete::generate(self.shell, &mut command, name, &mut script);
        output::text(&String::from_utf8_lossy(&script))?;
        Ok(Exit::Ok)
    }
}

impl Man {
    /// Writes the page of `command` and those of all below it.
    pub(crate) fn run(&self, command: Command) -> Result<Exit, Failure> {
        std::fs::create_dir_all(&self.out).map_err(Failure::file(&self.out))?;
        clap_mangen::generate_to(command, &self.out).map_err(Failure::file(&self.out))?;
        output::text(&format!("the pages are in {}\n", self.out.display()))?;
        Ok(Exit::Ok)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_command_that_is_shown_has_a_page_that_names_it() {
        let folder = std::env::temp_dir().join(format!("meridian-man-{}", std::process::id()));
        Man { out: folder.clone() }.run(crate::Cli::command()).unwrap();
        for (page, says) in [
            ("meridian.1", "meridian \\- A geo\\-replicated log"),
            ("meridian-topic-create.1", "meridian topic create"),
            ("meridian-serve.1", "\\-\\-listen"),
        ] {
            let text = std::fs::read_to_string(folder.join(page)).unwrap();
            assert!(text.contains(says), "{page}: {text}");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn each_shell_has_completions() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut crate::Cli::command(), "meridian", &mut script);
            let script = String::from_utf8(script).unwrap();
            assert!(script.contains("switchover"), "{shell}");
        }
    }
}
