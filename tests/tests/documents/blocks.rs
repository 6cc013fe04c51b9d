//! The blocks of commands of a document, and what is known of each.

use anyhow::{Context, Result, bail, ensure};

/// A block of commands, and what is known of it.
#[derive(Debug, Default)]
pub(crate) struct Block {
    /// The document, and the line in it.
    pub(crate) place: String,
    pub(crate) text: String,
    pub(crate) stays_until: Option<String>,
    pub(crate) prints: Vec<String>,
    /// Whether a block that goes on may end by itself.
    pub(crate) may_end: bool,
    pub(crate) is_alone: bool,
    /// The gateway to start first: a file, or the empty text for the defaults.
    pub(crate) gateway: Option<String>,
    pub(crate) may_fail: Vec<String>,
    /// Commands that come before.
    pub(crate) before: Option<String>,
    /// A command that succeeds when the block has done what the next one needs.
    pub(crate) until: Option<String>,
    /// Why it is not run.
    pub(crate) reason: Option<String>,
}

/// Reads the blocks of a document, with their comments.
pub(crate) fn blocks(path: &str, document: &str) -> Result<Vec<Block>> {
    let mut blocks = Vec::new();
    let mut notes: Vec<&str> = Vec::new();
    let mut lines = document.lines().zip(1..);
    while let Some((line, number)) = lines.next() {
        let place = format!("{path}:{number}");
        if let Some(begun) = line.strip_prefix("<!-- test:") {
            let note = begun.strip_suffix("-->").with_context(|| format!("{place}: one line"))?;
            notes.push(note.trim());
        } else if line.starts_with("```") {
            let text: Vec<&str> =
                lines.by_ref().map(|(line, _)| line).take_while(|line| *line != "```").collect();
            let text = match line {
                "```sh" => text.join("\n"),
                "```console" => typed(&text).with_context(|| place.clone())?,
                _ => {
                    ensure!(notes.is_empty(), "{place}: no block of commands follows the comment");
                    continue;
                }
            };
            let mut block = Block { place, text, ..Block::default() };
            for note in notes.drain(..) {
                block.take_note(note).with_context(|| format!("{}: {note}", block.place))?;
            }
            blocks.push(block);
        } else if !line.is_empty() {
            ensure!(notes.is_empty(), "{place}: no block follows the comment");
        }
    }
    Ok(blocks)
}

/// What a person types of a block that shows a terminal: the lines behind `$ `, and those that a
/// backslash continues.
fn typed(lines: &[&str]) -> Result<String> {
    let mut typed = Vec::new();
    let mut continues = false;
    for line in lines {
        if continues {
            typed.push(*line);
        } else if let Some(command) = line.strip_prefix("$ ") {
            typed.push(command);
        } else {
            continue;
        }
        continues = line.ends_with('\\');
    }
    ensure!(!typed.is_empty(), "no line begins with $");
    Ok(typed.join("\n"))
}

impl Block {
    /// Takes in a comment.
    fn take_note(&mut self, note: &str) -> Result<()> {
        if let Some(reason) = note.strip_prefix("not run:") {
            ensure!(!reason.trim().is_empty(), "say why");
            self.reason = Some(reason.trim().to_owned());
            return Ok(());
        }
        note.split("; ").try_for_each(|part| self.take_part(part))
    }

    fn take_part(&mut self, part: &str) -> Result<()> {
        let (word, rest) = part.split_once(' ').unwrap_or((part, ""));
        match word {
            "stays" => self.stays_until = Some(quoted(rest)?),
            "prints" => self.prints.push(quoted(rest)?),
            "ends" => self.may_end = true,
            "alone" => self.is_alone = true,
            "gateway" => self.gateway = Some(rest.to_owned()),
            "fails" => self.may_fail.push(quoted(rest)?),
            "before" => self.before = Some(quoted(rest)?),
            "until" => self.until = Some(quoted(rest)?),
            "with" => {
                let (from, to) = rest.split_once(" as ").context("with \"A\" as \"B\"")?;
                let (from, to) = (quoted(from)?, quoted(to)?);
                ensure!(self.text.contains(&from), "it does not contain {from}");
                self.text = self.text.replace(&from, &to);
            }
            _ => bail!("unknown"),
        }
        Ok(())
    }
}

/// The text between the first and the last quotation mark. Inside, `\"` stands for one.
fn quoted(text: &str) -> Result<String> {
    let (_, rest) = text.split_once('"').context("a text in quotation marks")?;
    let (text, _) = rest.rsplit_once('"').context("a text in quotation marks")?;
    Ok(text.replace("\\\"", "\""))
}
