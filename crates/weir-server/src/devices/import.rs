//! `weir devices import`: imports the rows of a file in batches.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, bail};
use weir::{BadRow, Row, RowFormat, Rows};

use super::access::{Access, Counts};
use super::progress::Progress;
use crate::cli::{ImportArgs, StoreArgs};
use crate::output::{complain, say};
use crate::store::Begin;

/// Counts the bytes that are read from a file.
struct Counted<R> {
    input: R,
    bytes: Arc<AtomicU64>,
}

/// The results for the rows so far.
#[derive(Default)]
struct Tally {
    counts: Counts,
    rows: u64,
    bad: u64,
    short_keys: u64,
}

pub(super) async fn run(
    store: &StoreArgs,
    config: Option<PathBuf>,
    args: ImportArgs,
) -> Result<()> {
    let format = format_of(&args)?;
    let (input, size): (Box<dyn Read>, u64) = if args.file == Path::new("-") {
        (Box::new(io::stdin()), 0)
    } else {
        let what = || format!("cannot read {}", args.file.display());
        let file = File::open(&args.file).with_context(what)?;
        let size = file.metadata().with_context(what)?.len();
        (Box::new(file), size)
    };
    let bytes = Arc::<AtomicU64>::default();
    let rows = Rows::new(Counted { input, bytes: Arc::clone(&bytes) }, format)?;
    let access = Access::open(store, config, Begin::of(args.new_store)).await?;
    let mut progress = Progress::start(size, bytes);
    let mut tally = Tally::default();
    let ended = feed(&access, rows, args.from_line, &mut tally, &mut progress).await;
    progress.finish();
    let Tally { counts, rows, bad, short_keys } = tally;
    let Counts { added, unchanged, relabelled, rekeyed } = counts;
    say(format_args!(
        "{rows} rows: {added} added, {unchanged} unchanged, {relabelled} with new labels, {rekeyed} with a new key, \
         {bad} bad; {:.1} s",
        progress.elapsed().as_secs_f64()
    ))?;
    if short_keys > 0 {
        complain(format_args!(
            "warning: {short_keys} keys have less than 16 characters and could be guessed"
        ));
    }
    ended
}

/// Imports all rows from a line on.
async fn feed<R: Read>(
    access: &Access,
    mut rows: Rows<R>,
    from_line: u64,
    tally: &mut Tally,
    progress: &mut Progress,
) -> Result<()> {
    let mut batch: Vec<Row> = Vec::with_capacity(BATCH_ROWS);
    loop {
        let next = rows.next_row();
        let is_over = !matches!(next, Ok(Some(_)));
        match next {
            Ok(Some(Ok(row))) if row.line >= from_line => {
                tally.rows += 1;
                tally.short_keys += u64::from(row.has_short_key());
                batch.push(row);
            }
            Ok(Some(Err(bad))) if bad.line >= from_line => {
                tally.rows += 1;
                tally.bad += 1;
                tell(&bad, tally.bad, progress);
            }
            Ok(Some(_) | None) => {}
            // The rows before the error are imported all the same.
            Err(error) => {
                put(access, &mut batch, tally).await?;
                return Err(error.into());
            }
        }
        if batch.len() >= BATCH_ROWS || is_over {
            let line = batch.last().map(|row| row.line);
            put(access, &mut batch, tally).await?;
            progress.advance(tally.rows, line);
        }
        if is_over {
            return Ok(());
        }
    }
}

async fn put(access: &Access, batch: &mut Vec<Row>, tally: &mut Tally) -> Result<()> {
    let Some(first) = batch.first().map(|row| row.line) else { return Ok(()) };
    let counts = access.put(std::mem::replace(batch, Vec::with_capacity(BATCH_ROWS))).await;
    // The store may have taken some of these rows. To import them again changes nothing.
    let counts = counts.with_context(|| {
        format!(
            "stopped; all rows before line {first} are stored: continue with --from-line {first}"
        )
    })?;
    tally.counts.add(counts);
    Ok(())
}

fn tell(bad: &BadRow, count: u64, progress: &Progress) {
    if count < BAD_SHOWN_MAX {
        progress.tell(&format!("{bad}: skipped"));
    } else if count == BAD_SHOWN_MAX {
        progress.tell(&format!("{bad}: skipped; further bad rows are only counted"));
    }
}

fn format_of(args: &ImportArgs) -> Result<RowFormat> {
    if let Some(format) = args.format {
        return Ok(format.into());
    }
    let extension = args.file.extension().and_then(|extension| extension.to_str());
    match extension.map(str::to_ascii_lowercase).as_deref() {
        Some("csv") => Ok(RowFormat::Csv),
        Some("json" | "jsonl" | "ndjson") => Ok(RowFormat::JsonLines),
        Some(_) | None => bail!(
            "{}: the extension is neither .csv nor .jsonl: add --format csv or --format json",
            args.file.display()
        ),
    }
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let bytes = self.input.read(buf)?;
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(bytes)
    }
}

/// With so many rows the cost of a commit hardly counts.
const BATCH_ROWS: usize = 2_000;
/// A file of another kind would scroll the terminal.
const BAD_SHOWN_MAX: u64 = 1_000;
