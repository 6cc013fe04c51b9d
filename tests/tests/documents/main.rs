//! Every command of README.md and of docs/, as it stands there, in a network of its own.
//!
//! The commands name the default ports. So they run in a network namespace with only a loopback
//! device, where these ports are free. Where the kernel permits no namespace, the test says so and
//! ends.
//!
//! All blocks of `sh` and `console` of a document run in their order, each in a shell of its own. Of
//! a block of `console`, the lines behind `$ ` are commands. A block that fails fails the test.
//! Comments above a block, which readers do not see, tell what else is to be known of it:
//!
//! | `<!-- test: … -->` | |
//! |---|---|
//! | `not run: REASON` | it is not run |
//! | `stays until "TEXT"` | it goes on; the next block begins when it has printed the text |
//! | `ends` | it goes on, and ends by itself; with `gateway`, that does |
//! | `until "COMMAND"` | the next block begins when this command succeeds |
//! | `prints "TEXT"` | it prints the text, at the latest when all blocks have run |
//! | `alone` | the blocks that go on are ended first |
//! | `gateway` | the same, and a gateway with the defaults is started |
//! | `gateway FILE` | the same, with this configuration from `tests/clients/documents` |
//! | `before "COMMANDS"` | these run before it, in the same shell |
//! | `fails "TEXT"` | a command that begins so may fail |
//! | `with "A" as "B"` | A is replaced by B: for sizes that would take too long |

mod blocks;
mod stage;

use std::fs;

use anyhow::{Context, Result, ensure};
use weir_wire::CloseReason;

use crate::blocks::{Block, blocks};
use crate::stage::{Stage, repository};

/// Runs the blocks of some documents. Each document has a stage of its own.
fn run(paths: &[String]) -> Result<()> {
    for path in paths {
        let document = fs::read_to_string(repository().join(path))?;
        let blocks = blocks(path, &document)?;
        if blocks.iter().all(|block| block.reason.is_some()) {
            continue;
        }
        let Some(mut stage) = Stage::new()? else { return Ok(()) };
        for block in &blocks {
            stage.run(block)?;
        }
        stage.end_all()?;
    }
    Ok(())
}

/// The documents of a folder, without those of its folders.
fn documents(folder: &str) -> Result<Vec<String>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(repository().join(folder)).with_context(|| folder.to_owned())? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".md") {
            paths.push(format!("{folder}/{name}"));
        }
    }
    paths.sort();
    ensure!(!paths.is_empty(), "{folder} has no documents");
    Ok(paths)
}

#[test]
fn every_command_of_the_readme_works_as_it_stands() -> Result<()> {
    let readme = fs::read_to_string(repository().join("README.md"))?;
    let count = blocks("README.md", &readme)?.len();
    ensure!(count >= 15, "{count} blocks: where are the others?");
    if Stage::new()?.is_none() {
        println!("skipped: unshare may not make a network namespace here");
    }
    run(&["README.md".to_owned()])
}

#[test]
fn every_command_of_the_tutorials_works_as_it_stands() -> Result<()> {
    run(&documents("docs/tutorials")?)
}

#[test]
fn every_command_of_the_other_documents_works_as_it_stands() -> Result<()> {
    let mut paths = documents("docs")?;
    paths.extend(documents("docs/operating")?);
    paths.extend(documents("docs/decisions")?);
    paths.extend(documents("docs/benchmarks")?);
    paths.extend(documents("examples")?);
    for example in fs::read_dir(repository().join("examples"))? {
        let example = example?;
        if example.file_type()?.is_dir() {
            paths
                .extend(documents(&format!("examples/{}", example.file_name().to_string_lossy()))?);
        }
    }
    run(&paths)
}

#[test]
fn the_guide_for_the_night_has_every_close_reason() -> Result<()> {
    let guide = fs::read_to_string(repository().join("docs/operating/night.md"))?;
    let (_, table) = guide.split_once("## By close reason").context("a table of reasons")?;
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let mut reasons = CloseReason::ALL;
    reasons.sort_by_key(|reason| reason.code());
    let expected = reasons.map(|reason| reason.to_string());
    ensure!(
        rows.eq(expected.iter().map(String::as_str)),
        "not these, in their order: {expected:?}"
    );
    Ok(())
}

/// The commands in tables: they prove the figures beside them, on a machine of their own.
fn commands_in_tables(readme: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    for (row, line) in readme.lines().zip(1..).filter(|(row, _)| row.starts_with('|')) {
        let code = row.split('`').skip(1).step_by(2);
        for command in code.filter(|code| code.starts_with("target/release/")) {
            let mut text = command.to_owned();
            for (from, to) in SIZES {
                text = text.replace(from, to);
            }
            let place = format!("README.md:{line}");
            blocks.push(Block { place, text, ..Block::default() });
        }
    }
    blocks
}

#[test]
fn the_commands_behind_the_figures_run_with_small_sizes() -> Result<()> {
    let readme = fs::read_to_string(repository().join("README.md"))?;
    let blocks = commands_in_tables(&readme);
    ensure!(blocks.len() >= 4, "{} commands: where are the others?", blocks.len());
    let Some(mut stage) = Stage::new()? else { return Ok(()) };
    blocks.iter().try_for_each(|block| stage.run(block))
}

#[test]
fn a_block_that_fails_is_found() -> Result<()> {
    let Some(mut stage) = Stage::new()? else { return Ok(()) };
    let block = |text: &str| Block { text: text.to_owned(), ..Block::default() };
    stage.run(&block("true\n[ -e weir.toml ] && echo there"))?;
    for text in ["false; true", "true\ncargo build --quickly", "target/release/weir nonsense"] {
        ensure!(stage.run(&block(text)).is_err(), "{text} passes");
    }
    let told = "<!-- test: stays until \"a\"; with \"x\" as \"y\" -->\n```sh\nx\n```\n";
    let read = blocks("a.md", told)?;
    ensure!(read.len() == 1 && read[0].text == "y", "{read:?}");
    let shown = blocks("a.md", "```console\n$ a \\\n  b\nsaid\n$ c\n```\n")?;
    ensure!(shown[0].text == "a \\\n  b\nc", "{shown:?}");
    for wrong in [
        "<!-- test: nonsense -->\n```sh\n```\n",
        "<!-- test: alone -->\ntext\n",
        "<!-- test: not run: -->\n```sh\n```\n",
    ] {
        ensure!(blocks("a.md", wrong).is_err(), "{wrong} passes");
    }
    Ok(())
}

/// Sizes for a test: the figures need thousands of connections, and the test only the command.
const SIZES: [(&str, &str); 5] = [
    ("--connections 15000", "--connections 200"),
    ("--connections 10000", "--connections 200"),
    ("--seconds 10", "--seconds 2"),
    ("--settle 25s", "--settle 1s"),
    (
        "weir-bench siege",
        "weir-bench siege --only hello --connections 50 --quiet-seconds 2 --baseline-seconds 2 --seconds 2",
    ),
];
