//! `weir token`: makes a token of the admin API, and the lines of the configuration for it.

use std::io::{self, IsTerminal as _, Read as _};

use anyhow::{Context, Result, ensure};
use weir::{AdminScope, Config, new_admin_token, token_hash};

use crate::cli::TokenArgs;
use crate::output::{complain, say};

pub(crate) fn run(args: &TokenArgs) -> Result<()> {
    let is_new = args.token.is_none();
    let token = match is_new {
        true => new_admin_token().context("the system has no random bytes")?,
        false => from_input()?,
    };
    let lines = lines(&args.name, &token, &args.may)?;
    if is_new {
        complain(format_args!("the token, which is not shown again: {token}"));
    }
    say(lines)
}

/// The token on standard input, without the end of its line.
fn from_input() -> Result<String> {
    if io::stdin().is_terminal() {
        complain("enter the token, then Ctrl-D on a line of its own:");
    }
    let mut token = String::new();
    let input = io::stdin().take(TOKEN_BYTES_MAX + 2).read_to_string(&mut token);
    input.context("cannot read standard input as text")?;
    let token = token.strip_suffix('\n').unwrap_or(&token);
    let token = token.strip_suffix('\r').unwrap_or(token);
    let bytes = token.len();
    ensure!(
        (1..=TOKEN_BYTES_MAX).contains(&(bytes as u64)),
        "the token has {bytes} bytes: allowed is 1 to {TOKEN_BYTES_MAX}"
    );
    ensure!(
        token.bytes().all(|byte| byte.is_ascii_graphic()),
        "the token holds something else than printable ASCII without spaces, and it is sent in a header"
    );
    Ok(token.to_owned())
}

/// The table of the configuration.
///
/// Errors: a name or scopes that the configuration would refuse.
fn lines(name: &str, token: &str, may: &[AdminScope]) -> Result<String> {
    let hash = token_hash(token);
    let scopes: Vec<String> = may.iter().map(|scope| format!("{:?}", scope.name())).collect();
    let scopes = scopes.join(", ");
    let lines = format!("[[admin.tokens]]\nname = {name:?}\nhash = {hash:?}\nmay = [{scopes}]");
    let mut config = Config::default();
    let may = may.to_vec();
    config.admin.tokens.push(weir::AdminTokenConfig { name: name.to_owned(), hash, may });
    match config.validate() {
        // Nothing else is set; but this machine may be too small for a gateway.
        Err(error) if error.key.starts_with("admin.tokens") => Err(error.into()),
        Err(_) | Ok(()) => Ok(lines),
    }
}

/// As in the configuration.
const TOKEN_BYTES_MAX: u64 = 4_096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_are_those_of_a_valid_configuration() {
        let lines = lines("ci", "abc", &[AdminScope::Read, AdminScope::Publish]).unwrap();
        assert_eq!(
            lines,
            "[[admin.tokens]]\nname = \"ci\"\n\
             hash = \"sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\"\n\
             may = [\"read\", \"publish\"]"
        );
    }

    #[test]
    fn what_a_configuration_refuses_is_refused_here() {
        let twice = [AdminScope::Read, AdminScope::Read];
        for (name, may, says) in [
            ("two words", &[AdminScope::Read][..], "admin.tokens[0].name = \"two words\""),
            ("nobody", &[AdminScope::Read], "admin.tokens[0].name = \"nobody\""),
            ("ci", &twice, "admin.tokens[0].may[1] = \"read\": allowed is each word once"),
        ] {
            let error = lines(name, "abc", may).unwrap_err().to_string();
            assert!(error.starts_with(says), "{error}");
        }
    }
}
